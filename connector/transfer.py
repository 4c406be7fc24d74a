"""The worker half behind vLLM's ``OffloadingWorker``: it takes vLLM's transfer specs apart and hands them on."""

from __future__ import annotations

import dataclasses

from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from . import chunk_format
from .identity import KvIdentity
from .loads import Loader
from .notices import Notices
from .pages import PageMover
from .pieces import Piece, pair
from .report import HearthWorkerReport
from .settings import ConnectorSettings, check_memory
from .staging import Arena, slots_for
from .storage import Storage
from .stores import Storer

IDLE_STEP_S = 0.005


@dataclasses.dataclass
class ChunkFiles(LoadStoreSpec):  # type: ignore[misc]  # vLLM is not checked
    """The store's side of a transfer: names of chunks, and for each the index of its KV cache group."""

    request_id: str
    names: list[str]
    groups: list[int]
    replace: frozenset[str] = frozenset()
    """Names whose file is known to be bad."""
    timeout_s: float = 0.0
    """Of a load; 0: the longest that is set."""
    depths: tuple[int, ...] = ()
    """Of each chunk that is stored: where in its prompt it ends, in tokens."""


class HearthWorker(OffloadingWorker):  # type: ignore[misc]  # vLLM is not checked
    """Moves the chunks of one rank. Every method returns at once but ``wait`` and ``shutdown``, which are bounded."""

    def __init__(
        self,
        mover: PageMover,
        blocks_per_chunk: int,
        identity: KvIdentity,
        rank: int,
        settings: ConnectorSettings,
        storage: Storage,
        notices: Notices,
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._settings = settings
        self._storage = storage
        self._failed_requests: set[str] = set()
        self._failed_loads: dict[str, str] = {}
        self._late_requests: set[str] = set()
        directory = identity.directory(rank)
        slot_bytes = max(chunk_format.file_bytes(size) for size in mover.payload_bytes)
        check_memory(settings, slot_bytes)
        slots = slots_for(settings.staging_bytes // 2, slot_bytes)
        to_load, to_store = Arena(slots, slot_bytes), Arena(slots, slot_bytes)
        mover.pin(to_load.memory)
        mover.pin(to_store.memory)
        self.loader = Loader(storage, directory, mover, to_load, settings, notices)
        self.storer = Storer(storage, directory, mover, to_store, self.loader, settings, notices)
        self.loader.start()
        self.storer.start()
        notices.info(
            "rank %d keeps chunks of %d blocks (%s bytes) in %s, %d staging slots of %d KiB each way",
            rank, blocks_per_chunk, "/".join(map(str, mover.payload_bytes)), directory, slots, slot_bytes >> 10,
        )  # fmt: skip

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: ChunkFiles) -> bool:
        pieces, unclear = self._pair(dst_spec, src_spec, whole=True)
        depths = dict(zip(dst_spec.names, dst_spec.depths, strict=False))
        pieces = [dataclasses.replace(piece, depth=depths.get(piece.name, 0)) for piece in pieces]
        self.storer.submit(job_id, pieces, unclear, dst_spec.replace)
        return True

    def submit_load(self, job_id: int, src_spec: ChunkFiles, dst_spec: GPULoadStoreSpec) -> bool:
        pieces, unclear = self._pair(src_spec, dst_spec, whole=False)
        self.loader.submit(job_id, src_spec.request_id, pieces, unclear, src_spec.timeout_s)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Jobs that are over. vLLM's connector takes "success" only; failures are told by ``take_failed_requests``."""
        results = []
        for load in self.loader.finished():
            if load.failed:
                self._failed_requests.add(load.request_id)
                self._failed_loads |= load.failed
                if load.late:
                    self._late_requests.add(load.request_id)
            results.append(TransferResult(load.job_id, True, load.size_bytes, load.time_s))
        results += [TransferResult(one.job_id, True, one.size_bytes, one.time_s) for one in self.storer.finished()]
        return results

    def linger(self) -> None:
        """For steps in which the engine computes nothing: polling would take the processor from what it waits for."""
        self.loader.linger(IDLE_STEP_S)

    def take_failed_requests(self) -> set[str]:
        """Requests whose load failed, among those whose jobs ``get_finished`` gave since the last call."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def report_into(self, report: HearthWorkerReport) -> None:
        """Adds what became of chunks since the last call."""
        report.failed_loads |= self._failed_loads
        self._failed_loads = {}
        report.late |= self._late_requests
        self._late_requests = set()
        report.trouble = self._storage.trouble
        report.queued_store_bytes = self.storer.queued_bytes
        report.open_loads = self.loader.open_loads
        for name, reason in self.storer.outcomes():
            if reason:
                report.dropped[name] = reason
            else:
                report.stored[name] = 1

    def wait(self, job_ids: set[int]) -> None:
        self.loader.wait(job_ids)
        self.storer.wait(job_ids)

    def shutdown(self) -> None:
        self.loader.stop()
        self.storer.stop(self._settings.drain_timeout_s)
        self._storage.close()

    def _pair(self, files: ChunkFiles, blocks: GPULoadStoreSpec, whole: bool) -> tuple[list[Piece], list[str]]:
        return pair(
            files.names,
            files.groups,
            blocks.block_ids.tolist(),
            blocks.group_sizes,
            blocks.block_indices,
            self._blocks_per_chunk,
            whole,
        )
