"""What the master has to be told about blocks: the changes since the last heartbeat that it answered, or all in pages.

Plain code without clock or network. Only the latest state of a block is kept, so an answer that was lost and a change
that was undone cost nothing: telling the same thing twice is harmless, telling an old thing after a new one never
happens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..common.types import BlockKey

PAGE_BLOCKS = 4096


class Report(NamedTuple):
    """One block as the master is told of it."""

    key: BlockKey
    length_bytes: int
    digest: int
    working: bool = False


class Batch(NamedTuple):
    """What one heartbeat carries."""

    added: tuple[Report, ...]
    removed: tuple[BlockKey, ...]
    stamps: dict[BlockKey, int]


class Page(NamedTuple):
    start: bool
    end: bool
    blocks: list[Report]


class Changes:
    """Thread-safe.

    Attributes:
        overflowed: too much changed while the master was away; only a full report helps.
    """

    def __init__(self, limit: int = 1 << 18) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._pending: dict[BlockKey, tuple[int, Report | None]] = {}
        self._stamp = 0
        self.overflowed = False

    def note(self, key: BlockKey, report: Report | None) -> None:
        """The block is as ``report`` says, or (None) not here any more."""
        with self._lock:
            self._stamp += 1
            self._pending.pop(key, None)
            if len(self._pending) >= self._limit:
                self.overflowed = True
                self._pending.clear()
            self._pending[key] = (self._stamp, report)

    def take(self, limit: int = PAGE_BLOCKS) -> Batch:
        """The oldest changes. They stay pending until ``acknowledge``."""
        with self._lock:
            chosen = [(key, *self._pending[key]) for key, _ in zip(self._pending, range(limit), strict=False)]
        return Batch(
            added=tuple(report for _, _, report in chosen if report is not None),
            removed=tuple(key for key, _, report in chosen if report is None),
            stamps={key: stamp for key, stamp, _ in chosen},
        )

    def acknowledge(self, batch: Batch) -> None:
        """The master has the batch. What changed again since ``take`` stays."""
        with self._lock:
            for key, stamp in batch.stamps.items():
                if key in self._pending and self._pending[key][0] == stamp:
                    del self._pending[key]

    def begin_full_report(self) -> None:
        """A full report starts now and tells everything known so far. Changes stay pending all the same: one that
        comes while the pages are on their way may not be on its page, and telling it again is harmless."""
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._pending)


def pages(reports: Iterable[Report], size: int = PAGE_BLOCKS) -> Iterator[Page]:
    """Cuts reports in ascending order of key into pages: at least one, the first starts, the last ends.

    >>> [(page.start, page.end, len(page.blocks)) for page in pages([])]
    [(True, True, 0)]
    """
    start = True
    held: list[Report] = []
    for report in reports:
        if len(held) == size:
            yield Page(start, False, held)
            start, held = False, []
        held.append(report)
    yield Page(start, True, held)
