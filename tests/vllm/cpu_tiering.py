"""vLLM's tiering on the CPU platform: its spec, manager, host pool and tiers as they are, only the copy between the
engine's blocks and the pool replaced, for which vLLM has kernels of GPUs only."""

from __future__ import annotations

import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM and torch warn about themselves while they are imported
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyWorker(OffloadingWorker):  # type: ignore[misc]  # vLLM is not checked
    """Copies blocks one by one, in order, on a thread."""

    def __init__(self, caches: Any, region: Any, blocks_per_chunk: int) -> None:
        self._region, self._blocks_per_chunk = region, blocks_per_chunk
        self._layers = [
            (
                cache.tensor,
                cache.page_size_bytes,
                region.create_next_worker_view(cache.page_size_bytes * blocks_per_chunk),
            )
            for cache in caches.tensors
        ]
        self._thread = ThreadPoolExecutor(1)
        self._jobs: dict[int, Future[None]] = {}

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._jobs[job_id] = self._thread.submit(self._copy, src_spec, dst_spec, False)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._jobs[job_id] = self._thread.submit(self._copy, dst_spec, src_spec, True)
        return True

    def _copy(self, blocks: Any, chunks: Any, load: bool) -> None:
        rows = chunks.block_ids.tolist()
        skip = int(blocks.block_indices[0]) % self._blocks_per_chunk
        for at, block in enumerate(blocks.block_ids.tolist(), skip):
            row, nth = rows[at // self._blocks_per_chunk], at % self._blocks_per_chunk
            for tensor, page, pool in self._layers:
                here, there = tensor[block, :page], pool[row, nth * page : (nth + 1) * page]
                if load:
                    here.copy_(there)
                else:
                    there.copy_(here)

    def get_finished(self) -> list[Any]:
        over = [job_id for job_id, job in self._jobs.items() if job.done()]
        return [TransferResult(job_id, self._jobs.pop(job_id).exception() is None) for job_id in over]

    def wait(self, job_ids: set[int]) -> None:
        for job_id in job_ids & self._jobs.keys():
            self._jobs[job_id].exception()

    def shutdown(self) -> None:
        self._thread.shutdown()
        self._layers.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]  # vLLM is not checked
    """``spec_name`` of engines in these tests."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyWorker(kv_caches, region, self.blocks_per_chunk)
