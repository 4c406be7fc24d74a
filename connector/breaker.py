"""A circuit breaker: stops asking whoever does not answer, and asks once now and then whether that is over."""

from __future__ import annotations

import threading

from ..common.clock import Clock, SystemClock

MAX_REST = 4
"""Times the first rest: the longest one."""


class Breaker:
    """Closed: all may ask. Open, after ``limit`` failures in a row: nobody, for ``rest_s``; then one may (a probe),
    whose success closes it and whose failure doubles the rest, up to four times. Thread-safe.

    Args:
        limit: failures in a row, without a success between them, that open it.
        rest_s: seconds of the first rest. A probe without an outcome counts as lost after as long.
    """

    def __init__(self, limit: int, rest_s: float, clock: Clock | None = None) -> None:
        self._limit = limit
        self._first_rest_s = rest_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._failures = 0
        self._failed_s = float("-inf")
        self._rest_s = rest_s
        self._until_s = float("-inf")
        self._probing = False
        self.reason = ""
        """Of the last failure."""
        self.openings = 0

    def allows(self) -> bool:
        """Whether to ask now. When a rest is over, True for one caller only."""
        now = self._clock.monotonic_s()
        with self._lock:
            if self._failures < self._limit:
                return True
            if now < self._until_s:
                return False
            self._probing = True
            self._until_s = now + self._first_rest_s
            return True

    @property
    def is_resting(self) -> bool:
        with self._lock:
            return self._failures >= self._limit and self._clock.monotonic_s() < self._until_s

    @property
    def failed_lately(self) -> bool:
        """A failure within the last ``rest_s`` that no success followed, whether or not it opened the breaker."""
        with self._lock:
            return self._failures > 0 and self._clock.monotonic_s() < self._failed_s + self._first_rest_s

    def succeeded(self) -> None:
        with self._lock:
            self._failures = 0
            self._probing = False
            self._rest_s = self._first_rest_s

    def failed(self, reason: str) -> bool:
        """True if this failure opens the breaker. A failure of a call from before it opened changes nothing."""
        now = self._clock.monotonic_s()
        with self._lock:
            self.reason = reason
            self._failed_s = now
            if self._failures >= self._limit:
                if self._probing:
                    self._probing = False
                    self._rest_s = min(2 * self._rest_s, MAX_REST * self._first_rest_s)
                    self._until_s = now + self._rest_s
                return False
            self._failures += 1
            if self._failures < self._limit:
                return False
            self._until_s = now + self._rest_s
            self.openings += 1
            return True
