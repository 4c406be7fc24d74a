"""Blocks that the master does not know, and when they may be deleted. Plain code: time is an argument.

A working block without a session is of no use to anybody and goes at once. A committed one waits: a report and a
publish may have crossed each other, and bytes that are deleted do not come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..common.types import BlockKey


class Unknown:
    """Not thread-safe: belongs to the thread that talks to the master."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._since_s: dict[BlockKey, float] = {}

    def replace(self, named: Mapping[BlockKey, bool], now_s: float) -> list[BlockKey]:
        """Takes the result of one full report, block -> whether it is a working one, and returns those to delete now.
        What an earlier report named and this one does not is known again, and stays."""
        at_once = [key for key, working in named.items() if working]
        self._since_s = {key: self._since_s.get(key, now_s) for key, working in named.items() if not working}
        return at_once

    def due(self, now_s: float) -> list[BlockKey]:
        """Committed blocks whose time has come; each is returned once."""
        due = [key for key, since_s in self._since_s.items() if now_s - since_s >= self._delay_s]
        self.forget(due)
        return due

    def forget(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            self._since_s.pop(key, None)

    def __len__(self) -> int:
        return len(self._since_s)
