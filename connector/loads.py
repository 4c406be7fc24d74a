"""Loads of one worker: chunk files into the engine's pages, on threads of their own.

A load that fails, in part or by running out of time, is reported as failed and from then on writes nothing: the engine
gives its blocks to somebody else at once.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from typing import Any

from ..common.clock import Clock, SystemClock
from ..common.errors import BlockCorrupt, DeadlineExceeded
from . import chunk_format
from .backend import NOWHERE, Located
from .notices import Notices
from .pages import PageMover
from .pieces import Piece
from .settings import ConnectorSettings
from .staging import Arena
from .storage import Storage

CALL_BYTES = 16 << 20
"""Of one call of the store: what a call costs is little beside so many bytes, and one thread reads while another
copies."""


@dataclasses.dataclass(frozen=True)
class LoadResult:
    job_id: int
    request_id: str
    failed: dict[str, str]
    """Why, by chunk name. Empty: all bytes are in place."""
    late: bool
    """It failed by running out of time."""
    size_bytes: int
    time_s: float


class _Job:
    """State of one load. ``closed`` is the point after which nothing of it may touch the engine's memory."""

    def __init__(self, job_id: int, request_id: str, names: list[str], begun_s: float, deadline_s: float) -> None:
        self.job_id = job_id
        self.request_id = request_id
        self.names = names
        self.begun_s = begun_s
        self.deadline_s = deadline_s
        self.fence: Any = None
        self.located: Located | None = None  # under ``locating``
        self.locating = threading.Lock()
        self.lock = threading.Lock()
        self.batches_left = 0
        self.scattering = 0
        self.closed = False
        self.late = False
        self.failed: dict[str, str] = {}
        self.size_bytes = 0

    def fail_all(self, reason: str) -> None:
        """Nobody knows which chunk is to blame, so none may be tried again at once. Under ``lock``."""
        if not self.closed and not self.failed:
            self.failed = dict.fromkeys(self.names, reason)


