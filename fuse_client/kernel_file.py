"""A file that the kernel has as the backing of open handles (passthrough): it writes there without telling us.

Laws:

- It is made for a descriptor that only writes, and so cannot map it. What is written shows in its length and time.
- Others may join, and map it: a mapping changes a file without changing its time, and outlives its descriptor without
  telling anybody. So after one joined that reads and writes, the bytes themselves are compared and each version is a
  copy; after anybody joined, the file is neither emptied nor used again.
- While programs may write into it our descriptor holds an exclusive lock on the file, and it goes to the kernel with
  the descriptor: a worker gives the file to nobody then. Whoever wants the block gets a copy of what was committed.
- Its own block may be published once, as it is; the next version is a copy, and then the file is private.
"""

from __future__ import annotations

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
        fine_time: the file's time shows every change, but those by a mapping.
        cached: what is written into it goes through the page cache.

    Attributes:
        shared: others than its first writer had it open; they may have it mapped.
        mappable: some of them can write by a mapping.
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
        fine_time: bool,
        cached: bool,
    ) -> None:
        super().__init__(key, fd, worker_id=worker_id, address=address, limit_bytes=limit_bytes, local=local)
        self._fine_time = fine_time
        self._cached = cached
        self.shared = self.mappable = False
        self.private = False
        self.committed = False
        self.packed = b""
        self.published = False
        self.synced = False
        self.parted = False
        self.digest = 0
        self.seen = self.look()

    @classmethod
    def of(cls, working: WorkingFile, *, fine_time: bool, cached: bool) -> KernelFile:
        """Takes the descriptor over from an empty working file.

        Raises:
            OSError: the file cannot be locked; ``working`` is as it was.
        """
        lock_alone(working.fd, working.key)
        return cls(
            working.key,
            working.fd,
            worker_id=working.worker_id,
            address=working.address,
            limit_bytes=working.limit_bytes,
            local=working.local,
            fine_time=fine_time,
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
    def tells(self) -> bool:
        """Every change shows in the file's status."""
        return self._fine_time and not self.mappable

    def join(self, access: int) -> None:
        """Another descriptor is opened, with this access mode (O_RDONLY...)."""
        self.shared = True
        if access == os.O_RDWR:
            self.private = self.mappable = True

    def set_mtime(self, mtime_ns: int) -> None:
        """What a program says it is; no change of the content."""
        clean = not self.changed
        os.utime(self.fd, ns=(mtime_ns, mtime_ns))
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
        """Not what others may have, or have mapped."""
        if not (self.committed or self.shared):
            super().empty()

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
    """Packed checksums of a file."""
    return _hash_mapped(fd, length_bytes) if cached else of_file(fd, length_bytes)


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
