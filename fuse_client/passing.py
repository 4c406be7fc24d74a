"""Passthrough: which open files the kernel reads by itself, from the block file, without asking us.

Laws:

- Once a file passes, we see no read of it and cannot take it back. So for reading it passes only when nothing can
  change what its readers see: a sealed block with exactly the file's bytes, on a disk of this node.
- For writing it passes when it is empty and nobody here has it open (created just now, or cut by O_TRUNC) by one who
  only writes, and so cannot map it. See ``kernel_file``. Not where the disk is nearly full: the worker's limits are
  kept by those who ask it.
- The kernel verifies nothing. All of a block is verified before its file passes for the first time, and again after
  the worker was started anew or the file changed (inode, length, ctime); bytes that we wrote and hashed ourselves were
  verified when they were sealed.
- An inode passes, or does not, from its first open handle to its last. A writer that joins takes the file over
  (``take_over``); where it cannot be had it waits for the readers to end, then gets ETXTBSY, as for a program that
  runs. Replacing the file by rename, deleting it, and publishing over it from elsewhere are not affected:
  readers keep what they opened.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from ..common.errors import HearthError
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from .content import Content
from .kernel_file import KernelFile
from .private_file import PrivateFile
from .sealed_block import SealedBlock
from .working_file import WorkingFile

log = get_logger(__name__)

MAX_REMEMBERED = 100_000

WRITE_ROOM_BYTES = 1 << 30
"""A file is written by the kernel where the worker has so much room left."""


class Offer(Protocol):
    def __call__(self, handle: int, backing_fd: int, *, writes: bool) -> bool:
        """Tells the relay of a handle's block file, and whether the kernel writes there too; False: it could not."""


class _Seen(NamedTuple):
    """What must be as it was when the bytes were verified."""

    worker_start: int
    inode: int
    length_bytes: int
    ctime_ns: int


class _Open:
    __slots__ = ("handles", "idle", "passing")

    def __init__(self, passing: bool) -> None:
        self.passing = passing
        self.handles = 0
        self.idle = trio.Event()


class Passing:
    """
    Args:
        worker_start: a number that changes when the worker was started anew.
        allowed: whether the kernel has passthrough; asked at each open, as it is known only after INIT.
        fine_times: the kernel gives a file another time for each change that follows a look (6.13 and later).
    """

    def __init__(
        self, offer: Offer, allowed: Callable[[], bool], worker_start: Callable[[], int], *, fine_times: bool
    ) -> None:
        self._offer = offer
        self._allowed = allowed
        self._worker_start = worker_start
        self._open: dict[int, _Open] = {}
        self._verified: OrderedDict[BlockKey, _Seen] = OrderedDict()
        self._fine_times = fine_times
        self._direct: dict[int, bool] = {}  # device number: its files can be opened with O_DIRECT
        self.opens = 0  # that passed

    # -- handles

    async def prepare(self, nodeid: int, content: Content, flags: int) -> bool:
        """Before a handle is opened, with the inode's opens in turn. Whether it passes if it is the first one."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            return False
        known = self._open.get(nodeid)
        if known is not None:
            return known.passing
        return self._allowed() and await self._fit(content)

    async def wait_idle(self, nodeid: int, timeout_s: float) -> bool:
        """Until the inode does not pass; whether that is so."""
        with trio.move_on_after(timeout_s):
            while (known := self._open.get(nodeid)) is not None and known.passing:
                await known.idle.wait()
        return not self.passes(nodeid)

    def may_write(self, nodeid: int) -> bool:
        return self._allowed() and nodeid not in self._open

    def kernel_file(self, working: WorkingFile, *, cached: bool) -> KernelFile | None:
        """An empty working file, for the kernel to write; None where that cannot be.

        Args:
            cached: not opened with O_DIRECT.

        Raises:
            OSError: its disk does not work.
        """
        if not working.local or working.length_bytes or working.limit_bytes < WRITE_ROOM_BYTES:
            return None
        if not self._takes_direct(working.fd):
            return None
        return KernelFile.of(working, fine_time=self._fine_times, cached=cached)

    def opened(self, nodeid: int, handle: int, content: Content, *, passes: bool) -> None:
        """A handle exists now; its reply follows. Without ``await`` since ``prepare``."""
        known = self._open.get(nodeid)
        if known is None:
            known = self._open[nodeid] = _Open(passes)
        known.handles += 1
        if known.passing:
            if content.working is not None:
                fd: int | None = content.working.fd
            else:
                fd = None if content.sealed is None else content.sealed.local_fd
            by_kernel = content.kernel_file is not None and not isinstance(content.working, PrivateFile)
            if fd is not None and self._offer(handle, fd, writes=by_kernel):
                self.opens += 1

    def closed(self, nodeid: int) -> None:
        known = self._open[nodeid]
        known.handles -= 1
        if not known.handles:
            del self._open[nodeid]
            known.idle.set()

    def passes(self, nodeid: int) -> bool:
        known = self._open.get(nodeid)
        return known is not None and known.passing

    # -- files

    async def _fit(self, content: Content) -> bool:
        sealed = content.sealed
        if sealed is None or content.dirty or content.working is not None:
            return False
        if not content.size or not content.valid == content.size == sealed.length_bytes or sealed.local_fd is None:
            return False
        if not self._takes_direct(sealed.local_fd):
            return False
        try:
            return await self._verify(sealed)
        except HearthError as error:
            log.warning("block-does-not-pass", block=str(sealed.key), reason=str(error))
            return False

    def _takes_direct(self, fd: int) -> bool:
        """Programs may open the file with O_DIRECT, which the kernel passes on."""
        device = os.fstat(fd).st_dev
        if device not in self._direct:
            try:
                os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
                self._direct[device] = True
            except OSError as error:
                log.warning("disk-without-direct-io", reason=f"{error.strerror}: no passthrough for its files")
                self._direct[device] = False
        return self._direct[device]

    def _seen(self, fd: int) -> _Seen:
        status = os.fstat(fd)
        return _Seen(self._worker_start(), status.st_ino, status.st_size, status.st_ctime_ns)

    async def _verify(self, sealed: SealedBlock) -> bool:
        fd = sealed.local_fd
        if fd is None:
            return False
        seen = self._seen(fd)  # before the bytes: a change meanwhile shows the next time
        if seen.length_bytes != sealed.length_bytes:
            return False
        if self._verified.get(sealed.key) != seen:
            await sealed.verify()
            if sealed.local_fd != fd:
                return False  # this file was bad, and another source took its place
            self._remember(sealed.key, seen)
        return True

    def verified_here(self, key: BlockKey, fd: int) -> None:
        """We hashed each byte of it on the way to the file, or this node's worker did when it fetched the block."""
        self._remember(key, self._seen(fd))

    def _remember(self, key: BlockKey, seen: _Seen) -> None:
        self._verified[key] = seen
        self._verified.move_to_end(key)
        while len(self._verified) > MAX_REMEMBERED:
            self._verified.popitem(last=False)
