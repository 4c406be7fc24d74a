"""Group commit: one thread writes; requests that queued while the last commit was synced share the next.

A request is answered after its commit. What fails alone, fails alone: by the rules, by a bug in a rule (``Internal`` to
its caller, its step is undone) or for lack of room. What makes durability doubtful ends everything: ``on_fatal``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ..common.errors import Busy, HearthError, Internal, NoSpace, Unavailable
from ..common.telemetry import get_logger
from . import machine, metrics
from .commands import GROWING, Request
from .store import StoreFailed
from .tables import Batch, Store

COMMANDS_PER_COMMIT_MAX = 1000
log = get_logger("hearthfs.master")


class Applied(NamedTuple):
    request: Request
    outcome: machine.Outcome | HearthError


Job = Callable[[Batch], Any]
"""Upkeep that is not a command: it may only touch what replaying a journal does not make (the journal itself)."""


class _Queued(NamedTuple):
    work: Request | Job
    future: asyncio.Future[Any]


class Committer:
    """``on_commit`` gets each commit's requests and the version of the tables after it, in the loop's thread, and
    returns what each caller is to get."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        *,
        queue_commands: int,
        on_commit: Callable[[list[Applied], int], list[Any]],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._queue_commands = queue_commands
        self._on_commit = on_commit
        self._on_fatal = on_fatal
        self._queue: deque[_Queued] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """What ``on_commit`` makes of the outcome. Raises: Busy, Unavailable, at once; the future: HearthError."""
        return self._enqueue(request)

    def run(self, job: Job) -> asyncio.Future[Any]:
        """Runs upkeep in a transaction of the writer; the future has what it returns."""
        return self._enqueue(job)

    def _enqueue(self, work: Request | Job) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._wake:
            if self._stopping or self._failed:
                raise Unavailable(self._failed or "the master is stopping")
            if len(self._queue) >= self._queue_commands:
                raise Busy(f"{len(self._queue)} mutations wait for a commit; try again")
            self._queue.append(_Queued(work, future))
            metrics.QUEUED.set(len(self._queue))
            self._wake.notify()
        return future

    def close(self, timeout_s: float) -> bool:
        """Commits what is queued, takes nothing more; whether all was done in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---------------------------------------------------------------- the writer's thread

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                if not self._queue:
                    return
                taken = [self._queue.popleft() for _ in range(min(len(self._queue), COMMANDS_PER_COMMIT_MAX))]
                metrics.QUEUED.set(len(self._queue))
            try:
                done = self._commit(taken)
            except BaseException as error:
                self._fail(taken, f"{error}")
                return
            self._call_loop(self._deliver, taken, done, self._store.version())

    def _commit(self, taken: list[_Queued]) -> list[Any]:
        """One result or error for each; raises only what must stop the master."""
        started_s = time.perf_counter()
        room = self._store.has_room()
        try:
            with self._store.batch() as batch:
                done = [self._apply(batch, queued.work, room) for queued in taken]
        except NoSpace as error:
            return [error] * len(taken)
        metrics.COMMITS.inc()
        metrics.COMMANDS_PER_COMMIT.observe(len(taken))
        metrics.COMMIT_SECONDS.observe(time.perf_counter() - started_s)
        return done

    def _apply(self, batch: Batch, work: Request | Job, room: bool) -> Any:
        try:
            if not isinstance(work, Request):
                return work(batch)
            if not room and isinstance(work.command, GROWING):
                return NoSpace("the master has no room for more metadata; delete something or give it a larger volume")
            return machine.apply(batch, work)
        except StoreFailed:
            raise
        except HearthError as error:
            return error
        except Exception:
            what = type(work.command).__name__ if isinstance(work, Request) else "upkeep"
            log.exception("command-failed", command=what)
            return Internal(f"{what} failed by a fault in the master; its log has the trace")

    def _fail(self, taken: list[_Queued], reason: str) -> None:
        with self._wake:
            self._failed = reason or "commit failed"
            taken = taken + list(self._queue)
            self._queue.clear()
        error = Unavailable(self._failed)
        self._call_loop(self._on_fatal, self._failed)
        self._call_loop(self._deliver, taken, [error] * len(taken), 0)

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # ---------------------------------------------------------------- the loop's thread

    def _deliver(self, taken: list[_Queued], done: list[Any], version: int) -> None:
        applied = [Applied(q.work, d) for q, d in zip(taken, done, strict=True) if isinstance(q.work, Request)]
        try:
            answers = iter(self._on_commit(applied, version))
        except Exception as error:  # other sessions' caches were not told: nobody may be told of success
            log.exception("after-commit-failed")
            done = [Internal(f"the master failed after a commit: {error}")] * len(taken)
            answers = iter(done)
        for queued, result in zip(taken, done, strict=True):
            answer = next(answers) if isinstance(queued.work, Request) else result
            if queued.future.done():  # its caller has gone
                continue
            if isinstance(result, HearthError):
                queued.future.set_exception(result)
            else:
                queued.future.set_result(answer)
