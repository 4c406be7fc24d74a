"""A few threads that read and write bytes, shared by all calls of one client.

They are daemons: a process that ends does not wait for them. The caller works too, so that a crew without a free
thread, or of one, still gets everything done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class _Job:
    """``act(0) … act(count - 1)``, each taken by one thread."""

    def __init__(self, count: int, act: Callable[[int], None]) -> None:
        self._act = act
        self._left = count
        self._next = 0
        self._count = count
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.done = threading.Event()

    def work(self) -> None:
        while True:
            with self._lock:
                index = self._next
                if index >= self._count:
                    return
                self._next += 1
            try:
                if self._error is None:
                    self._act(index)
            except BaseException as error:
                self._error = error
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self.done.set()

    def finish(self) -> None:
        self.done.wait()
        if self._error is not None:
            raise self._error


class Crew:
    """Thread-safe; threads start when there is work for them and stay until ``close``."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._limit = threads - 1
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def for_each(self, count: int, act: Callable[[int], None]) -> None:
        """Calls ``act(i)`` for each i below ``count`` and returns when all calls did. ``act`` has its own deadline, and
        may call ``for_each`` itself.

        Raises:
            The first exception of an ``act``; those not yet begun are skipped then.
        """
        if count == 0:
            return
        job = _Job(count, act)
        for _ in range(self._helpers(count - 1)):
            self._jobs.put(job)
        job.work()
        job.finish()

    def _helpers(self, wanted: int) -> int:
        with self._lock:
            if self._closed:
                return 0
            helpers = min(wanted, self._limit)
            while len(self._threads) < helpers:
                thread = threading.Thread(target=self._run, name="hearth-crew", daemon=True)
                self._threads.append(thread)
                thread.start()
            return helpers

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.work()
            del job  # it holds the callers' buffers

    def close(self) -> None:
        """Lets the threads end, and waits for those at work."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()
