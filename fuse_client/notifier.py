"""Writes notifications to the kernel, in a thread of its own.

Laws: notifications never run on the thread that replies; the queue is bounded by coalescing (one epoch increment and a
set of inodes that the kernel knows, however many events wait); ``done`` of an event is called only after the kernel
took everything that the event needs.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable

from ..common.telemetry import get_logger
from . import notifications

log = get_logger(__name__)

Done = Callable[[], None]


class Notifier:
    """``write`` puts one notification to the kernel and raises OSError; injected for tests."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._condition = threading.Condition()
        self._epoch = False
        self._nodeids: set[int] = set()
        self._done: list[Done] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self.sent = 0
        self.supports_epoch = False

    @classmethod
    def for_descriptor(cls, fd: int) -> Notifier:
        return cls(lambda message: os.write(fd, message))

    def start(self) -> None:
        """Asks the kernel once whether it has INC_EPOCH and starts the thread. The mount must have answered INIT."""
        try:
            self._write(notifications.increment_epoch())
            self.supports_epoch = True
        except OSError as error:
            self.supports_epoch = False
            log.info("kernel-without-epochs", errno=errno.errorcode.get(error.errno or 0, str(error.errno)))
        self._thread.start()

    def submit(self, *, names: bool, nodeids: Iterable[int], done: Done) -> None:
        """Queues an invalidation of all names (when ``names``) and of these inodes' attributes; then ``done`` is
        called, on the notifier's thread. After ``close`` it is called at once: nobody is left who has caches."""
        with self._condition:
            if not self._closed:
                self._epoch = self._epoch or names
                self._nodeids.update(nodeids)
                self._done.append(done)
                self._condition.notify()
                return
        done()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._done or self._closed):
                    self._condition.wait()
                if not self._done:
                    return
                epoch, self._epoch = self._epoch, False
                nodeids, self._nodeids = self._nodeids, set()
                done, self._done = self._done, []
            # Attributes first: a lookup that the new epoch causes brings fresh ones anyway.
            for nodeid in nodeids:
                self._send(notifications.invalidate_attributes(nodeid))
            if epoch and self.supports_epoch:
                self._send(notifications.increment_epoch())
            for call in done:
                call()

    def _send(self, message: bytes) -> None:
        try:
            self._write(message)
            self.sent += 1
        except OSError as error:
            # ENOENT: the kernel has no such inode; ENODEV, ENOTCONN, EBADF: the mount is gone, and its caches with it.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.EBADF):
                log.error("notification-failed", errno=errno.errorcode.get(error.errno or 0, str(error.errno)))
