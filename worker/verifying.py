"""Reads a whole block from its disk and checks it: past the page cache where the filesystem can do that, so that what
lies there is checked, and what is hot in memory stays there."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable

from ..common.checksums import CHUNK_BYTES, Verifier
from ..common.errors import BlockCorrupt
from .os_calls import OsCalls

_CANNOT = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY}


def verify_on_disk(
    calls: OsCalls, fd: int, length_bytes: int, packed: bytes, what: str, pace: Callable[[int], None]
) -> None:
    """
    Args:
        fd: of the file, read-only.
        pace: called with the size of each chunk before it is read; it may sleep, or raise to give up.

    Raises:
        BlockCorrupt: the file is shorter or longer, or a chunk differs.
        OSError: the disk does not work.
    """
    verifier = Verifier(packed, length_bytes, 0, what)
    if os.fstat(fd).st_size != length_bytes:
        raise BlockCorrupt(f"{what}: its file has {os.fstat(fd).st_size} bytes, not {length_bytes}")
    view = memoryview(mmap.mmap(-1, CHUNK_BYTES))  # direct reads want aligned memory
    direct_fd = _open_direct(calls, fd)
    try:
        for offset in range(0, length_bytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, length_bytes - offset)
            pace(size)
            got = _read(calls, direct_fd, fd, view, offset)
            if got < size:
                raise BlockCorrupt(f"{what}: its file ends at {offset + got}")
            verifier.check(offset, view[:size])
    finally:
        if direct_fd >= 0:
            os.close(direct_fd)


def _open_direct(calls: OsCalls, fd: int) -> int:
    """-1: this filesystem has no direct reads."""
    try:
        return calls.reopen("open-direct", fd, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno in _CANNOT:
            return -1
        raise


def _read(calls: OsCalls, direct_fd: int, fd: int, view: memoryview, offset: int) -> int:
    if direct_fd >= 0:
        try:
            return calls.pread_into("scrub", direct_fd, view, offset)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
    return calls.pread_into("scrub", fd, view, offset)
