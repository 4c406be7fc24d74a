"""Renews what would run out while the application does something else: the session that owns drafts, read leases.

One daemon thread, only while there is something to keep and for a few seconds more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ..common.clock import Clock, SystemClock
from ..common.errors import HearthError
from ..common.telemetry import get_logger

log = get_logger(__name__)

LINGER_S = 5.0


@dataclass
class _Kept:
    every_s: float
    act: Callable[[], None]
    due_s: float
    users: int = 1


class Keeper:
    """Thread-safe. ``act`` may take as long as its own deadline; the others wait for it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._kept: dict[Hashable, _Kept] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def keep(self, key: Hashable, every_s: float, act: Callable[[], None]) -> None:
        """Calls ``act`` every ``every_s`` from now on until as many ``release`` of this key as there were ``keep``."""
        with self._changed:
            kept = self._kept.get(key)
            if kept is not None:
                kept.users += 1
                return
            self._kept[key] = _Kept(every_s, act, self._clock.monotonic_s() + every_s)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="hearth-keeper", daemon=True)
                self._thread.start()
            self._changed.notify()

    def release(self, key: Hashable) -> None:
        with self._changed:
            kept = self._kept.get(key)
            if kept is None:
                return
            kept.users -= 1
            if kept.users == 0:
                del self._kept[key]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._kept.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (act := self._next()) is not None:
            try:
                act()
            except HearthError as error:
                log.warning("renewal-failed", reason=error.message)

    def _next(self) -> Callable[[], None] | None:
        """Waits until something is due; None: nothing is left to keep, the thread ends."""
        with self._changed:
            while True:
                now = self._clock.monotonic_s()
                if self._closed:
                    self._thread = None
                    return None
                if not self._kept:
                    if not self._changed.wait(LINGER_S) and not self._kept:
                        self._thread = None
                        return None
                    continue
                first = min(self._kept.values(), key=lambda kept: kept.due_s)
                if first.due_s <= now:
                    first.due_s = now + first.every_s
                    return first.act
                self._changed.wait(first.due_s - now)
