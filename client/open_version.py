"""One version of one file, open for reading: any range of it, every byte verified.

Small reads share the chunk that was read and verified last; whole chunks go straight into the caller's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from ..common.checksums import CHUNK_BYTES
from ..common.errors import BlockCorrupt, BlockMissing, HearthError, Stale
from .deadline import Deadline
from .layout import Piece, Version, pieces, present_bytes
from .reader import LocalBlock, Reader
from .workers import Lost


class Hold(Protocol):
    def close(self) -> None: ...


_ZEROS = memoryview(bytes(CHUNK_BYTES))


class OpenVersion:
    """Thread-safe. ``hold`` keeps the version's bytes, whatever becomes of the name: the local descriptor itself, or a
    lease at another worker. ``close`` closes it; without one the bytes may go at any time. ``bad``: workers whose
    replica is known to be of no use."""

    def __init__(
        self,
        reader: Reader,
        version: Version,
        local: LocalBlock | None = None,
        hold: Hold | None = None,
        bad: Iterable[str] = (),
    ) -> None:
        self._reader = reader
        self._version = version
        self._local = local
        self._hold = hold
        self._bad = set(bad)
        self._cache = bytearray()
        self._cache_start = -1
        self._cache_lock = threading.Lock()

    @property
    def version(self) -> Version:
        return self._version

    def read(self, offset: int, view: memoryview, deadline: Deadline) -> int:
        """Fills ``view`` from ``offset`` and returns how many bytes there were: fewer only at the end of the file.

        Raises:
            BlockCorrupt, BlockMissing, Unavailable, DeadlineExceeded, Stale: nothing in ``view`` is to be used then.
        """
        version = self._version
        in_file, in_block = present_bytes(version, offset, len(view))
        for piece in pieces(offset, in_block, version.length_bytes):
            part = view[piece.into : piece.into + piece.take]
            if piece.direct:
                self._chunks(piece.start, part, deadline)
            else:
                self._through_cache(piece, part, deadline)
        fill_zeros(view[in_block:in_file])
        return in_file

    def _through_cache(self, piece: Piece, part: memoryview, deadline: Deadline) -> None:
        with self._cache_lock:
            if self._cache_start != piece.start:
                self._cache_start = -1
                if len(self._cache) != piece.size:
                    self._cache = bytearray(piece.size)
                with memoryview(self._cache) as cache:
                    self._chunks(piece.start, cache, deadline)
                self._cache_start = piece.start
            part[:] = memoryview(self._cache)[piece.skip : piece.skip + piece.take]

    def _chunks(self, start: int, view: memoryview, deadline: Deadline) -> None:
        local = self._local
        if local is not None:
            try:
                local.read(start, view)
                return
            except BlockCorrupt as error:
                self._give_up_local(local, error)
        if not self._reader.is_answered(self._version, self._bad):
            self._find_more_replicas(deadline)
        try:
            self._reader.fetch(self._version, start, view, deadline, self._bad, patient=False)
        except (BlockCorrupt, BlockMissing, *Lost) as error:
            # A batch is told of one replica of each file only. With no other, the one that did not answer may be slow.
            if not self._find_more_replicas(deadline) and not isinstance(error, Lost):
                raise
            try:
                self._reader.fetch(self._version, start, view, deadline, self._bad)
            except HearthError:
                raise error from None

    def _give_up_local(self, local: LocalBlock, error: HearthError) -> None:
        # The descriptor stays open: another thread may be reading with it.
        if self._local is local:
            self._local = None
            worker_id = self._reader.local_worker_id()
            self._bad.add(worker_id)
            self._reader.report(self._version, worker_id, error)

    def _find_more_replicas(self, deadline: Deadline) -> bool:
        try:
            now = self._reader.refresh(self._version, deadline)
        except HearthError:
            return False  # the name is gone too, or the master: what went wrong first is what counts
        if now is None:
            return False
        if now.key != self._version.key:
            raise Stale(f"{self._version.what}: another version took its place and no replica of this one is left")
        self._version = now
        return True

    def close(self) -> None:
        if self._hold is not None:
            self._hold.close()
        self._local = self._hold = None
        self._cache = bytearray()
        self._cache_start = -1


def fill_zeros(view: memoryview) -> None:
    for at in range(0, len(view), CHUNK_BYTES):
        part = view[at : at + CHUNK_BYTES]
        part[:] = _ZEROS[: len(part)]
