"""Workers that did not answer lately: others are asked first, so that one that hangs costs seconds once and not with
every call. Whoever answers is not silent any more.
"""

from __future__ import annotations

import threading

from ..common.clock import Clock, SystemClock

SILENT_S = 5.0
"""So long it is remembered; by then the master says who is suspect."""
PATIENCE_S = 2.0
"""So long, and as long as bytes take at SLOW_BYTES_PER_S, a worker may take while another may have the bytes."""
SLOW_BYTES_PER_S = 50 << 20


class Silence:
    """Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def note(self, worker_id: str) -> None:
        with self._lock:
            self._until[worker_id] = self._clock.monotonic_s() + SILENT_S

    def heard(self, worker_id: str) -> None:
        if worker_id in self._until:
            with self._lock:
                self._until.pop(worker_id, None)

    def __contains__(self, worker_id: object) -> bool:
        """
        >>> from hearthfs.common.clock import FakeClock
        >>> clock = FakeClock()
        >>> silence = Silence(clock)
        >>> silence.note("w1")
        >>> "w1" in silence, "w2" in silence
        (True, False)
        >>> clock.advance(6)
        >>> "w1" in silence
        False
        """
        until = self._until.get(str(worker_id))
        return until is not None and self._clock.monotonic_s() < until


def patience_s(size_bytes: int = 0) -> float:
    return PATIENCE_S + size_bytes / SLOW_BYTES_PER_S
