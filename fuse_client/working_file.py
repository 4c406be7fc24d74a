"""A block that is being written: its descriptor, how far it goes, its checksums so far. No master, no worker."""

from __future__ import annotations

import contextlib
import os
import time

import trio

from ..common.checksums import Accumulator, digest
from ..common.types import BlockKey

SLOW_WRITE_S = 0.05
SLOW_FOR_S = 5.0


class WorkingFile:
    """Owns ``fd``, which is read-write.

    Args:
        worker_id: where the block was allocated.
        address: of that worker.
        limit_bytes: the block may grow to here now; 0: no limit is known.
        local: ``fd`` is the block's own file on this node's worker; else a temporary file that is sent at commit.
    """

    by_kernel = False
    private = False
    published = False
    shared = False

    def __init__(
        self,
        key: BlockKey,
        fd: int,
        *,
        worker_id: str,
        address: str,
        limit_bytes: int,
        local: bool,
        length_bytes: int = 0,
    ) -> None:
        self.key = key
        self.fd = fd
        self.worker_id = worker_id
        self.address = address
        self.limit_bytes = limit_bytes
        self.local = local
        self._length_bytes = length_bytes
        self._accumulator = Accumulator()
        self._in_order = not length_bytes  # every byte was hashed as it passed
        self._slow_until = 0.0

    @property
    def length_bytes(self) -> int:
        return self._length_bytes

    async def write(self, offset: int, data: bytes) -> None:
        """Buffered, on this thread while the disk keeps up: a hop to another costs more than the copy. Once a write had
        to wait (dirty pages over the limit), the next seconds' writes hop, so that a slow disk stops only its writers.

        Raises:
            OSError: the disk's.
        """
        begin = time.monotonic()
        try:
            if begin < self._slow_until:
                await trio.to_thread.run_sync(_write_all, self.fd, offset, data)
            else:
                _write_all(self.fd, offset, data)
        except OSError:
            self._forget_part()
            raise
        end = time.monotonic()
        if begin >= self._slow_until and end - begin > SLOW_WRITE_S:
            self._slow_until = end + SLOW_FOR_S
        self._in_order = self._in_order and offset == self.length_bytes
        self._accumulator.update(offset, data)
        self._length_bytes = max(self._length_bytes, offset + len(data))

    def _forget_part(self) -> None:
        """A write failed somewhere: what it left beyond the end goes, what it left before is read back later."""
        self._accumulator, self._in_order = Accumulator(), False
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, self.length_bytes)

    def empty(self) -> None:
        """Gives its room back at once; for a file that nobody needs any more."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)

    def truncate(self, length_bytes: int) -> None:
        """Cuts the file to at most this length; what is beyond reads as zeros."""
        if length_bytes < self.length_bytes:
            os.ftruncate(self.fd, length_bytes)
            self._accumulator.truncate(length_bytes)
            self._in_order = False
            self._length_bytes = length_bytes

    def read_into(self, offset: int, view: memoryview) -> int:
        """As many bytes as there are; the caller fills up with zeros."""
        done = 0
        while done < len(view):
            got = os.preadv(self.fd, [view[done:]], offset + done)
            if not got:
                break
            done += got
        return done

    async def checksums(self) -> tuple[bytes, int]:
        """(packed list, digest) of the content now. Chunks that were not written in order are read back, elsewhere than
        on this thread."""

        def finish() -> bytes:
            return self._accumulator.finish(self.length_bytes, self._pread)

        packed = finish() if self._in_order else await trio.to_thread.run_sync(finish)
        return packed, digest(packed, self.length_bytes)

    def _pread(self, offset: int, size: int) -> memoryview:
        buffer = memoryview(bytearray(size))
        return buffer[: self.read_into(offset, buffer)]

    def close(self) -> None:
        os.close(self.fd)


def _write_all(fd: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]
