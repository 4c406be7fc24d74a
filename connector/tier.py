"""``HearthTier``: HearthFS as a secondary tier of vLLM's ``TieringOffloadingSpec``, behind its pool in host memory.

    {"type": "HearthTier", "module_path": "hearthfs.connector", "root": "/mnt/kvcache/kv"}

It lives in the scheduler's process and sees host memory only; a chunk's row there holds the bytes of all ranks, and is
one file. Every method returns at once but ``drain_jobs`` and ``shutdown``, which are bounded.
"""

from __future__ import annotations

import dataclasses
import platform
import queue
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import numpy as np
import torch
import vllm
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from ..common.errors import HearthError, SettingsError
from . import chunk_format
from .engine_view import hash_seed, weights_of
from .identity import MANIFEST, GroupIdentity, KvIdentity, chunk_key, chunk_name, readable_name
from .lookups import LookupTable
from .neighbours import MAX_MANIFESTS, explain
from .notices import Notices
from .settings import ConnectorSettings, check_memory
from .staging import Arena, slots_for
from .storage import Storage

MAX_ANSWERS = 200_000
IDLE_S = 0.5


class _Job:
    """A transfer under way; after ``closed`` nothing of it touches the pool."""

    def __init__(self, order: TransferJob, deadline_s: float) -> None:
        self.order = order
        self.keys = list(order.keys)
        self.rows = [int(row) for row in order.chunk_ids]
        self.deadline_s = deadline_s
        self.begun_s = time.monotonic()
        self.lock = threading.Lock()
        self.closed = False
        self.good: list[OffloadKey] = []


@dataclasses.dataclass
class _Answer:
    is_there: bool
    until_s: float


class HearthTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not checked
    """One per engine.

    Args:
        root, load_timeout_s, ...: as the connector's settings; ``weights_revision``, too.
        others: keywords that a newer vLLM passes, or that somebody mistyped: named in the log, not refused.

    Raises:
        SettingsError: no root, or a bad value.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality else Locality.REMOTE
        self._notices = Notices(init_logger("vllm.hearthfs"))
        own = {key: value for key, value in others.items() if key in ConnectorSettings.model_fields}
        if not own.get("root"):
            raise SettingsError('secondary tier HearthTier: "root" is missing; give it, such as "/mnt/kvcache/kv"')
        strange = sorted(others.keys() - own.keys())
        if strange:
            self._notices.warn("tier keys", "HearthTier does not know these keys and ignores them: %s", strange)
        self._settings = settings = ConnectorSettings.load(own)
        pool = np.asarray(primary_kv_view)
        self._pool = pool.view(np.uint8).reshape(len(pool), -1)
        self._row_bytes = self._pool.shape[1]
        self._file_bytes = chunk_format.file_bytes(self._row_bytes)
        check_memory(settings, self._file_bytes)
        identity = _identity_of(offloading_spec.config, self._row_bytes, settings, self._notices)
        self._directory = identity.directory(0)
        self._storage = Storage(settings, self._notices)
        self._emits = offloading_spec.kv_events_config.enable_kv_cache_events
        self._table = LookupTable(
            lambda names: self._storage.lookup([self._directory], names), settings, self._notices, watch=self._emits
        )
        self._batch: list[bytes] = []
        self._asked: dict[str, list[bytes]] = {}
        self._asking: set[bytes] = set()
        self._answers: dict[bytes, _Answer] = {}
        self._number = 0
        slots = slots_for(settings.staging_bytes // 2, self._file_bytes)
        self._arenas = {True: Arena(slots, self._file_bytes), False: Arena(slots, self._file_bytes)}
        self._jobs: dict[int, _Job] = {}
        self._results: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._queues: dict[bool, queue.SimpleQueue[_Job | None]] = {
            True: queue.SimpleQueue(),
            False: queue.SimpleQueue(),
        }
        self._events: list[OffloadingEvent] = []
        self._threads = [
            threading.Thread(target=self._run, args=(is_load,), name=f"hearth-tier-{is_load}-{n}", daemon=True)
            for is_load, count in ((True, settings.load_threads), (False, settings.store_threads))
            for n in range(count)
        ]
        self._storage.on_change = lambda: self._opened(identity)
        self._storage.start()
        self._table.start()
        for thread in self._threads:
            thread.start()
        self._notices.info("HearthTier keeps rows of %d bytes in %s", self._row_bytes, self._directory)

    # Lookup: one call of the store for all that a scheduling step asked

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = self._answers.get(key)
        if answer is not None and time.monotonic() < answer.until_s:
            return LookupResult.HIT if answer.is_there else LookupResult.MISS
        if key not in self._asking:
            self._asking.add(key)
            self._batch.append(key)
        elif self._asked:
            self._settle()
            if key not in self._asking:
                return self.lookup(key, req_context)
        return LookupResult.RETRY

    def on_schedule_end(self, context: Any) -> None:
        self._settle()
        if self._batch:
            batch, self._batch = self._batch, []
            self._number += 1
            self._asked[str(self._number)] = batch
            self._settle()

    def _settle(self) -> None:
        """Asks what was not asked yet, and takes in what was answered."""
        now = time.monotonic()
        for name, batch in list(self._asked.items()):
            hits = self._table.ask(name, lambda batch=batch: batch)  # type: ignore[misc]  # a default binds the value
            if hits is None:
                continue
            del self._asked[name]
            self._table.forget(name)
            self._asking.difference_update(batch)
            for key in batch:
                ttl_s = self._settings.hit_ttl_s if key in hits else self._settings.miss_ttl_s
                self._answers.pop(key, None)
                self._answers[key] = _Answer(key in hits, now + ttl_s)
        while len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    # Transfers

    def submit_store(self, job_metadata: TransferJob) -> None:
        shed = self._storage.sheds_stores
        waiting = sum(len(job.keys) for job in list(self._jobs.values()) if not job.order.is_promotion)
        if not shed and (waiting + len(job_metadata.keys)) * self._row_bytes > self._settings.store_backlog_bytes:
            shed = "backlog full"
        if shed:
            self._notices.warn("drop", "did not store %d chunks: %s", len(job_metadata.keys), shed)
            self._results.put(JobResult(job_metadata.job_id, False))
            return
        self._submit(_Job(job_metadata, time.monotonic() + self._settings.store_timeout_s), is_load=False)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(_Job(job_metadata, time.monotonic() + self._settings.load_timeout_s), is_load=True)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if now > job.deadline_s:
                if job.order.is_promotion and not job.closed:
                    self._storage.note_late_load("late: a load of the tier ran out of time")
                self._close(job)
        results = []
        while not self._results.empty():
            results.append(self._results.get())
            ended = self._jobs.pop(results[-1].job_id, None)
            if ended is not None:
                self._note(ended)
        return results

    def _note(self, job: _Job) -> None:
        failed = set(job.keys) - set(job.good)
        if job.order.is_promotion:
            for key in failed:
                self._table.note_failed(chunk_name(key))
                self._answers[key] = _Answer(False, time.monotonic() + self._settings.failed_ttl_s)
            return
        for key in job.good:
            self._table.note_stored(chunk_name(key))
            self._answers.pop(key, None)
        if self._emits and job.good:
            self._events.append(OffloadingEvent(list(job.good), Medium.STORAGE, removed=False, locality=self.locality))

    def take_events(self) -> Iterable[OffloadingEvent]:
        gone = [OffloadKey(chunk_key(name)) for name in self._table.take_gone()]
        if gone:
            self._events.append(OffloadingEvent(gone, Medium.STORAGE, removed=True, locality=self.locality))
        events, self._events = self._events, []
        return events

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        """Waits ``drain_timeout_s`` for what is under way; what is not over then is failed, and touches nothing."""
        deadline_s = time.monotonic() + self._settings.drain_timeout_s
        for job in list(self._jobs.values()):
            while not job.closed and time.monotonic() < deadline_s:
                time.sleep(0.001)
            self._close(job)

    def shutdown(self) -> None:
        self.drain_jobs()
        for thread in self._threads:
            self._queues["-True-" in thread.name].put(None)
        self._table.close(self._settings.lookup_timeout_s)
        self._storage.close()

    def _submit(self, job: _Job, is_load: bool) -> None:
        self._jobs[job.order.job_id] = job
        self._queues[is_load].put(job)

    def _close(self, job: _Job) -> None:
        with job.lock:
            if job.closed:
                return
            job.closed = True
        whole = len(job.good) == len(job.keys)
        keys: Collection[OffloadKey] | None = None if whole or not job.order.is_promotion else list(job.good)
        taken_s = time.monotonic() - job.begun_s
        self._results.put(JobResult(job.order.job_id, whole, keys, taken_s, len(job.good) * self._row_bytes))

    def _run(self, is_load: bool) -> None:
        move = self._load if is_load else self._store
        while (job := self._queues[is_load].get()) is not None:
            try:
                at = 0
                while at < len(job.keys) and not job.closed:
                    left_s = job.deadline_s - time.monotonic()
                    slots = self._arenas[is_load].acquire(
                        min(len(job.keys) - at, self._settings.batch_chunks), max(0.0, left_s)
                    )
                    if not slots:
                        break
                    try:
                        chosen = range(at, at + len(slots))
                        move(job, [(job.keys[i], job.rows[i]) for i in chosen], slots)
                    finally:
                        self._arenas[is_load].release(slots)
                    at += len(slots)
            except Exception as error:
                self._notices.warn("tier bug", "a transfer of the tier failed: %r", error)
            self._close(job)

    def _load(self, job: _Job, chunks: list[tuple[OffloadKey, int]], slots: list[int]) -> None:
        files = [self._arenas[True].view(slot, self._file_bytes) for slot in slots]
        names = [chunk_name(key) for key, _ in chunks]
        left_s = max(0.001, job.deadline_s - time.monotonic())
        errors = self._storage.load(self._directory, names, files, left_s)
        for (key, row), name, file, error in zip(chunks, names, files, errors, strict=True):
            try:
                if error is not None:
                    raise error
                chunk_format.open_sealed(file, self._row_bytes, name, self._directory, not self._storage.verifies_bytes)
            except HearthError as problem:
                self._notices.warn("miss", "chunk %s counts as missing: %s", name, problem)
                continue
            with job.lock:
                if job.closed:
                    return
                self._pool[row] = np.frombuffer(file[: self._row_bytes], np.uint8)
                job.good.append(key)

    def _store(self, job: _Job, chunks: list[tuple[OffloadKey, int]], slots: list[int]) -> None:
        wanted, files = [], []
        for (key, row), slot in zip(chunks, slots, strict=True):
            name = chunk_name(key)
            if self._table.is_stored(name):
                job.good.append(key)
                continue
            file = self._arenas[False].view(slot, self._file_bytes)
            with job.lock:
                if job.closed:
                    return
                np.frombuffer(file, np.uint8)[: self._row_bytes] = self._pool[row]
            chunk_format.seal(file, self._row_bytes, name, self._directory)
            wanted.append((key, name, self._table.has_failed(name)))
            files.append(file)
        for replace in (False, True):
            some = [i for i, one in enumerate(wanted) if one[2] is replace]
            if not some:
                continue
            names = [wanted[i][1] for i in some]
            errors = self._storage.store(self._directory, names, [files[i] for i in some], replace=replace)
            for i, error in zip(some, errors, strict=True):
                if error is None:
                    job.good.append(wanted[i][0])
                else:
                    self._notices.warn("drop", "did not store chunk %s: %s", wanted[i][1], error)

    def _opened(self, identity: KvIdentity) -> None:
        self._table.clear()
        self._storage.put_manifest_once(self._directory.rpartition("/")[0], MANIFEST, identity.manifest())
        model = readable_name(identity.model)
        lines = explain(identity.manifest(), self._storage.manifests(model, MAX_MANIFESTS))
        for number, line in enumerate(lines):
            self._notices.warn(
                f"neighbour {number}", "chunks of %s that this engine cannot use are in the root: %s", model, line
            )


def _identity_of(config: Any, row_bytes: int, settings: ConnectorSettings, notices: Notices) -> KvIdentity:
    """From what a tier is told. Rows hold the bytes of all ranks side by side, so all parallel sizes count."""
    parallel = config.parallel
    return KvIdentity(
        model=config.model.name,
        weights=settings.weights_revision or weights_of(config.model.name, None, notices),
        quantization="as the weights",
        model_settings="as the weights",
        engine=f"vllm-tier-{'.'.join(vllm.__version__.split('.')[:2])}",
        platform="/".join([str(current_platform.device_type), platform.machine(), _instructions()]),
        dtype=str(config.model.dtype),
        kv_layout=f"{config.kv_cache_layout}/row-{row_bytes}/canonical-{config.canonical_layout}",
        groups=tuple(
            GroupIdentity(group.group_id, group.tokens_per_block, tuple(group.layer_names)) for group in config.groups
        ),
        block_bytes=config.worker_kv_bytes_per_block,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        tokens_per_hash=config.cache.tokens_per_hash,
        tensor_parallel=parallel.tp_size,
        pipeline_parallel=parallel.pp_size,
        prefill_context_parallel=parallel.pcp_size,
        decode_context_parallel=parallel.dcp_size,
        world_size=parallel.world_size,
        replicated=config.replicated_layout,
        hash_algorithm="in the key",
        hash_seed=hash_seed(),
    )


def _instructions() -> str:
    """CPU kernels arrange pages by instruction set."""
    return str(torch.backends.cpu.get_cpu_capability()) if current_platform.is_cpu() else ""
