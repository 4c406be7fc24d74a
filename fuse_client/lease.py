"""The session lease as the mount sees it. Pure: the clock is an argument.

Law: what was cached may be used until (send time of the last answered ping + lease). The master counts from when it
received that ping, which is later; so our lease always ends first.
"""

from __future__ import annotations

from ..common.clock import Clock

MAX_UNANSWERED = 64


class Lease:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lease_s = 0.0
        self._expires_s = 0.0
        self._next_ping = 1
        self._sent: dict[int, float] = {}

    def start(self, lease_s: float) -> None:
        """A new session: valid from its first answered ping on. Pongs of earlier pings count no more."""
        self._lease_s = lease_s
        self._sent.clear()
        self._expires_s = 0.0

    def end(self) -> None:
        """Nothing cached may be used from now on."""
        self._sent.clear()
        self._expires_s = 0.0

    @property
    def ping_interval_s(self) -> float:
        return self._lease_s / 5

    def ping(self) -> int:
        """The number of a ping that is sent now."""
        number = self._next_ping
        self._next_ping += 1
        self._sent[number] = self._clock.monotonic_s()
        while len(self._sent) > MAX_UNANSWERED:
            del self._sent[next(iter(self._sent))]
        return number

    def pong(self, number: int) -> None:
        """The master answered that ping; unknown numbers count for nothing."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self._expires_s = max(self._expires_s, sent + self._lease_s)

    def remaining_s(self) -> float:
        """How long cached things may still be used; 0 when not at all."""
        return max(0.0, self._expires_s - self._clock.monotonic_s())
