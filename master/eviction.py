"""Which blocks give way when room is short: S3-FIFO over what one worker holds, or what one quota counts. Pure.

It hears of events and says what should go; whether that may go (pinned, open, leased) others decide and tell it.
The policy is that of Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), with changes:

- Small is larger, and one read is enough to come out of it: a chat reads all that was said once for each turn, so
  most of what is read once will be read again. (Measured on ``tests/support/chats.py``.)
- Blocks of one minute are equally old, and of equally old ones the deepest in its prompt goes first: without its
  beginning the rest of a prompt is of no use.
- What it holds in memory is bounded. The *cold* blocks, which it does not hold, are older than all that it holds and
  were not read since; they stand in the tables in the order in which they came, and are taken in a page at a time when
  room is short. So it starts with nothing, after a restart too.

Laws:
- A block is in one of the queues cold, small, main, or is leaving (chosen, nobody said yet what became of it), or is
  not held.
- A new block goes to small, one whose file was evicted not long ago (ghosts) to main.
- Out of small goes to main what was read, else it is chosen. Out of main goes to its end again what was read, else it
  is chosen. Small gives while it has more than its share of the bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

SMALL_SHARE = 0.25
READS_TO_STAY = 1
"""So often a block has to be read, while it is in small, to come into main."""
READS_MAX = 2
"""So many rounds in main the reads of one round are worth."""
GHOSTS_MIN = 1000
STEPS_MAX = 20_000
"""Blocks that one choice looks at: some 20 ms."""
COLD_END = 1 << 64
"""``cold_from`` when no block is cold."""

_DEPTH_MAX = (1 << 24) - 1
_KEY_MASK = (1 << 64) - 1
_READS, _COLD, _SMALL, _MAIN, _LEAVING = 3, 0 << 2, 1 << 2, 2 << 2, 3 << 2
_PLACE = 3 << 2
_DEPTH_SHIFT, _SIZE_SHIFT = 4, 28
_SLACK = 1000


class Candidate(NamedTuple):
    """A block that may be evicted one day. ``minute``: since when it is here."""

    key: int
    size_bytes: int
    depth: int
    minute: int


class _Queue:
    """Keys in order of the minute in which they came, the deepest of a minute first. Those that left by another way are
    still listed: the reader passes over them."""

    def __init__(self) -> None:
        self._classes: deque[tuple[int, list[int]]] = deque()
        self._sorted = False  # the first class
        self.listed = 0

    def append(self, key: int, depth: int, minute: int) -> None:
        if not self._classes or self._classes[-1][0] < minute:
            self._classes.append((minute, []))
        if len(self._classes) == 1:
            self._sorted = False
        self._classes[-1][1].append(depth << 64 | _KEY_MASK - key)
        self.listed += 1

    def pop(self) -> int | None:
        while self._classes:
            keys = self._classes[0][1]
            if not keys:
                self._classes.popleft()
                self._sorted = False
                continue
            if not self._sorted:
                keys.sort()
                self._sorted = True
            self.listed -= 1
            return _KEY_MASK - (keys.pop() & _KEY_MASK)
        return None

    def keep(self, is_here: Callable[[int], bool]) -> None:
        """Lists only those."""
        kept = ((minute, [k for k in keys if is_here(_KEY_MASK - (k & _KEY_MASK))]) for minute, keys in self._classes)
        self._classes = deque(kept)
        self.listed = sum(len(keys) for _, keys in self._classes)


class S3Fifo:
    """
    Args:
        held_max: so many blocks are held in memory, and half as many ghosts.

    Attributes:
        held_max: may be changed.
        looked_at_all: the last choice was not cut short by ``STEPS_MAX``.
        cold_from: blocks from this number on may be cold; ``COLD_END``: none is.
    """

    def __init__(self, held_max: int) -> None:
        self.held_max = held_max
        self._held: dict[int, int] = {}  # key -> size, depth, place and reads in one number: millions are held
        self._queues = {_COLD: _Queue(), _SMALL: _Queue(), _MAIN: _Queue()}
        self._bytes = {_COLD: 0, _SMALL: 0, _MAIN: 0, _LEAVING: 0}
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self.cold_from = 0
        self.looked_at_all = True

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    @property
    def leaving_bytes(self) -> int:
        return self._bytes[_LEAVING]

    @property
    def wants_cold(self) -> bool:
        """Whether cold blocks, if there are any, should be taken in before the next choice."""
        return self.cold_from < COLD_END and not self._bytes[_COLD]

    # ---------------------------------------------------------------- events

    def add(self, block: Candidate, identity: int) -> None:
        """A new block. ``identity`` tells its file from others, also after the file was evicted and stored again."""
        if block.key in self._held:
            return
        while len(self._held) >= self.held_max and self._let_oldest_go():
            pass
        place = _SMALL
        if identity in self._ghosts:
            del self._ghosts[identity]
            place = _MAIN
        self._put(block.key, block.size_bytes, min(block.depth, _DEPTH_MAX), place, 0, block.minute)

    def add_cold(self, blocks: Iterable[Candidate], cold_from: int) -> None:
        """Some of those that were cold; all below ``cold_from`` were looked at."""
        for block in sorted(blocks, key=lambda each: each.minute):
            if block.key not in self._held:
                self._put(block.key, block.size_bytes, min(block.depth, _DEPTH_MAX), _COLD, 0, block.minute)
        self.cold_from = max(self.cold_from, cold_from)

    def read(self, key: int) -> bool:
        """Somebody opened, leased or looked up the block. False: it is not held; see ``add_read``."""
        value = self._held.get(key)
        if value is None:
            return False
        if value & _READS < READS_MAX:
            self._held[key] = value + 1
        return True

    def add_read(self, block: Candidate) -> None:
        """A cold block was read: it has proved its worth."""
        if block.key not in self._held and len(self._held) < self.held_max:
            self._put(block.key, block.size_bytes, min(block.depth, _DEPTH_MAX), _MAIN, 1, block.minute)

    def remove(self, key: int) -> None:
        """It is gone, or may not be evicted any more."""
        value = self._held.pop(key, None)
        if value is not None:
            self._bytes[value & _PLACE] -= value >> _SIZE_SHIFT
            self._tidy(value & _PLACE)

    # ---------------------------------------------------------------- choosing

    def choose(
        self,
        need_bytes: int,
        minute: int,
        is_held: Callable[[int], bool] = lambda _: False,
        count_max: int = 1 << 62,
    ) -> list[int]:
        """Blocks of ``need_bytes`` together, or all there are, but ``count_max`` at most, that should go now. For each
        ``evicted``, ``spared`` or ``remove`` is to follow. Those of which ``is_held`` says so count as just read."""
        chosen: list[int] = []
        # When all are in use there is an end all the same.
        steps = min(STEPS_MAX, (READS_MAX + 2) * len(self._held))
        while need_bytes > 0 and steps > 0 and len(chosen) < count_max:
            steps -= 1
            place = self._giving()
            key = self._queues[place].pop()
            if key is None:
                if not any(self._bytes[each] for each in self._queues):
                    break
                continue
            value = self._held.get(key)
            if value is None or value & _PLACE != place:
                continue
            size_bytes, depth, reads = value >> _SIZE_SHIFT, value >> _DEPTH_SHIFT & _DEPTH_MAX, value & _READS
            self._bytes[place] -= size_bytes
            if is_held(key):
                self._put(key, size_bytes, depth, _MAIN, max(1, reads), minute)
            elif place == _MAIN and reads:
                self._put(key, size_bytes, depth, _MAIN, reads - 1, minute)
            elif place != _MAIN and reads >= READS_TO_STAY:
                self._put(key, size_bytes, depth, _MAIN, 0, minute)
            else:
                self._held[key] = value & ~_PLACE | _LEAVING
                self._bytes[_LEAVING] += size_bytes
                chosen.append(key)
                need_bytes -= size_bytes
        self.looked_at_all = steps > 0 or len(self._held) * (READS_MAX + 2) <= STEPS_MAX
        return chosen

    def _giving(self) -> int:
        """The queue that the next one comes from."""
        if self._bytes[_COLD]:
            return _COLD
        small, main = self._bytes[_SMALL], self._bytes[_MAIN]
        return _SMALL if small and (not main or small > SMALL_SHARE * (small + main)) else _MAIN

    def evicted(self, key: int, identity: int) -> None:
        self.remove(key)
        self._ghosts[identity] = None
        self._ghosts.move_to_end(identity)
        while len(self._ghosts) > max(GHOSTS_MIN, min(len(self._held), self.held_max // 2)):
            self._ghosts.popitem(last=False)

    def spared(self, key: int, minute: int) -> None:
        """It is in use, so it stays."""
        value = self._held.get(key)
        if value is None or value & _PLACE != _LEAVING:
            return
        self._bytes[_LEAVING] -= value >> _SIZE_SHIFT
        self._put(key, value >> _SIZE_SHIFT, value >> _DEPTH_SHIFT & _DEPTH_MAX, _MAIN, 1, minute)

    # ---------------------------------------------------------------- places

    def _put(self, key: int, size_bytes: int, depth: int, place: int, reads: int, minute: int) -> None:
        self._held[key] = size_bytes << _SIZE_SHIFT | depth << _DEPTH_SHIFT | place | reads
        self._bytes[place] += size_bytes
        self._queues[place].append(key, depth, minute)

    def _let_oldest_go(self) -> bool:
        """Into the cold."""
        for place, queue in self._queues.items():
            while (key := queue.pop()) is not None:
                value = self._held.get(key)
                if value is not None and value & _PLACE == place:
                    self.remove(key)
                    self.cold_from = min(self.cold_from, key)
                    return True
        return False

    def _tidy(self, place: int) -> None:
        """What is listed and not there any more must not pile up while nothing is chosen."""
        queue = self._queues.get(place)
        if queue is not None and queue.listed > 2 * len(self._held) + _SLACK:
            queue.keep(lambda key: self._held.get(key, _LEAVING) & _PLACE == place)
