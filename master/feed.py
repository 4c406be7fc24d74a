"""The journal as others read it: pages of stored records, up to the newest, or on and on as commits come.

No snapshot is held while a page is on its way, so a slow reader costs nothing but its place; if it is slower than the
retention, it is told that records are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..common.errors import Busy, Unavailable
from . import journal
from .tables import Store

READERS_MAX = 32

Send = Callable[[list[journal.Stored]], Awaitable[None]]


class Feed:
    """Everything runs in the loop's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers = 0
        self._progress = asyncio.Event()
        self._closed = False

    def committed(self, _: object = None) -> None:
        """There may be new records."""
        self._progress.set()
        self._progress = asyncio.Event()

    def close(self) -> None:
        """Ends all that follow."""
        self._closed = True
        self.committed()

    async def serve(self, send: Send, after: int, newest: int = 0, *, follow: bool = False) -> None:
        """Sends the records above ``after`` (or the ``newest`` so many) in pages; returns unless it follows.

        Raises:
            Busy: too many read already.
            Unavailable: the master stops.
            NotFound, InvalidArgument, DataDamaged: as ``journal.page``.
        """
        if self._readers >= READERS_MAX:
            raise Busy(f"{self._readers} read the journal already; try again")
        self._readers += 1
        try:
            await self._serve(send, after, newest, follow)
        finally:
            self._readers -= 1

    async def _serve(self, send: Send, after: int, newest: int, follow: bool) -> None:
        with self._store.snapshot() as reader:
            end = journal.last_number(reader)
            if newest:
                oldest = journal.oldest_number(reader) or end + 1
                after = max(end - newest, oldest - 1)
        while not self._closed:
            progress = self._progress
            with self._store.snapshot() as reader:
                if follow:
                    end = journal.last_number(reader)
                page = journal.page(reader, after, end)
            if page:
                await send(page)
                after = page[-1].number
            elif follow:
                await progress.wait()
            else:
                return
        raise Unavailable("the master is stopping")
