"""What the scheduler knows about chunks in the store, without ever waiting for it.

The first question about a chunk is put on a list and answered "ask again"; at the end of the scheduling step the whole
list leaves as one message to a background thread, which makes one call of it. Answers are kept for a moment. A question
that is older than the deadline is answered "miss", and the store is then not asked at all for some seconds.
"""

from __future__ import annotations

import enum
import queue
import threading
from collections.abc import Callable, Sequence

from ..common.clock import Clock, SystemClock
from .notices import Notices
from .settings import ConnectorSettings

MAX_KNOWN = 200_000
MAX_BATCHES = 16
REPORT_INTERVAL_S = 60.0
STORED_TTL_S = 60.0
"""How long a chunk seen in the store is not stored again. (An evicted one is stored again after this.)"""


class Answer(enum.Enum):
    HIT = "hit"
    MISS = "miss"
    LATER = "later"


class _State(enum.Enum):
    ASKED = "asked"
    PRESENT = "present"
    ABSENT = "absent"
    FAILED = "failed to load"
    SILENT = "no answer in time"


class LookupTable:
    """Known states of chunks by name. ``lookup`` and ``flush`` are the scheduler's; the thread is its own.

    Args:
        ask: which of some names are there; None if nobody answered. Called on the table's thread only.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[str]], list[bool] | None],
        settings: ConnectorSettings,
        notices: Notices,
        clock: Clock | None = None,
    ) -> None:
        self._ask = ask
        self._settings = settings
        self._notices = notices
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[_State, float]] = {}  # name -> state and the time until which it counts
        self._seen: dict[str, float] = {}  # name -> until when it need not be stored again
        self._batch: list[str] = []
        self._queue: queue.Queue[list[str] | None] = queue.Queue(MAX_BATCHES)
        self._quiet_until_s = 0.0
        self._counts: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._next_report_s = self._clock.monotonic_s() + REPORT_INTERVAL_S
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="hearth-lookup", daemon=True)
        self._thread.start()

    def lookup(self, name: str) -> Answer:
        now = self._clock.monotonic_s()
        with self._lock:
            state, until = self._known.get(name, (None, 0.0))
            if state is _State.ASKED and now < until:
                return Answer.LATER
            if state is _State.ASKED:
                self._quiet_until_s = now + self._settings.probe_interval_s
                self._set(name, _State.SILENT, now)
                state = _State.SILENT
            elif state is None or now >= until:
                if now >= self._quiet_until_s:
                    self._set(name, _State.ASKED, now)
                    self._batch.append(name)
                    return Answer.LATER
                self._set(name, _State.SILENT, now)
                state = _State.SILENT
            self._count(state.value)
            return Answer.HIT if state is _State.PRESENT else Answer.MISS

    def flush(self) -> None:
        """Sends what was asked since the last call. Never waits: with the thread far behind, all are misses."""
        with self._lock:
            batch, self._batch = self._batch, []
            if batch:
                try:
                    self._queue.put_nowait(batch)
                except queue.Full:
                    now = self._clock.monotonic_s()
                    for name in batch:
                        self._set(name, _State.SILENT, now)
            self._forget()
        self._report()

    def is_stored(self, name: str) -> bool:
        """Whether the chunk was seen in the store lately, so that storing it again is useless."""
        with self._lock:
            return self._seen.get(name, 0.0) > self._clock.monotonic_s()

    def note_storing(self, name: str) -> None:
        """The chunk is on its way into the store: that it was absent a moment ago counts no more."""
        with self._lock:
            if self._known.get(name, (None, 0.0))[0] in (_State.ABSENT, _State.SILENT):
                del self._known[name]

    def note_stored(self, name: str) -> None:
        with self._lock:
            self._set(name, _State.PRESENT, self._clock.monotonic_s())

    def note_failed(self, name: str) -> None:
        """A load failed: a miss until it is stored again, or for a while."""
        with self._lock:
            self._set(name, _State.FAILED, self._clock.monotonic_s())

    def has_failed(self, name: str) -> bool:
        """Whether the file in the store is to be replaced rather than kept."""
        with self._lock:
            state, until = self._known.get(name, (None, 0.0))
            return state is _State.FAILED and until > self._clock.monotonic_s()

    def clear(self) -> None:
        with self._lock:
            self._known.clear()
            self._seen.clear()
            self._batch.clear()

    def close(self, timeout_s: float) -> None:
        if self._thread is None:
            return
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # the thread hangs in a call; it is a daemon
        self._thread.join(timeout_s)

    def answer_batch(self, names: Sequence[str]) -> None:
        """Asks the store about ``names`` and takes the answers in."""
        found = self._ask(names)
        with self._lock:
            now = self._clock.monotonic_s()
            if found is None:
                self._quiet_until_s = now + self._settings.probe_interval_s
            silence: list[bool | None] = [None] * len(names)
            for name, there in zip(names, silence if found is None else found, strict=True):
                if self._known.get(name, (None, 0.0))[0] in (_State.ASKED, _State.SILENT):
                    self._set(name, _STATE_OF[there], now)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self.answer_batch(batch)
            except Exception as error:  # the questions run into their deadline: misses
                self._notices.warn("lookup", "lookup of %d chunks failed: %r", len(batch), error)

    def _set(self, name: str, state: _State, now: float) -> None:
        settings = self._settings
        ttl_s = {
            _State.ASKED: settings.lookup_timeout_s,
            _State.PRESENT: settings.hit_ttl_s,
            _State.ABSENT: settings.miss_ttl_s,
            _State.SILENT: settings.miss_ttl_s,
            _State.FAILED: settings.failed_ttl_s,
        }[state]
        self._known.pop(name, None)  # to the end: the dict is in order of change
        self._known[name] = (state, now + ttl_s)
        self._seen.pop(name, None)
        if state is _State.PRESENT:
            self._seen[name] = now + STORED_TTL_S

    def _forget(self) -> None:
        for table in (self._known, self._seen):
            while len(table) > MAX_KNOWN:
                del table[next(iter(table))]

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1
        self.totals[what] = self.totals.get(what, 0) + 1

    def _report(self) -> None:
        """One line a minute, while there are lookups, that says why they miss."""
        now = self._clock.monotonic_s()
        if now < self._next_report_s:
            return
        with self._lock:
            counts, self._counts = self._counts, {}
        self._next_report_s = now + REPORT_INTERVAL_S
        if counts:
            hits = counts.pop(_State.PRESENT.value, 0)
            asked = hits + sum(counts.values())
            why = ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"
            self._notices.info("%d of %d chunk lookups were hits (%.0f %%); misses: %s",
                               hits, asked, 100 * hits / asked, why)  # fmt: skip


_STATE_OF = {True: _State.PRESENT, False: _State.ABSENT, None: _State.SILENT}
