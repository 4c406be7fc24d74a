"""Fills a new block with a verified copy of another one."""

from __future__ import annotations

import errno
import os

from ..common import checksums
from ..common.errors import BlockCorrupt
from .os_calls import OsCalls

_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EBADF}
STEP_BYTES = 16 << 20


def copy_file(calls: OsCalls, source_fd: int, fd: int, length_bytes: int, source_bytes: int) -> str:
    """Copies the first ``length_bytes`` of a file of ``source_bytes`` to an empty one; says how: "reflink", "kernel"
    or "bytes".

    Raises:
        OSError: no space, or a disk that fails.
    """
    if length_bytes == 0:
        return "bytes"
    try:
        calls.clone("clone", source_fd, fd)
        if length_bytes != source_bytes:
            calls.ftruncate("clone", fd, length_bytes)
        return "reflink"
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    done = 0
    try:
        while done < length_bytes:
            step = calls.copy_range("copy-range", source_fd, fd, min(STEP_BYTES, length_bytes - done), done)
            if step == 0:
                break
            done += step
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    if done == length_bytes:
        return "kernel"
    for offset in range(done, length_bytes, checksums.CHUNK_BYTES):
        data = calls.pread("copy-read", source_fd, min(checksums.CHUNK_BYTES, length_bytes - offset), offset)
        calls.pwrite("copy-write", fd, data, offset)
    return "bytes"


def verify_file(calls: OsCalls, fd: int, length_bytes: int, packed: bytes, what: str) -> None:
    """Reads a whole file and checks it.

    Raises:
        BlockCorrupt: it is shorter, or a chunk differs.
        OSError: the disk does not work.
    """
    verifier = checksums.Verifier(packed, length_bytes, 0, what)
    for offset in range(0, length_bytes, checksums.CHUNK_BYTES):
        verifier.check(offset, calls.pread("verify", fd, min(checksums.CHUNK_BYTES, length_bytes - offset), offset))
    if not length_bytes and os.fstat(fd).st_size:
        raise BlockCorrupt(f"{what}: has bytes, but should be empty")