class Loader:
    """Threads that load. ``submit``, ``finished`` and ``wait`` are called by the engine's worker thread.

    Args:
        directory: of this rank's chunks, below the root.
        arena: memory that only loads use.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        mover: PageMover,
        arena: Arena,
        settings: ConnectorSettings,
        notices: Notices,
        clock: Clock | None = None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._mover = mover
        self._arena = arena
        self._settings = settings
        self._notices = notices
        self._clock = clock or SystemClock()
        self._queue: queue.SimpleQueue[tuple[_Job, list[Piece]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[LoadResult] = queue.SimpleQueue()
        self._arrived = threading.Event()
        self._jobs: dict[int, _Job] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"hearth-load-{n}", daemon=True)
            for n in range(settings.load_threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    @property
    def open_loads(self) -> int:
        return len(self._jobs)

    def submit(
        self, job_id: int, request_id: str, pieces: list[Piece], unclear: list[str], timeout_s: float | None = None
    ) -> None:
        """Queues a load; its result comes by ``finished``. ``unclear`` chunks make it fail, and so does its end not
        being reached within ``timeout_s`` (None: the longest that is set)."""
        now = self._clock.monotonic_s()
        names = [piece.name for piece in pieces] + unclear
        job = _Job(job_id, request_id, names, now, now + (timeout_s or self._settings.load_timeout_s))
        job.fence = self._mover.fence()
        self._jobs[job_id] = job
        largest = max((self._mover.payload_bytes[piece.group] for piece in pieces), default=1)
        size = max(1, min(self._settings.batch_chunks, CALL_BYTES // largest))
        batches = [pieces[at : at + size] for at in range(0, len(pieces), size)]
        job.batches_left = len(batches)
        if len(batches) == 1:
            job.located = NOWHERE  # its load asks anyway
        if unclear:
            job.fail_all("its blocks do not add up")
        if unclear or not batches:
            self._close(job)
            return
        for batch in batches:
            self._queue.put((job, batch))

    def linger(self, timeout_s: float) -> None:
        """Lets the threads work: returns when a load ends, at the latest after ``timeout_s``; at once without loads."""
        if self._jobs and self._results.empty():
            self._arrived.clear()
            if self._results.empty():
                self._arrived.wait(timeout_s)

    def finished(self) -> list[LoadResult]:
        """Results since the last call. Loads past their deadline are failed here, wherever their threads hang."""
        now = self._clock.monotonic_s()
        for job in list(self._jobs.values()):
            if now > job.deadline_s and not job.late:
                reason = f"late: not loaded within {job.deadline_s - job.begun_s:.3g} s"
                with job.lock:
                    job.late = not (job.closed or job.failed)
                    job.fail_all(reason)
                if job.late:
                    self._storage.note_late_load(reason)
            if now > job.deadline_s:
                self._close(job)
        results = []
        while not self._results.empty():
            result = self._results.get()
            self._jobs.pop(result.job_id, None)
            results.append(result)
        return results

    def wait(self, job_ids: set[int]) -> None:
        """Returns once none of the jobs writes to the engine's memory any more; soon, by giving them up."""
        deadline = time.monotonic() + self._settings.flush_timeout_s
        for job in [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]:
            while not job.closed and time.monotonic() < deadline:
                time.sleep(0.001)
            with job.lock:
                job.fail_all("given up, because the engine needs its blocks")
            while not self._close(job):  # a copy in memory is under way: milliseconds
                time.sleep(0.0005)

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            job, pieces = item
            try:
                self._load(job, pieces)
            except Exception as error:
                self._notices.warn("load bug", "a load failed: %r", error)
                with job.lock:
                    job.failed |= dict.fromkeys((piece.name for piece in pieces), repr(error))
            with job.lock:
                job.batches_left -= 1
                over = job.failed or not job.batches_left
            if over:
                self._close(job)

    def _load(self, job: _Job, pieces: list[Piece]) -> None:
        while pieces and not job.closed and not job.failed:
            left_s = job.deadline_s - self._clock.monotonic_s()
            slots = self._arena.acquire(len(pieces), left_s)
            if not slots:
                with job.lock:
                    job.failed |= dict.fromkeys((piece.name for piece in pieces), "late: no staging memory in time")
                    job.late = True
                return
            try:
                self._load_into(job, pieces[: len(slots)], slots)
            finally:
                self._arena.release(slots)
            pieces = pieces[len(slots) :]

    def _load_into(self, job: _Job, pieces: list[Piece], slots: list[int]) -> None:
        sizes = [self._mover.payload_bytes[piece.group] for piece in pieces]
        files = [self._arena.view(slot, chunk_format.file_bytes(size)) for slot, size in zip(slots, sizes, strict=True)]
        left_s = max(0.001, job.deadline_s - self._clock.monotonic_s())
        located = self._located(job, left_s)
        errors = self._storage.load(self._directory, [piece.name for piece in pieces], files, left_s, located)
        verify = not self._storage.verifies_bytes
        for piece, size, file, error in zip(pieces, sizes, files, errors, strict=True):
            try:
                if error is not None:
                    raise error
                first_block = chunk_format.open_sealed(file, size, piece.name, self._directory, verify)
                if piece.first < first_block:
                    raise BlockCorrupt(
                        f"{piece.name}: block {piece.first} needed, blocks before {first_block} not kept"
                    )
            except OSError as problem:
                with job.lock:
                    job.failed[piece.name] = f"{type(problem).__name__}: {problem}"
                    job.late = job.late or isinstance(problem, DeadlineExceeded)
        self._scatter(job, pieces, [file[:size] for size, file in zip(sizes, files, strict=True)])

    def _located(self, job: _Job, timeout_s: float) -> Located:
        """Whichever thread is first asks for all batches of a job."""
        with job.locating:
            if job.located is None:
                job.located = self._storage.locate(self._directory, job.names, timeout_s)
            return job.located

    def _scatter(self, job: _Job, pieces: list[Piece], payloads: list[memoryview]) -> None:
        with job.lock:
            if job.closed or job.failed:
                return
            job.scattering += 1
        try:
            self._mover.scatter(pieces, payloads, job.fence)
        finally:
            with job.lock:
                job.scattering -= 1
                job.size_bytes += sum(map(len, payloads))

    def _close(self, job: _Job) -> bool:
        """Ends the job unless bytes of it are being copied right now; True once it is over."""
        with job.lock:
            if job.closed or job.scattering:
                return job.closed
            job.closed = True
            failed = dict(job.failed)
        if failed:
            reason = next(iter(failed.values()))
            self._notices.warn("load", "a load of request %s failed, it will be computed: %s", job.request_id, reason)
        taken_s = self._clock.monotonic_s() - job.begun_s
        self._results.put(LoadResult(job.job_id, job.request_id, failed, job.late, job.size_bytes, taken_s))
        self._arrived.set()
        return True
