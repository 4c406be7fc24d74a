"""Where the bytes of a block go as they come from another node."""

from __future__ import annotations

from typing import Protocol


class Sink(Protocol):
    """Asked for room, then told that it is full and right, chunk by chunk; a read that is begun anew starts over."""

    def room(self, offset: int, size: int) -> memoryview:
        """Memory for bytes ``[offset, offset + size)`` of the block; ``size`` is at most one chunk."""

    def done(self, offset: int, view: memoryview) -> None:
        """The memory of ``room`` holds verified bytes. An error that this raises ends the read."""


class Into:
    """The caller's memory, which begins with byte ``start`` of the block."""

    def __init__(self, view: memoryview, start: int) -> None:
        self._view = view
        self._start = start

    def room(self, offset: int, size: int) -> memoryview:
        at = offset - self._start
        return self._view[at : at + size]

    def done(self, offset: int, view: memoryview) -> None:
        """It is where it belongs."""
