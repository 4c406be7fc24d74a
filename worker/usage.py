"""What the master's eviction wants to know of this worker: which blocks were read, and when room gets short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ..common.clock import Clock

READS_MAX = 65_536
ALARM_PAUSE_S = 0.1
"""Room that stays short is told at least so far apart; the heartbeats tell it anyway."""


class ReadBlocks:
    """Blocks that were opened since the last heartbeat, each once. Thread-safe.

    >>> reads = ReadBlocks()
    >>> reads.note([1, 2, 1])
    >>> taken = reads.take()
    >>> reads.note([3])
    >>> reads.acknowledge(taken)
    >>> sorted(taken), sorted(reads.take())
    ([1, 2], [3])
    """

    def __init__(self, limit: int = READS_MAX) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._blocks: set[int] = set()

    def note(self, blocks: Iterable[int]) -> None:
        """Beyond the limit none is noted: that many say enough."""
        with self._lock:
            if len(self._blocks) < self._limit:
                self._blocks.update(blocks)

    def take(self) -> frozenset[int]:
        """They stay until ``acknowledge``."""
        with self._lock:
            return frozenset(self._blocks)

    def acknowledge(self, taken: frozenset[int]) -> None:
        with self._lock:
            self._blocks -= taken


class Room:
    """What to do when less than the reserve is left: say so at once, not with the next heartbeat, and let who wants to
    write wait a moment, if the master can make room. Thread-safe.

    Args:
        available: how many bytes writers can still get.
        tell: sends a heartbeat soon.
        wait_s: so long a writer waits at most.
    """

    def __init__(self, available: Callable[[], int], clock: Clock, tell: Callable[[], None], wait_s: float) -> None:
        self._available = available
        self._clock = clock
        self._tell = tell
        self._wait_s = wait_s
        self._reserve_bytes = 0
        self._made = False
        self._told_s = float("-inf")
        self._changed = threading.Condition()

    def set(self, reserve_bytes: int, *, made: bool) -> None:
        """As the master says: its heartbeat's answer. ``made``: it can make room."""
        with self._changed:
            self._reserve_bytes, self._made = reserve_bytes, made
            self._changed.notify_all()

    def freed(self) -> None:
        """Blocks were deleted."""
        with self._changed:
            self._changed.notify_all()

    @property
    def is_short(self) -> bool:
        return bool(self._reserve_bytes) and self._available() < self._reserve_bytes

    def look(self) -> bool:
        """Whenever room was given to somebody or used up. Whether it is short."""
        if not self.is_short:
            return False
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s >= ALARM_PAUSE_S:
            self._told_s = now_s
            self._tell()
        return True

    def wait(self) -> None:
        """Before room is given to somebody: until there is some, or none can be made, or time is up."""
        if not self.look():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._made or not self.look(), self._wait_s)
