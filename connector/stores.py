"""Stores of one worker: pages of the engine into chunk files, behind the engine's back.

A thread copies pages into staging memory; from then on the engine may use its blocks again, and that is when the job
counts as done for it. Writing to the store follows on other threads. When the store is slower than the engine, staging
fills up and stores are dropped, counted and logged; nothing ever waits for the store.
"""

from __future__ import annotations

import collections
import dataclasses
import queue
import threading
import time
from typing import Any

from ..common.clock import Clock, SystemClock
from . import chunk_format
from .loads import Loader
from .notices import Notices
from .pages import PageMover
from .pieces import Piece
from .settings import ConnectorSettings
from .staging import Arena
from .storage import Storage

_MAX_YIELD_S = 0.25


@dataclasses.dataclass(frozen=True)
class StoreResult:
    """The engine's blocks are free again; whether the chunks got stored is told by ``Storer.outcomes``."""

    job_id: int
    size_bytes: int
    time_s: float


class _Job:
    def __init__(self, job_id: int, pieces: list[Piece], replace: frozenset[str], size_bytes: int, now: float) -> None:
        self.job_id = job_id
        self.pieces = pieces
        self.replace = replace
        self.size_bytes = size_bytes
        self.begun_s = now
        self.fence: Any = None
        self.lock = threading.Lock()
        self.gathering = False
        self.cancelled = ""
        self.done = False


