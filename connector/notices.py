"""Log lines of the connector: each kind at most once per interval, so that a dead cluster does not fill a disk."""

from __future__ import annotations

import threading
from typing import Any

from ..common.clock import Clock, SystemClock

INTERVAL_S = 10.0
_PREFIX = "HearthFS: "


class Notices:
    """Writes to a standard ``logging`` logger (the engine's), never raises."""

    def __init__(self, logger: Any, clock: Clock | None = None, interval_s: float = INTERVAL_S) -> None:
        self._logger = logger
        self._clock = clock or SystemClock()
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> (when last written, left out since)

    def info(self, text: str, *values: object) -> None:
        self._logger.info(f"{_PREFIX}{text}", *values)  # noqa: G004 - the text is a constant of the caller

    def debug(self, text: str, *values: object) -> None:
        self._logger.debug(f"{_PREFIX}{text}", *values)  # noqa: G004

    def warn(self, kind: str, text: str, *values: object) -> None:
        """One line now, or none if one of this kind was written a moment ago; the next tells how many were left out."""
        now = self._clock.monotonic_s()
        with self._lock:
            last, left_out = self._kinds.get(kind, (-self._interval_s, 0))
            if now - last < self._interval_s:
                self._kinds[kind] = (last, left_out + 1)
                return
            self._kinds[kind] = (now, 0)
        more = f" (and {left_out} like it before)" if left_out else ""
        self._logger.warning(f"{_PREFIX}{text}{more}", *values)  # noqa: G004
