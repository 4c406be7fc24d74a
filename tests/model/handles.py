"""Open files in pairs: one in a mount, its twin on a plain filesystem."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

from .memory import Mapping
from .promises import View

DIRECT_BYTES = 2 << 20
_aligned = mmap.mmap(-1, DIRECT_BYTES)


@dataclass(eq=False)
class Description:
    """What open(2) made; duplicates and mappings share it. ``name_fd``: the same inode in the plain tree of names.
    ``synchronous``: O_SYNC, each write is followed by an fsync."""

    number: int
    view: View
    name_fd: int
    synchronous: bool = False
    refs: int = 0


@dataclass(eq=False)
class Descriptor:
    number: int
    of: Description
    fd: int
    twin: int

    def __str__(self) -> str:
        return f"fd{self.number}"


@dataclass(eq=False)
class Mapped:
    number: int
    of: Description
    memory: Mapping
    twin: Mapping

    def __str__(self) -> str:
        return f"map{self.number}"


def direct_read(fd: int, size: int, offset: int) -> bytes:
    """pread with O_DIRECT."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        with memoryview(_aligned) as view, view[:size] as part:
            done = os.preadv(fd, [part], offset)
        return _aligned[:done]
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def direct_write(fd: int, data: bytes, offset: int) -> int:
    """pwrite with O_DIRECT."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        _aligned[: len(data)] = data
        with memoryview(_aligned) as view, view[: len(data)] as part:
            return os.pwritev(fd, [part], offset)
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def whole(fd: int, read: Callable[[int, int, int], bytes] = os.pread) -> bytes:
    """All bytes of an open file, its offset untouched."""
    parts, offset = [], 0
    while part := read(fd, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def read_file(path: str, flags: int = 0) -> bytes:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        return whole(fd)
    finally:
        os.close(fd)
