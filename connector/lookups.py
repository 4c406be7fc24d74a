"""What the scheduler knows about chunks in the store, without ever waiting for it.

A request's question is asked once, for its whole prefix and all KV cache groups: the scheduler hands over the block
hashes, a background thread makes names of them and one call of all questions that wait. From then on the answer is a
set of keys, and what the scheduler does per key is to look into it. Single answers are kept for a moment, for the next
request with the same beginning. A question that is older than the deadline is answered "nothing"; the store is then not
asked for some seconds.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import queue
import threading
from collections.abc import Callable, Sequence

from ..common.clock import Clock, SystemClock
from .breaker import Breaker
from .identity import chunk_name
from .notices import Notices
from .settings import ConnectorSettings

MAX_KNOWN = 200_000
MAX_QUESTIONS = 4096
"""That wait for an answer; more are answered "nothing"."""
MAX_ANSWERS = 4096
REPORT_INTERVAL_S = 60.0
CHECK_INTERVAL_S = 10.0
MAX_CHECKED = 8192
"""Of the chunks that are watched, in one interval."""
MAX_TENANTS = 64
OTHER_TENANTS = "other"
"""Whom further tenants are counted with."""
STORED_TTL_S = 60.0
"""How long a chunk seen in the store is not stored again. (An evicted one is stored again after this.)"""

NOTHING: frozenset[bytes] = frozenset()


_PRESENT, _ABSENT, _FAILED, _SILENT = "present", "absent", "failed to load", "no answer in time"


@dataclasses.dataclass
class _Question:
    """``hits`` is None until it is answered; ``until_s``: the deadline, then the end of the answer."""

    keys: Callable[[], Sequence[bytes]]
    asked_s: float
    until_s: float
    tenant: str = ""
    renewed: bool = False
    hits: frozenset[bytes] | None = None


class LookupTable:
    """Questions by request, and known states of chunks by name.

    Args:
        ask: which of some names are there; None if nobody answered. Called on the table's thread only.
        watch: whether to look now and then if chunks that ``note_stored`` named are still there; see ``take_gone``.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[str]], list[bool] | None],
        settings: ConnectorSettings,
        notices: Notices,
        clock: Clock | None = None,
        watch: bool = False,
    ) -> None:
        self._ask_store = ask
        self._watch = watch
        self._settings = settings
        self._notices = notices
        self._clock = clock or SystemClock()
        self.breaker = Breaker(1, settings.probe_interval_s, self._clock)
        self._lock = threading.Lock()
        self._questions: dict[str, _Question] = {}
        # By name, until when each counts. Absent chunks are not remembered: the next request asks again.
        self._present: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # name -> until when it need not be stored again
        self._announced: dict[str, None] = {}
        self._gone: collections.deque[str] = collections.deque(maxlen=MAX_KNOWN)
        self.gone_total = 0
        self._next_check_s = self._clock.monotonic_s() + CHECK_INTERVAL_S
        self._queue: queue.Queue[_Question | None] = queue.Queue(MAX_QUESTIONS)
        self._counts: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._arrived = threading.Event()
        self.tenants: dict[str, tuple[int, int]] = {}
        """Chunks that were hits, and chunks asked for, of each."""
        self._waits: collections.deque[float] = collections.deque(maxlen=1000)
        self._next_report_s = self._clock.monotonic_s() + REPORT_INTERVAL_S
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="hearth-lookup", daemon=True)
        self._thread.start()

    def is_open(self, request_id: str) -> bool:
        """Whether a question waits for its answer, and may wait on: ``ask`` has nothing new to say."""
        question = self._questions.get(request_id)
        return question is not None and question.hits is None and self._clock.monotonic_s() < question.until_s

    def ask(self, request_id: str, keys: Callable[[], Sequence[bytes]], tenant: str = "") -> frozenset[bytes] | None:
        """Those of the keys that can be loaded; None: ask again. Never waits.

        Args:
            keys: gives the keys; called on the table's thread, so it must hold what it needs.
        """
        now = self._clock.monotonic_s()
        question = self._questions.get(request_id)
        if question is not None and (now < question.until_s or (question.hits is not None and question.renewed)):
            return question.hits
        if question is not None and question.hits is None:
            self.breaker.failed(f"no answer within {self._settings.lookup_timeout_s} s")
            self._notices.warn(
                "lookup deadline",
                "a lookup took longer than %s s, which counts as a miss; nothing is asked for %s s",
                self._settings.lookup_timeout_s,
                self._settings.probe_interval_s,
            )
            return self._give_up(question, now)
        # Asked a second time because the first answer grew old, it takes the second as it is: a step of the engine may
        # be longer than any answer counts.
        renewed = question is not None
        question = _Question(keys, now, now + self._settings.lookup_timeout_s, tenant, renewed)
        self._questions[request_id] = question
        while len(self._questions) > MAX_ANSWERS:
            del self._questions[next(iter(self._questions))]
        if not self.breaker.allows():
            return self._give_up(question, now)
        try:
            self._queue.put_nowait(question)
        except queue.Full:
            return self._give_up(question, now)
        return None

    def linger(self, timeout_s: float) -> None:
        """Lets the thread work: returns when a question is answered, at the latest after ``timeout_s``; at once if none
        is open. For when there is nothing else to do."""
        self._arrived.clear()
        if any(question.hits is None for question in list(self._questions.values())):
            self._arrived.wait(timeout_s)

    def take_waits(self) -> list[float]:
        """How long each question waited that was answered since the last call."""
        return [self._waits.popleft() for _ in range(len(self._waits))]

    def forget(self, request_id: str) -> None:
        """The answer was used, or is not wanted any more."""
        self._questions.pop(request_id, None)

    def is_stored(self, name: str) -> bool:
        """Whether the chunk was seen in the store lately, so that storing it again is useless."""
        with self._lock:
            return self._seen.get(name, 0.0) > self._clock.monotonic_s()

    def note_stored(self, name: str) -> None:
        now = self._clock.monotonic_s()
        with self._lock:
            self._failed.pop(name, None)
            self._present[name] = now + self._settings.hit_ttl_s
            self._seen[name] = now + STORED_TTL_S
            if self._watch:
                self._announced[name] = None
                while len(self._announced) > MAX_KNOWN:
                    self._lose(next(iter(self._announced)))

    def take_gone(self) -> list[str]:
        """Chunks of ``note_stored`` that are not there any more, or that are no longer watched."""
        return [self._gone.popleft() for _ in range(len(self._gone))]

    def note_failed(self, name: str) -> None:
        """A load failed: a miss until it is stored again, or for a while."""
        with self._lock:
            self._present.pop(name, None)
            self._seen.pop(name, None)
            self._failed[name] = self._clock.monotonic_s() + self._settings.failed_ttl_s
            self._lose(name)
            self._trim()
        self._questions.clear()  # their answers may hold it

    def has_failed(self, name: str) -> bool:
        """Whether the file in the store is to be replaced rather than kept."""
        with self._lock:
            return self._failed.get(name, 0.0) > self._clock.monotonic_s()

    def clear(self) -> None:
        with self._lock:
            self._present.clear()
            self._failed.clear()
            self._seen.clear()
            for name in list(self._announced):
                self._lose(name)
        self._questions.clear()

    def close(self, timeout_s: float) -> None:
        if self._thread is None:
            return
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # the thread hangs in a call; it is a daemon
        self._thread.join(timeout_s)

    def answer(self, questions: Sequence[_Question]) -> None:
        """Answers some questions by one call of the store, if any name in them is not known."""
        keys = [list(question.keys()) for question in questions]
        names = [
            [chunk_name(key, question.tenant) for key in each] for question, each in zip(questions, keys, strict=True)
        ]
        everything = dict.fromkeys(itertools.chain.from_iterable(names))
        now = self._clock.monotonic_s()
        with self._lock:
            failed = {name for name in everything if self._failed.get(name, 0.0) > now} if self._failed else set()
            there = {name for name in everything if self._present.get(name, 0.0) > now} if self._present else set()
        unknown = [name for name in everything if name not in there and name not in failed]
        found = self._fetch(unknown) if unknown else set()
        there |= found or set()
        now = self._clock.monotonic_s()
        for question, its_keys, its_names in zip(questions, keys, names, strict=True):
            hits = frozenset(key for key, name in zip(its_keys, its_names, strict=True) if name in there)
            bad = sum(name in failed for name in its_names) if failed else 0
            with self._lock:
                self._count(_PRESENT, len(hits))
                self._count(_FAILED, bad)
                self._count(_SILENT if found is None else _ABSENT, len(its_keys) - len(hits) - bad)
                if question.tenant:
                    self._count_tenant(question.tenant, len(hits), len(its_keys))
            if question.hits is None:
                self._waits.append(now - question.asked_s)
                question.until_s = now + self._settings.hit_ttl_s
                question.hits = hits
        self._arrived.set()
        self._report(now)

    def check_announced(self) -> None:
        """Once an interval: asks whether the chunks watched longest are still there, so that what was evicted is told
        as removed even if nobody wants it."""
        now = self._clock.monotonic_s()
        if not self._announced or now < self._next_check_s or self.breaker.is_resting:
            return
        self._next_check_s = now + CHECK_INTERVAL_S
        with self._lock:
            names = list(itertools.islice(self._announced, MAX_CHECKED))
        found = self._ask_store(names)
        if found is None:
            return
        with self._lock:
            for name, there in zip(names, found, strict=True):
                if not there:
                    self._lose(name)
                    self._present.pop(name, None)
                    self._seen.pop(name, None)
                elif name in self._announced:
                    del self._announced[name]
                    self._announced[name] = None  # to the end

    def _lose(self, name: str) -> None:
        if name in self._announced:
            del self._announced[name]
            self._gone.append(name)

    def _fetch(self, names: list[str]) -> set[str] | None:
        """Asks the store; gives those that are there, None if nobody answered."""
        found = self._ask_store(names)
        now = self._clock.monotonic_s()
        if found is None:
            self.breaker.failed("nobody answered")
            return None
        self.breaker.succeeded()
        there = set(itertools.compress(names, found))
        with self._lock:
            if self._failed:  # while we asked
                there = {name for name in there if self._failed.get(name, 0.0) <= now}
            self._present.update(dict.fromkeys(there, now + self._settings.hit_ttl_s))
            gone = (self._seen.keys() | self._announced.keys()) & set(names) - there
            for name in gone:
                self.gone_total += self._seen.pop(name, None) is not None
                self._present.pop(name, None)
                self._lose(name)
            self._seen.update(dict.fromkeys(there, now + STORED_TTL_S))
            self._trim()
        return there

    def _run(self) -> None:
        while True:
            questions: list[_Question | None] = []
            with contextlib.suppress(queue.Empty):
                questions = [self._queue.get(timeout=CHECK_INTERVAL_S if self._watch else None)]
            while not self._queue.empty():
                questions.append(self._queue.get())
            open_ones = [question for question in questions if question is not None]
            if open_ones:
                try:
                    self.answer(open_ones)
                except Exception as error:  # the questions run into their deadline: misses
                    self._notices.warn("lookup", "lookups of %d requests failed: %r", len(open_ones), error)
            if len(open_ones) < len(questions):
                return
            try:
                self.check_announced()
            except Exception as error:
                self._notices.warn("watch", "looking after %d chunks failed: %r", len(self._announced), error)

    def _give_up(self, question: _Question, now: float) -> frozenset[bytes]:
        question.hits = NOTHING
        question.until_s = now + self._settings.miss_ttl_s
        with self._lock:
            self._count(_SILENT)
        return NOTHING

    def _trim(self) -> None:
        for table in (self._present, self._failed, self._seen):
            while len(table) > MAX_KNOWN:
                del table[next(iter(table))]

    def _count(self, what: str, count: int = 1) -> None:
        if count:
            self._counts[what] = self._counts.get(what, 0) + count
            self.totals[what] = self.totals.get(what, 0) + count

    def _count_tenant(self, tenant: str, hits: int, asked: int) -> None:
        if tenant not in self.tenants and len(self.tenants) >= MAX_TENANTS:
            tenant = OTHER_TENANTS
        known = self.tenants.get(tenant, (0, 0))
        self.tenants[tenant] = (known[0] + hits, known[1] + asked)

    def _report(self, now: float) -> None:
        """One line a minute, while there are lookups, that says why they miss."""
        if now < self._next_report_s:
            return
        with self._lock:
            counts, self._counts = self._counts, {}
        self._next_report_s = now + REPORT_INTERVAL_S
        if counts:
            hits = counts.pop(_PRESENT, 0)
            asked = hits + sum(counts.values())
            why = ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"
            self._notices.info("%d of %d chunk lookups were hits (%.0f %%); misses: %s",
                               hits, asked, 100 * hits / asked, why)  # fmt: skip
