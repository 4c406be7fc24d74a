"""Reads every block again and again, a whole cycle in ``scrub_cycle_s``, so that what a disk has lost is found while
another replica is still there. Blocks that somebody doubts come first and at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ..common.clock import Clock
from ..common.errors import HearthError, NotFound, Unavailable
from ..common.telemetry import get_logger, trace
from ..common.types import BlockKey
from .block_store import BlockStore
from .disk import Disk, parse_name
from .metrics import Metrics

PAGE_BLOCKS = 64
SLACK = 1.25
"""So much faster than needed: pauses are made up for."""
LEAST_BYTES_PER_S = 1 << 20
PAUSE_S = 1.0
PAUSES_MAX = 600
"""A block waits at most so many pauses for a quiet moment: a disk that is never quiet is read, too."""
IDLE_S = 1.0
NOTE = "scrub"
NOTE_S = 30.0
PRESSURE = Path("/proc/pressure/io")

log = get_logger("hearthfs.worker.scrubber")


class _Stopped(Exception):
    """The worker stops, or a doubted block goes first: the block in hand is read again later."""


def io_pressure() -> float:
    """Percent of the last ten seconds in which somebody on this machine waited for a disk; 0 where it is not known."""
    try:
        first = PRESSURE.read_text().split("\n", 1)[0]
        return float(first.partition("avg10=")[2].split(" ", 1)[0])
    except (OSError, ValueError):
        return 0.0


def rate(used_bytes: int, cycle_s: float, limit_bytes_per_s: float) -> float:
    """Bytes per second that read everything in one cycle, within the limit.

    >>> rate(100 << 20, 10.0, 1 << 30) / (1 << 20)
    12.5
    """
    return min(limit_bytes_per_s, max(LEAST_BYTES_PER_S, SLACK * used_bytes / cycle_s))


class Place(NamedTuple):
    """How far a disk's cycle has come: ``after`` this block; ``finished``: nothing left to read in it."""

    started_s: float  # of the wall clock: a restart goes on
    after: BlockKey | None = None
    finished: bool = False

    def text(self) -> str:
        return f"{self.started_s:.0f} {self.after or '-'} {int(self.finished)}\n"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """None: it says nothing.

        >>> place = Place(5.0, BlockKey(1, 2), True)
        >>> Place.parse(place.text()) == place
        True
        """
        words = text.split()
        try:
            started, after, finished = words
            return cls(float(started), parse_name(after), finished == "1")
        except ValueError:
            return None


