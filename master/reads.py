"""What was read or looked up not long ago, in periods: a read of which several tell counts once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Reads:
    """Holds the blocks and names of this period and the last one, ``items_max`` of each at most."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._now: set[int] = set()
        self._before: set[int] = set()
        self._lookups: list[tuple[int, Sequence[bytes]]] = []
        self._lookups_before: list[tuple[int, Sequence[bytes]]] = []
        self._looked_up = 0
        self._names: set[tuple[int, bytes]] | None = None

    def note(self, blocks: Iterable[int]) -> None:
        if len(self._now) < self._items_max:
            self._now.update(blocks)

    def note_names(self, directory: int, names: Sequence[bytes]) -> None:
        """They were looked up: whoever did will read them now. Costs nothing until somebody wants to know."""
        if self._looked_up < self._items_max:
            self._looked_up += len(names)
            self._lookups.append((directory, names))
            self._names = None

    def __contains__(self, block: int) -> bool:
        return block in self._now or block in self._before

    def has_name(self, directory: int, name: bytes) -> bool:
        if self._names is None:
            self._names = {(where, each) for where, names in (*self._lookups_before, *self._lookups) for each in names}
        return (directory, name) in self._names

    def turn(self) -> set[int]:
        """A period is over: the blocks that were read in it."""
        self._before, self._now = self._now, set()
        self._lookups_before, self._lookups = self._lookups, []
        self._looked_up, self._names = 0, None
        return self._before
