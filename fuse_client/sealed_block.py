"""Published bytes of one file version: immutable, verified, from the nearest place that has them.

The first source is used until it gives an error; then the next one is made. A source whose bytes are bad or gone is
reported, never asked again; with none left the read is EIO.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import trio

from ..common.checksums import CHUNK_BYTES
from ..common.errors import BlockCorrupt, HearthError, Unavailable
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from .chunks import ChunkSource, VerifiedChunks

log = get_logger(__name__)


class Source(ChunkSource, Protocol):
    worker_id: str

    @property
    def local_fd(self) -> int | None: ...

    def close(self) -> None: ...


NextSource = Callable[[], Awaitable[Source | None]]
Report = Callable[[BlockKey, str, HearthError], None]


class SealedBlock:
    """Bytes ``[0, length_bytes)`` of a committed block.

    Args:
        next_source: gives the best source not tried yet, None when there is none.
        report: told of each source that had wrong bytes.
        source: the first one, when it is at hand.
    """

    def __init__(
        self,
        key: BlockKey,
        length_bytes: int,
        chunks: VerifiedChunks,
        next_source: NextSource,
        report: Report,
        source: Source | None = None,
    ) -> None:
        self.key = key
        self.length_bytes = length_bytes
        self.synced = True  # as far as this mount knows: false after a commit without sync
        self.written_at = ""  # address of the worker elsewhere to which this mount sent it
        self._chunks = chunks
        self._next_source = next_source
        self._report = report
        self._source = source
        self._opening = trio.Lock()
        self._retired: list[Source] = []
        self._readers = 0
        self._closed = False
        self.broken = False  # the last source failed: whoever opens the file next should ask the master again

    @property
    def local_fd(self) -> int | None:
        """Of the block's file on this node, when that is where the bytes come from."""
        return None if self._source is None else self._source.local_fd

    def rest(self) -> None:
        """Nobody has the file open: its block may be evicted, although the descriptor is kept for the next open."""
        if self.local_fd is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self.local_fd, fcntl.LOCK_UN)

    def wake(self) -> bool:
        """Somebody opens the file again. False: another mount writes into the block's file now."""
        if self.local_fd is None:
            return True
        try:
            fcntl.flock(self.local_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a disk without locks
            return True
        return True

    async def verify(self) -> None:
        """Reads all of the block once, so that its bytes are known to be right now.

        Raises:
            HearthError: no source has good bytes.
        """
        for offset in range(0, self.length_bytes, CHUNK_BYTES):
            await self.read(offset, min(CHUNK_BYTES, self.length_bytes - offset))
            await trio.lowlevel.checkpoint()  # others get their turn also when all comes from the page cache

    async def prepare(self) -> None:
        """Makes sure that the bytes are within reach and stay so.

        Raises:
            HearthError: nobody has them.
        """
        if self._source is None:
            await self._replace(None)

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Exactly these bytes, which lie inside the block; good until the caller's next ``await``.

        Raises:
            HearthError: no source has good bytes.
        """
        self._readers += 1
        try:
            while True:
                source = self._source
                if source is None:
                    await self._replace(None)
                    continue
                try:
                    return await self._chunks.read(source, offset, size)
                except HearthError as error:
                    await self._failed(source, error)
                except OSError as error:
                    await self._failed(source, Unavailable(f"block {self.key}: {error.strerror}"))
        finally:
            self._readers -= 1
            self._close_when_unused()

    async def _failed(self, source: Source, error: HearthError) -> None:
        log.error("block-read-failed", block=str(self.key), worker=source.worker_id, reason=str(error))
        if isinstance(error, BlockCorrupt):
            self._report(self.key, source.worker_id, error)
        await self._replace(source)

    async def _replace(self, failed: Source | None) -> None:
        async with self._opening:
            if self._source is not failed:
                return
            fresh = await self._next_source()
            if fresh is None:
                self.broken = True
                raise Unavailable(f"block {self.key}: no worker has good bytes of it")
            self._source = fresh
            if failed is not None:
                self._retired.append(failed)

    def close(self) -> None:
        """Lets the bytes go once nobody reads them: a descriptor that is closed under a reader may be another file."""
        self._closed = True
        self._close_when_unused()

    def _close_when_unused(self) -> None:
        if self._readers:
            return
        unused, self._retired = self._retired, []
        if self._closed and self._source is not None:
            unused.append(self._source)
            self._source = None
        for source in unused:
            self._chunks.drop(source.identity)
            source.close()


def in_turn(sources: AsyncIterator[Source]) -> NextSource:
    """``next_source`` from an asynchronous generator."""

    async def next_source() -> Source | None:
        return await anext(sources, None)

    return next_source