class Storer:
    """Threads that store. ``submit``, ``finished``, ``wait`` and ``outcomes`` are the engine's worker thread's.

    Args:
        directory: of this rank's chunks, below the root.
        arena: memory that only stores use.
        loader: loads go first; a write waits a moment for them.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        mover: PageMover,
        arena: Arena,
        loader: Loader,
        settings: ConnectorSettings,
        notices: Notices,
        clock: Clock | None = None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._mover = mover
        self._arena = arena
        self._loader = loader
        self._settings = settings
        self._notices = notices
        self._clock = clock or SystemClock()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Bounded by the arena: an element holds slots.
        self._writes: queue.SimpleQueue[tuple[list[Piece], list[int], frozenset[str]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[StoreResult] = queue.SimpleQueue()
        self._outcomes: collections.deque[tuple[str, str]] = collections.deque()  # name, why not ("" = stored)
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._backlog_bytes = 0
        self._unwritten = 0
        self._stopping = False
        self._gatherer = threading.Thread(target=self._gather_all, name="hearth-gather", daemon=True)
        self._writers = [
            threading.Thread(target=self._write_all, name=f"hearth-store-{n}", daemon=True)
            for n in range(settings.store_threads)
        ]

    def start(self) -> None:
        for thread in (self._gatherer, *self._writers):
            thread.start()

    def submit(self, job_id: int, pieces: list[Piece], unclear: list[str], replace: frozenset[str]) -> None:
        """Queues a store, or drops it if too much waits already."""
        size = sum(self._mover.payload_bytes[piece.group] for piece in pieces)
        job = _Job(job_id, pieces, replace, size, self._clock.monotonic_s())
        job.fence = self._mover.fence()
        self._drop(unclear, "unclear: blocks do not add up")
        with self._lock:
            full = self._backlog_bytes + size > self._settings.store_backlog_bytes
            self._backlog_bytes += size
        self._jobs[job_id] = job
        shed = self._storage.sheds_stores
        if full or shed:
            job.cancelled = shed or "backlog full"
            self._finish(job, pieces)
        else:
            self._queue.put(job)

    def finished(self) -> list[StoreResult]:
        results = []
        while not self._results.empty():
            result = self._results.get()
            self._jobs.pop(result.job_id, None)
            results.append(result)
        return results

    @property
    def queued_bytes(self) -> int:
        """Of stores whose pages the engine must still keep."""
        return self._backlog_bytes

    def outcomes(self) -> list[tuple[str, str]]:
        """Chunks whose fate is decided since the last call: (name, reason for not being stored or "")."""
        taken = []
        while self._outcomes:
            taken.append(self._outcomes.popleft())
        return taken

    def wait(self, job_ids: set[int]) -> None:
        """Returns once the engine may overwrite the jobs' blocks: copied, or, after a moment, given up."""
        deadline = time.monotonic() + self._settings.flush_timeout_s
        for job in [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]:
            while not job.done and time.monotonic() < deadline:
                time.sleep(0.001)
            with job.lock:
                job.cancelled = job.cancelled or "preempted: the engine needs its blocks"
            while job.gathering:  # a copy in memory: milliseconds
                time.sleep(0.0005)

    def stop(self, timeout_s: float) -> None:
        """Waits for what is under way, then drops the rest."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and (self._unwritten or any(not job.done for job in self._jobs.values())):
            time.sleep(0.005)
        self._stopping = True
        left = self._unwritten
        if left:
            self._notices.warn("shutdown", "dropped %d chunks that were not stored within %s s", left, timeout_s)
        self._queue.put(None)
        for _ in self._writers:
            self._writes.put(None)

    def _gather_all(self) -> None:
        while (job := self._queue.get()) is not None:
            left = job.pieces
            try:
                job.cancelled = job.cancelled or self._storage.sheds_stores
                while left and not job.cancelled:
                    taken = self._gather_some(job, left)
                    if not taken:
                        break
                    left = left[taken:]
            except Exception as error:
                self._notices.warn("gather bug", "a store failed: %r", error)
                job.cancelled = job.cancelled or repr(error)
            self._finish(job, left)

    def _gather_some(self, job: _Job, pieces: list[Piece]) -> int:
        """Copies a batch of pages into slots and hands them to the writers; gives how many chunks, 0 to end the job."""
        wait_s = job.begun_s + self._settings.store_age_s - self._clock.monotonic_s()
        slots = self._arena.acquire(min(len(pieces), self._settings.batch_chunks), max(0.0, wait_s))
        if not slots:
            job.cancelled = job.cancelled or f"slow store: waited {self._settings.store_age_s} s"
            return 0
        batch = pieces[: len(slots)]
        with job.lock:
            job.gathering = not (job.cancelled or self._stopping)
            going = job.gathering
        try:
            if going:
                sizes = [self._mover.payload_bytes[piece.group] for piece in batch]
                payloads = [self._arena.view(slot, size) for slot, size in zip(slots, sizes, strict=True)]
                self._mover.gather(batch, payloads, job.fence)
        except BaseException:
            going = False
            raise
        finally:
            job.gathering = False
            if not going:
                self._arena.release(slots)
        if not going:
            return 0
        with self._lock:
            self._unwritten += len(batch)
        self._writes.put((batch, slots, job.replace))
        return len(batch)

    def _finish(self, job: _Job, dropped: list[Piece]) -> None:
        with self._lock:
            self._backlog_bytes -= job.size_bytes
        self._drop([piece.name for piece in dropped], job.cancelled or "shutting down")
        job.done = True
        kept = job.size_bytes - sum(self._mover.payload_bytes[piece.group] for piece in dropped)
        self._results.put(StoreResult(job.job_id, kept, self._clock.monotonic_s() - job.begun_s))

    def _write_all(self) -> None:
        while (item := self._writes.get()) is not None:
            batch, slots, replace = item
            try:
                self._yield_to_loads()
                self._write(batch, slots, replace)
            except Exception as error:
                self._notices.warn("store bug", "a store failed: %r", error)
                self._drop([piece.name for piece in batch], repr(error))
            finally:
                self._arena.release(slots)
                with self._lock:
                    self._unwritten -= len(batch)

    def _write(self, batch: list[Piece], slots: list[int], replace: frozenset[str]) -> None:
        files = []
        for piece, slot in zip(batch, slots, strict=True):
            size = self._mover.payload_bytes[piece.group]
            file = self._arena.view(slot, chunk_format.file_bytes(size))
            chunk_format.seal(file, size, piece.name, self._directory, piece.first)
            files.append(file)
        for again in (False, True):
            chosen = [i for i, piece in enumerate(batch) if (piece.name in replace) is again]
            if not chosen:
                continue
            names = [batch[i].name for i in chosen]
            depths = [batch[i].depth for i in chosen]
            errors = self._storage.store(self._directory, names, [files[i] for i in chosen], again, depths)
            for name, error in zip(names, errors, strict=True):
                if error is None:
                    self._outcomes.append((name, ""))
                else:
                    self._drop([name], f"{type(error).__name__}: {error}")

    def _yield_to_loads(self) -> None:
        deadline = time.monotonic() + _MAX_YIELD_S
        while self._loader.is_busy and time.monotonic() < deadline:
            time.sleep(0.002)

    def _drop(self, names: list[str], reason: str) -> None:
        if names:
            self._notices.warn("drop", "did not store %d chunks: %s", len(names), reason)
            self._outcomes.extend((name, reason) for name in names)
