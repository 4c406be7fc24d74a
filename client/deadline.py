"""The end of a call, handed down through everything that the call does."""

from __future__ import annotations

from ..common.clock import Clock, SystemClock
from ..common.errors import DeadlineExceeded


class Deadline:
    """``timeout_s`` from now; immutable."""

    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self.timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._start = self._clock.monotonic_s()

    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._start

    def part(self, share: float, least_s: float) -> Deadline:
        """A nearer end for one step of the call, so that a peer that hangs leaves time for another: ``share`` of what
        is left, or ``least_s`` where that is more; never beyond this end."""
        left = max(0.0, self.timeout_s - self.elapsed_s())
        return Deadline(min(left, max(left * share, least_s)), self._clock)

    def left_s(self, what: str) -> float:
        """Seconds that are left, more than 0.

        Raises:
            DeadlineExceeded: none; ``what`` names what could not be begun.
        """
        left = self.timeout_s - self.elapsed_s()
        if left <= 0:
            raise DeadlineExceeded(f"{what}: not done within {self.timeout_s:g} s")
        return left
