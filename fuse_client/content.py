"""What an open file shows, shared by all its handles in this mount. Rules only: no master, no worker.

States, by (``sealed``, ``working``, ``dirty``):

====== ======= ===== ==============================================================================
sealed working dirty
====== ======= ===== ==============================================================================
no     no      no    nothing but ``size`` zeros, published
yes    no      no    published: the block's first ``valid`` bytes, then zeros
no     no      yes   created, or cut to 0 and perhaps extended, not published yet
no     yes     yes   being written: the working file's bytes, then zeros
no     yes     no    the kernel has the working file (``KernelFile``): published as it is now, and written on, perhaps
yes    no      yes   committed on its worker, not published yet (the master did not answer)
====== ======= ===== ==============================================================================

Laws: a sealed block never changes; writing makes a working file first. ``valid <= size``; what lies between reads as
zeros. ``writers`` are inside a write; a commit waits for them and keeps new ones out (``hold``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from ..common.types import BlockKey
from .kernel_file import KernelFile
from .sealed_block import SealedBlock
from .working_file import WorkingFile


class Committed(NamedTuple):
    """A block that its worker has made immutable and that the master does not know as published yet."""

    key: BlockKey
    length_bytes: int
    digest: int
    worker_id: str


class Content:
    def __init__(self, version: int, size: int, valid: int = 0, sealed: SealedBlock | None = None) -> None:
        self.version = version  # last published one that this content is, or grew from
        self.size = size
        self.valid = valid if sealed is not None else 0
        self.sealed = sealed
        self.working: WorkingFile | None = None
        self.committed: Committed | None = None
        self.dirty = False
        self.mtime_ns = 0  # of the last local change; 0: none
        self.error: OSError | None = None  # of the last publish that failed; fsync reports it once
        self.incomplete: OSError | None = None  # of the last write, when it failed: this is nobody's whole version
        self.writing = 0  # handles that may write
        self.lock = trio.Lock()  # opening, making a working file, publishing
        self._writers = 0
        self._quiet = trio.Event()
        self._held: trio.Event | None = None

    @property
    def kernel_file(self) -> KernelFile | None:
        """The working file, where the kernel writes it."""
        return self.working if isinstance(self.working, KernelFile) else None

    def look(self) -> None:
        """Takes length and time from a file that the kernel writes."""
        file = self.kernel_file
        if file is None:
            return
        look = file.look()
        self.size = look.length_bytes
        if look != file.seen:
            self.changed(look.mtime_ns)

    def changed(self, now_ns: int) -> None:
        self.dirty = True
        self.mtime_ns = now_ns

    def set_mtime(self, mtime_ns: int) -> None:
        """What close publishes if there is something to publish: `cp -p` sets it before it closes."""
        self.look()
        if self.kernel_file is not None:
            self.kernel_file.set_mtime(mtime_ns)
        if self.dirty:
            self.mtime_ns = mtime_ns

    def empty(self, now_ns: int) -> None:
        """O_TRUNC, truncate to 0. A sealed block is let go; the working file is cut and stays."""
        if self.sealed is not None:
            self.sealed.close()
            self.sealed = None
            self.committed = None
        if self.working is not None:
            self.working.truncate(0)
        self.size = self.valid = 0
        self.incomplete = None
        self.changed(now_ns)

    def resize(self, size: int, now_ns: int) -> None:
        """A change of length of content that is not sealed."""
        assert self.sealed is None
        if self.working is not None:
            self.working.truncate(size)
        self.size = size
        self.incomplete = None
        self.changed(now_ns)

    def published_size(self, size: int, version: int) -> None:
        """The master changed the length of published content, as we asked."""
        self.size = size
        self.valid = min(self.valid, size)
        self.version = version

    def wrote(self, offset: int, size: int, now_ns: int) -> None:
        self.size = max(self.size, offset + size)
        self.changed(now_ns)

    # -- reading

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """At most ``size`` bytes from ``offset``, fewer only at the end; good until the caller's next ``await``.

        Raises:
            HearthError: the bytes are nowhere.
        """
        self.look()
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        if self.working is not None:
            result = memoryview(bytearray(size))
            self.working.read_into(offset, result)
            return result
        if self.sealed is None or offset >= self.valid:
            return bytes(size)
        stored = min(size, self.valid - offset)
        data = await self.sealed.read(offset, stored)
        return data if stored == size else bytes(data) + bytes(size - stored)

    # -- writers and publishing keep out of each other's way

    async def begin_write(self) -> None:
        """Waits while a publish holds writers out. ``end_write`` follows, whatever happens."""
        while self._held is not None:
            await self._held.wait()
        self._writers += 1

    def end_write(self) -> None:
        self._writers -= 1
        if not self._writers:
            self._quiet.set()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """No write is in progress inside, none begins."""
        assert self._held is None, "the caller has the lock"
        self._held = trio.Event()
        try:
            while self._writers:
                self._quiet = trio.Event()
                await self._quiet.wait()
            yield
        finally:
            self._held.set()
            self._held = None

    def close(self) -> None:
        if self.sealed is not None:
            self.sealed.close()
            self.sealed = None
        if self.working is not None:
            self.working.close()
            self.working = None
