"""Names that lookups found to be readable files, so that the next lookup of a prompt need not read the tables. Pure.

Laws:
- What is known holds in the state of the tables that ``version`` names, while the workers in ``live`` are alive. In any
  other state nothing is known.
- ``committed`` hears of every commit, in order, with all that it touched; what was touched is forgotten. So a name that
  was learned from a newer state than ``version`` is right as well: what made the state newer is still to be heard of.
- Names are bounded in number; of the oldest directory all are forgotten first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .change import Touch

NAMES_MAX = 1 << 15
"""About 10 MB: the chunks of some long prompts."""


class ReadableNames:
    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._names: dict[int, dict[bytes, int]] = {}  # directory -> name -> inode
        self._of_inode: dict[int, list[tuple[int, bytes]]] = {}
        self._count = 0
        self._version = 0
        self._live: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return self._count

    def committed(self, version: int, touched: Iterable[Touch]) -> None:
        """The tables are at ``version`` now, by changes that touched this."""
        self._version = version
        if not self._count:
            return
        for touch in touched:
            if touch.directory:
                self._forget(touch.directory, touch.name)
            for directory, name in self._of_inode.pop(touch.inode, ()) if touch.inode else ():
                self._forget(directory, name)

    def names(self, directory: int, version: int, live: frozenset[str]) -> Mapping[bytes, int]:
        """Names in the directory that are readable in that state of the tables, with these workers alive."""
        if version != self._version or live != self._live:
            return {}
        return self._names.get(directory, {})

    def learn(self, directory: int, version: int, live: frozenset[str], found: Iterable[tuple[bytes, int]]) -> None:
        """A lookup in that state found these names and inodes."""
        if version < self._version:
            return
        if live != self._live:
            self.clear()
            self._live = live
        names = self._names.pop(directory, {})
        self._names[directory] = names  # the newest
        for name, inode in found:
            if name not in names:
                names[name] = inode
                self._of_inode.setdefault(inode, []).append((directory, name))
                self._count += 1
        while self._count > self._names_max:
            self._drop_oldest()

    def clear(self) -> None:
        self._names.clear()
        self._of_inode.clear()
        self._count = 0

    def _drop_oldest(self) -> None:
        directory = next(iter(self._names))
        names = self._names[directory]
        for name in list(names)[: max(1, self._count - self._names_max)]:
            self._forget(directory, name)

    def _forget(self, directory: int, name: bytes) -> None:
        names = self._names.get(directory)
        inode = names.pop(name, None) if names else None
        if names is not None and not names:
            del self._names[directory]
        if inode is None:
            return
        self._count -= 1
        left = [link for link in self._of_inode.pop(inode, ()) if link != (directory, name)]
        if left:
            self._of_inode[inode] = left