class Scrubber:
    """One thread, which reads one block at a time.

    Args:
        cycle_s: 0: only what is doubted is read.
        pressure: of the disks, in percent; above ``pause_pressure`` (0: never) scrubbing waits.
        told: called when the master should hear of a result.
    """

    def __init__(
        self,
        store: BlockStore,
        clock: Clock,
        metrics: Metrics,
        *,
        cycle_s: float,
        bytes_per_s: float,
        pause_pressure: float,
        told: Callable[[], None],
        pressure: Callable[[], float] = io_pressure,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._cycle_s = cycle_s
        self._bytes_per_s = bytes_per_s
        self._pause_pressure = pause_pressure
        self._pressure = pressure
        self._told = told
        self._guard = threading.Lock()
        self._doubted: dict[BlockKey, None] = {}
        self._stopping = False
        self._wake = threading.Event()
        self._places: dict[Disk, Place] = {}
        self._pages: dict[Disk, deque[BlockKey]] = {}
        self._noted_s = 0.0
        self._next_read_s = 0.0
        self._thread = threading.Thread(target=self._run, name="scrubber", daemon=True)

    def start(self) -> None:
        now_s = self._clock.wall_ns() / 1e9
        for disk in self._store.disks:
            self._places[disk] = Place.parse(disk.read_note(NOTE)) or Place(now_s)
        self._thread.start()

    def stop(self) -> None:
        with self._guard:
            self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._note_places()

    def doubt(self, keys: Iterable[BlockKey]) -> None:
        """Somebody says that these are not right: looked at next, then the master is told."""
        with self._guard:
            self._doubted.update(dict.fromkeys(keys))
            wanted = bool(self._doubted)
        if wanted:
            self._wake.set()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            with trace():
                try:
                    if not (self.look_at_doubted() or self.look_at_next()):
                        self._wake.wait(IDLE_S)
                except Exception:  # a bug must not end the scrubbing of this worker
                    log.exception("scrubber-bug")
                    self._wake.wait(IDLE_S)

    def look_at_doubted(self) -> bool:
        """Whether there was one."""
        with self._guard:
            key = next(iter(self._doubted), None)
        if key is None:
            return False
        try:
            good = self._store.verify(key, lambda _: None)
            log.warning("doubted-block-verified", block=str(key), good=good)
            self._store.tell(key)
        except NotFound:
            self._store.tell(key)
        except Unavailable as error:  # its disk does not give it: as good as lost
            self._store.mark_bad(key, str(error))
        except HearthError as error:  # the master asks again
            log.info("doubted-block-not-verified", block=str(key), error=str(error))
        with self._guard:
            self._doubted.pop(key, None)
        self._told()
        return True

    def look_at_next(self) -> bool:
        """Reads the next block of the disk that is furthest behind; False: there is none now."""
        if not self._cycle_s:
            return False
        found = self._next()
        if found is None:
            return False
        disk, key = found
        try:
            good = self._store.verify(key, self._pace)
            if not good:
                self._metrics.scrub_bad.inc()
                self._told()
        except _Stopped:
            self._pages[disk].appendleft(key)
            return True
        except NotFound:
            good = True  # deleted meanwhile
        except HearthError as error:
            log.warning("block-not-scrubbed", block=str(key), error=str(error))
        self._places[disk] = self._places[disk]._replace(after=key)
        self._metrics.scrubbed_blocks.inc()
        if self._clock.monotonic_s() - self._noted_s > NOTE_S:
            self._note_places()
        return True

    def _next(self) -> tuple[Disk, BlockKey] | None:
        now_s = self._clock.wall_ns() / 1e9
        for disk in sorted(self._store.disks, key=lambda each: self._places[each].started_s):
            place = self._places[disk]
            if disk.failed:
                continue
            if place.finished:
                if 0 <= now_s - place.started_s < self._cycle_s:
                    continue
                place = self._places[disk] = Place(now_s)
            page = self._pages.setdefault(disk, deque())
            if not page:
                page.extend(key for key, record in disk.index.page(place.after, PAGE_BLOCKS) if record is not None)
            if page:
                return disk, page.popleft()
            self._places[disk] = place._replace(after=None, finished=True)
            self._metrics.scrub_cycle_seconds.labels(str(disk.path)).set(max(0.0, now_s - place.started_s))
            self._note_places()
        return None

    def _pace(self, size_bytes: int) -> None:
        """Waits until the next chunk may be read.

        Raises:
            _Stopped.
        """
        for _ in range(PAUSES_MAX):
            if not self._pause_pressure or self._pressure() < self._pause_pressure:
                break
            self._metrics.scrub_pauses.inc()
            self._rest(PAUSE_S)
        used = sum(disk.block_bytes for disk in self._store.disks)
        now_s = self._clock.monotonic_s()
        begin_s = max(now_s, self._next_read_s)
        self._next_read_s = begin_s + size_bytes / rate(used, self._cycle_s, self._bytes_per_s)
        self._rest(begin_s - now_s)
        self._metrics.scrubbed_bytes.inc(size_bytes)

    def _rest(self, seconds: float) -> None:
        if self._wake.wait(seconds) if seconds > 0 else self._wake.is_set():
            raise _Stopped

    def _note_places(self) -> None:
        self._noted_s = self._clock.monotonic_s()
        for disk, place in self._places.items():
            with contextlib.suppress(OSError):  # a cycle that begins again is no loss
                disk.write_note(NOTE, place.text())
