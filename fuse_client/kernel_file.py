"""A file that the kernel has as the backing of open handles (passthrough): it writes there without telling us.

Laws:

- What we know of it comes from its status: length, time, and that somebody may have it mapped. A mapping changes a file
  without changing its time, so where one was possible the bytes themselves are compared.
- While programs may write into it our descriptor holds an exclusive lock on the file, and it goes to the kernel with
  the descriptor: a worker gives the file to nobody then. Whoever wants the block gets a copy of what was committed.
- Its own block may be published once, as it is; the next version is a copy, and then the file is private.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import NamedTuple

import trio

from ..common.checksums import CHUNK_BYTES, checksum, digest, of_file, pack
from ..common.errors import Busy
from ..common.types import BlockKey
from .working_file import WorkingFile

MAP_BYTES = 64 << 20


class Look(NamedTuple):
    """What shows that a file was written."""

    length_bytes: int
    mtime_ns: int


class KernelFile(WorkingFile):
    """Owns ``fd``. ``of`` makes one from a working file.

    Args:
        tells: the file's status shows every change: its time is fine enough, and a mapping shows in its access time.
        cached: what is written into it goes through the page cache.

    Attributes:
        private: its own block is not to be committed (any more); each version is a copy.
        committed: its own block was, perhaps.
        packed: checksums of the bytes as they were last taken.
        published: its own block is the file's published content, unless another version followed.
        synced: its block was committed with fsync.
        parted: the published block has another file by now; this one is ours alone.
        seen: how the file looked when its bytes were last taken.
        digest: of those bytes.

    Raises:
        Busy: somebody else holds a lock on the file.
    """

    by_kernel = True

    def __init__(
        self,
        key: BlockKey,
        fd: int,
        *,
        worker_id: str,
        address: str,
        limit_bytes: int,
        local: bool,
        tells: bool,
        cached: bool,
    ) -> None:
        super().__init__(key, fd, worker_id=worker_id, address=address, limit_bytes=limit_bytes, local=local)
        self._tells = tells
        self._cached = cached
        self.private = False
        self.committed = False
        self.packed = b""
        self.published = False
        self.synced = False
        self.parted = False
        self.digest = 0
        self.seen = self.look()

    @classmethod
    def of(cls, working: WorkingFile, *, tells: bool, cached: bool) -> KernelFile:
        """Takes the descriptor over from an empty working file.

        Raises:
            OSError: the file cannot be locked or its time not be set; ``working`` is as it was.
        """
        lock_alone(working.fd, working.key)
        os.utime(working.fd, ns=(0, os.fstat(working.fd).st_mtime_ns))  # an access shows: see ``may_be_mapped``
        return cls(
            working.key,
            working.fd,
            worker_id=working.worker_id,
            address=working.address,
            limit_bytes=working.limit_bytes,
            local=working.local,
            tells=tells,
            cached=cached,
        )

    @property
    def length_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def look(self) -> Look:
        status = os.fstat(self.fd)
        return Look(status.st_size, status.st_mtime_ns)

    @property
    def changed(self) -> bool:
        """Written since ``seen``, as far as the file's time tells."""
        return self.look() != self.seen

    @property
    def may_be_mapped(self) -> bool:
        """Somebody read the file or mapped it, which is the same to its access time; or that time does not tell."""
        return not self._tells or os.fstat(self.fd).st_atime_ns != 0

    def set_mtime(self, mtime_ns: int) -> None:
        """What a program says it is; no change of the content."""
        clean = not self.changed
        os.utime(self.fd, ns=(os.fstat(self.fd).st_atime_ns, mtime_ns))
        if clean:
            self.seen = self.look()

    async def write(self, offset: int, data: bytes) -> None:
        """For a handle that the kernel did not take."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written

    def truncate(self, length_bytes: int) -> None:
        """Also to a greater length: the kernel goes by the file's."""
        os.ftruncate(self.fd, length_bytes)

    def empty(self) -> None:
        """Not what others may have by now."""
        if self.committed:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)

    async def checksums(self) -> tuple[bytes, int]:
        """(packed list, digest) of what is in the file now; ``seen`` is how it looked before it was read."""
        seen = self.look()
        self.packed = await self._hash(seen.length_bytes)
        self.seen, self.digest = seen, digest(self.packed, seen.length_bytes)
        return self.packed, self.digest

    async def same_bytes(self) -> bool:
        """Whether the bytes are those that ``digest`` is of."""
        length = self.length_bytes
        return digest(await self._hash(length), length) == self.digest

    async def _hash(self, length_bytes: int) -> bytes:
        if not length_bytes:
            return b""
        return await trio.to_thread.run_sync(_hash, self.fd, length_bytes, self._cached)


def lock_alone(fd: int, key: BlockKey) -> None:
    """Raises Busy: others have the file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Busy(f"block {key}: others have its file: {error.strerror}") from None


def _hash(fd: int, length_bytes: int, cached: bool) -> bytes:
    """Packed checksums of a file, without touching its access time."""
    quiet = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NOATIME | os.O_CLOEXEC)
    try:
        return _hash_mapped(quiet, length_bytes) if cached else of_file(quiet, length_bytes)
    finally:
        os.close(quiet)


def _hash_mapped(fd: int, length_bytes: int) -> bytes:
    """Of a file that was just written: without copying it out of the page cache, twice the speed of reading. Not for
    others: a page that the disk does not give ends the process."""
    found = []
    for start in range(0, length_bytes, MAP_BYTES):
        size = min(MAP_BYTES, length_bytes - start)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        with mmap.mmap(fd, size, flags, mmap.PROT_READ, offset=start) as mapped, memoryview(mapped) as view:
            for at in range(0, size, CHUNK_BYTES):
                with view[at : at + CHUNK_BYTES] as chunk:
                    found.append(checksum(chunk))
    return pack(found)


def mapping_shows(fd: int) -> bool:
    """Whether a mapping shows in the access time of files on this filesystem (not with ``noatime``). ``fd`` is of an
    empty file, and writable."""
    os.utime(fd, ns=(0, os.fstat(fd).st_mtime_ns))
    os.ftruncate(fd, mmap.PAGESIZE)
    try:
        mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ).close()
        return os.fstat(fd).st_atime_ns != 0
    finally:
        os.ftruncate(fd, 0)
