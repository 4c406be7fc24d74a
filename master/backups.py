"""Hot backups: one snapshot's data file as a stream, while commits go on.

A thread writes LMDB's own compacting copy into a pipe, the loop reads it and sends it on. Whatever ends the stream
closes the pipe, and that ends the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

import xxhash

from ..common.errors import Busy, Unavailable
from . import journal
from .tables import Reader

MAX_S = 3600.0
"""The snapshot keeps the data file growing as long as it is open."""
PIECE_BYTES = 1 << 20
T = TypeVar("T")


class Source(Protocol):
    def copy_to(self, fd: int, look: Callable[[Reader], T]) -> T:
        """As ``LmdbStore.copy_to``."""

    def used_bytes(self) -> int:
        """As ``LmdbStore.used_bytes``."""


class Made(NamedTuple):
    size_bytes: int
    digest: int  # xxh3-64 of all bytes
    journal_sequence: int


class Backups:
    """One at a time. Everything but the copying runs in the loop's thread."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="backup")
        self._copying: asyncio.Future[int] | None = None
        self._busy = False
        self._pipe: asyncio.BaseTransport | None = None
        self._closed = False

    def expected_bytes(self) -> int:
        """About how long the file would be."""
        return self._source.used_bytes()

    async def serve(self, send: Callable[[bytes], Awaitable[None]]) -> Made:
        """Sends the bytes of the file in pieces of at most 1 MiB, and says what they were.

        Raises:
            Busy: another backup is being made.
            TimeoutError: it took longer than ``MAX_S``.
            Unavailable: the master stops.
            DataDamaged: of the store.
        """
        if self._closed:
            raise Unavailable("the master is stopping")
        if self._busy:
            raise Busy("another backup is being made; try again when it is done")
        self._busy = True
        try:
            async with asyncio.timeout(MAX_S):
                reader, copying = await self._begin()
                size_bytes, digest = 0, xxhash.xxh3_64()
                while piece := await _read(reader):
                    size_bytes += len(piece)
                    digest.update(piece)
                    await send(piece)
                if self._closed:
                    raise Unavailable("the master is stopping")
                return Made(size_bytes, digest.intdigest(), await asyncio.shield(copying))
        finally:
            if self._pipe is not None:
                self._pipe.close()  # a thread that still writes gets EPIPE
                self._pipe = None
            self._busy = self._copying is not None

    async def _begin(self) -> tuple[asyncio.StreamReader, asyncio.Future[int]]:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):  # over a user's limit for pipes: it stays small
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
        reader = asyncio.StreamReader(PIECE_BYTES, loop=loop)
        pipe = os.fdopen(reading, "rb", buffering=0)
        try:
            self._pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        except BaseException:
            pipe.close()
            os.close(writing)
            raise
        copying = self._copying = loop.run_in_executor(self._executor, self._copy, writing)
        copying.add_done_callback(self._ended)
        return reader, copying

    def _copy(self, fd: int) -> int:
        """In the thread: the number of the last journal record in the copy."""
        try:
            return self._source.copy_to(fd, journal.last_number)
        finally:
            os.close(fd)

    def _ended(self, copying: asyncio.Future[int]) -> None:
        self._copying = None
        self._busy = self._pipe is not None
        if not copying.cancelled():
            copying.exception()  # whoever waits for it raises it; if nobody does, the stream was cut

    def close(self) -> None:
        """Cuts the stream that there may be."""
        self._closed = True
        if self._pipe is not None:
            self._pipe.close()

    async def stop(self, timeout_s: float) -> bool:
        """Whether the thread has ended: not before may the store be closed."""
        self.close()
        if self._copying is not None:
            await asyncio.wait([self._copying], timeout=timeout_s)
        self._executor.shutdown(wait=self._copying is None)
        return self._copying is None


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next piece; empty at the end."""
    try:
        return await reader.readexactly(PIECE_BYTES)
    except asyncio.IncompleteReadError as error:
        return error.partial
