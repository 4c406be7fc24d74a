"""Time as an argument: the system's clock, and one for tests that moves when told to."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """For leases, deadlines and ages: never jumps."""

    def wall_ns(self) -> int:
        """For timestamps that people and ``stat`` see."""


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()


class FakeClock:
    """Stands still until ``advance``.

    >>> clock = FakeClock()
    >>> clock.advance(2.5)
    >>> clock.monotonic_s()
    2.5
    """

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._elapsed_s = 0.0
        self._wall_ns = wall_ns

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def wall_ns(self) -> int:
        return self._wall_ns + int(self._elapsed_s * 1e9)

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds

    def jump_wall(self, seconds: float) -> None:
        """Moves only the wall clock, as an operator or NTP would."""
        self._wall_ns += int(seconds * 1e9)
