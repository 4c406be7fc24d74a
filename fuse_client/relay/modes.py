"""How the kernel does the I/O of each open inode: by itself on a backing file, or by asking the daemon. Pure: the
ioctls are arguments.

Laws, all of them the kernel's (fs/fuse/iomode.c):

- The mode of an inode is chosen by its first open and kept until the last one is closed.
- A passing inode has one backing id; each further open gets that id. One that may write, where the daemon does not
  leave writing to the kernel, gets it together with DIRECT_IO: its reads and writes go to the daemon then.
- A backing id is closed with the last open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .wire import FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FOPEN_PASSTHROUGH

Register = Callable[[int], int]
"""Descriptor to backing id; OSError where the kernel refuses."""


class Choice(NamedTuple):
    flags: int
    backing_id: int


class Backing(NamedTuple):
    """What the daemon offers for one handle.

    Attributes:
        writes: the kernel may write there by itself.
    """

    fd: int
    writes: bool = False


class _Inode:
    __slots__ = ("backing_id", "opens")

    def __init__(self, backing_id: int) -> None:
        self.backing_id = backing_id  # 0: asks the daemon
        self.opens = 0


class Modes:
    def __init__(self, register: Register, unregister: Callable[[int], object]) -> None:
        self._register = register
        self._unregister = unregister
        self._inodes: dict[int, _Inode] = {}
        self.refused: OSError | None = None  # the last one

    def open(self, nodeid: int, flags: int, *, writes: bool, backing: Backing | None) -> Choice:
        """One more open of ``nodeid``, whose reply says ``flags`` so far. ``closed`` follows, once.

        Args:
            writes: the opener may write, or truncates.
            backing: the file with the inode's bytes, if the daemon offers one.
        """
        inode = self._inodes.get(nodeid)
        if inode is None:
            inode = self._inodes[nodeid] = _Inode(0 if backing is None else self._try(backing.fd))
        inode.opens += 1
        if not inode.backing_id:
            return Choice(flags, 0)
        flags = flags & ~(FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO) | FOPEN_PASSTHROUGH
        if backing is None or not backing.writes:
            # Closing what nobody writes has nothing to publish: the kernel need not ask.
            flags |= FOPEN_DIRECT_IO if writes else FOPEN_NOFLUSH
        return Choice(flags, inode.backing_id)

    def _try(self, backing_fd: int) -> int:
        try:
            return self._register(backing_fd)
        except OSError as error:
            self.refused = error
            return 0

    def closed(self, nodeid: int) -> None:
        inode = self._inodes.get(nodeid)
        if inode is None:
            return
        inode.opens -= 1
        if inode.opens <= 0:
            del self._inodes[nodeid]
            if inode.backing_id:
                self._unregister(inode.backing_id)

    def __len__(self) -> int:
        return len(self._inodes)
