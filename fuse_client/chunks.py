"""Verified chunks of sealed blocks, in buffers that are used again and again.

Laws:

- No byte leaves here that was not checked against its chunk's checksum.
- A reader that wants a whole chunk gets it and it is forgotten: its buffer is the next one to be filled, still warm in
  the processor's cache. A reader of a part leaves the chunk here for the reader of the next part.
- A returned view is good until the caller's next ``await``: the reply is written before that.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from typing import Protocol

import trio

from ..common.checksums import CHUNK_BYTES, Verifier, read_exactly

RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class ChunkSource(Protocol):
    """Where the bytes of one sealed block come from. ``identity`` is unique per source object."""

    identity: int
    length_bytes: int

    def try_load(self, start: int, view: memoryview) -> bool:
        """Fills ``view`` with verified bytes if that needs no waiting; False otherwise.

        Raises:
            BlockCorrupt: they do not match.
        """

    async def load(self, start: int, view: memoryview) -> None:
        """The same, waiting as long as it takes.

        Raises:
            HearthError: no good bytes from here.
        """


class LocalFile:
    """A block file on this node, by its descriptor, which it owns."""

    def __init__(self, identity: int, fd: int, length_bytes: int, verifier: Verifier) -> None:
        self.identity = identity
        self.length_bytes = length_bytes
        self._fd = fd
        self._verifier = verifier

    @property
    def fd(self) -> int:
        return self._fd

    def try_load(self, start: int, view: memoryview) -> bool:
        try:
            got = os.preadv(self._fd, [view], start, RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return False
            raise
        if got != len(view):
            return False
        self._verifier.check(start, view)
        return True

    async def load(self, start: int, view: memoryview) -> None:
        def blocking() -> None:
            read_exactly(self._fd, start, view)
            self._verifier.check(start, view)

        await trio.to_thread.run_sync(blocking)

    def close(self) -> None:
        os.close(self._fd)


class _Chunk:
    __slots__ = ("buffer", "pins", "ready")

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self.pins = 0
        self.ready: trio.Event | None = None


class VerifiedChunks:
    """At most ``limit`` chunks are kept; more exist only while requests are being answered from them."""

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._chunks: OrderedDict[tuple[int, int], _Chunk] = OrderedDict()
        self._free: list[bytearray] = []
        self.loads = 0
        self.hits = 0

    async def read(self, source: ChunkSource, offset: int, size: int) -> bytes | memoryview:
        """Bytes ``[offset, offset + size)``, which lie inside the block.

        Raises:
            HearthError: no good bytes from this source.
        """
        first, within = divmod(offset, CHUNK_BYTES)
        if within + size <= CHUNK_BYTES:
            return await self._part(source, first, within, size)
        result = bytearray(size)
        done = 0
        while done < size:
            index, within = divmod(offset + done, CHUNK_BYTES)
            step = min(size - done, CHUNK_BYTES - within)
            result[done : done + step] = await self._part(source, index, within, step)
            done += step
        return memoryview(result)

    async def _part(self, source: ChunkSource, index: int, within: int, size: int) -> memoryview:
        key = (source.identity, index)
        chunk = self._chunks.get(key)
        if chunk is None:
            return await self._load(source, index, within, size)
        self.hits += 1
        if chunk.ready is not None:
            chunk.pins += 1
            try:
                await chunk.ready.wait()
            finally:
                chunk.pins -= 1
            if self._chunks.get(key) is not chunk:  # the loader failed: see for ourselves
                return await self._load(source, index, within, size)
        self._chunks.move_to_end(key)
        return memoryview(chunk.buffer)[within : within + size]

    async def _load(self, source: ChunkSource, index: int, within: int, size: int) -> memoryview:
        start = index * CHUNK_BYTES
        chunk_size = min(CHUNK_BYTES, source.length_bytes - start)
        self.loads += 1
        buffer = self._free.pop() if self._free else bytearray(CHUNK_BYTES)
        chunk = _Chunk(buffer)
        view = memoryview(buffer)[:chunk_size]
        whole = size == chunk_size
        key = (source.identity, index)
        try:
            if not source.try_load(start, view):
                if not whole:
                    chunk.ready = trio.Event()
                    self._chunks[key] = chunk
                try:
                    await source.load(start, view)
                finally:
                    if chunk.ready is not None:
                        chunk.ready.set()
                        chunk.ready = None
        except BaseException:
            if self._chunks.get(key) is chunk:
                del self._chunks[key]
            raise
        if whole:
            self._give_back(buffer)
        else:
            self._chunks[key] = chunk
            self._evict()
        return view[within : within + size]

    def _evict(self) -> None:
        for key, chunk in list(self._chunks.items()) if len(self._chunks) > self._limit else []:
            if len(self._chunks) <= self._limit:
                return
            if not chunk.pins and chunk.ready is None:
                del self._chunks[key]
                self._give_back(chunk.buffer)

    def _give_back(self, buffer: bytearray) -> None:
        if len(self._free) < self._limit:
            self._free.append(buffer)

    def drop(self, identity: int) -> None:
        """Forgets the chunks of a source that is closed."""
        for key in [key for key in self._chunks if key[0] == identity]:
            self._give_back(self._chunks.pop(key).buffer)
