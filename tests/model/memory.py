"""A shared mapping without a descriptor of its own (Python's ``mmap`` keeps one), and without SIGBUS.

Bytes are moved by read(2) and write(2) between the mapping and an anonymous file, so that a page which cannot be had is
EFAULT for this process, not its end.
"""

from __future__ import annotations

import ctypes
import mmap
import os

MS_SYNC = 4
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.pread.argtypes = _libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
_libc.pread.restype = _libc.pwrite.restype = ctypes.c_ssize_t
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]


def check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def rename2(old: str, new: str, flags: int) -> None:
    check(_libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags))


class Mapping:
    """MAP_SHARED from offset 0. Raises OSError, as all methods do."""

    def __init__(self, fd: int, length: int, *, writable: bool) -> None:
        self.length = length
        self.writable = writable
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, length, protection, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            check(-1)
        self._address = address

    def load(self, offset: int, size: int) -> bytes:
        passage = os.memfd_create("load")
        try:
            done = check(_libc.pwrite(passage, self._address + offset, size, 0))
            return os.pread(passage, done, 0)
        finally:
            os.close(passage)

    def store(self, offset: int, data: bytes) -> int:
        passage = os.memfd_create("store")
        try:
            os.pwrite(passage, data, 0)
            return check(_libc.pread(passage, self._address + offset, len(data), 0))
        finally:
            os.close(passage)

    def sync(self) -> None:
        check(_libc.msync(self._address, self.length, MS_SYNC))

    def close(self) -> None:
        check(_libc.munmap(self._address, self.length))
