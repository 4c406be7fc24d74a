import threading
from collections.abc import Callable, Sequence

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.connector.identity import chunk_name
from hearthfs.connector.lookups import (
    MAX_QUESTIONS,
    MAX_TENANTS,
    NOTHING,
    OTHER_TENANTS,
    REPORT_INTERVAL_S,
    LookupTable,
)
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.tests.unit.connector.fakes import Log

SETTINGS = ConnectorSettings(
    root="/kv", lookup_timeout_s=0.5, hit_ttl_s=2, miss_ttl_s=1, failed_ttl_s=30, probe_interval_s=5
)
A, B, C = b"a", b"b", b"c"


class Asked:
    def __init__(self) -> None:
        self.there: set[bytes] | None = set()
        self.calls: list[list[str]] = []
        self.before: Callable[[], None] = lambda: None

    def __call__(self, names: Sequence[str]) -> list[bool] | None:
        self.calls.append(list(names))
        self.before()
        return None if self.there is None else [name in map(chunk_name, self.there) for name in names]


class Bench:
    """A table whose thread is the test."""

    def __init__(self) -> None:
        self.clock, self.asked, self.log = FakeClock(), Asked(), Log()
        self.table = LookupTable(self.asked, SETTINGS, Notices(self.log), self.clock)

    def work(self) -> None:
        """Answers all that waits, as one batch."""
        questions = []
        while not self.table._queue.empty():
            question = self.table._queue.get()
            assert question is not None
            questions.append(question)
        if questions:
            self.table.answer(questions)

    def ask(self, *keys: bytes, request: str = "r") -> frozenset[bytes] | None:
        return self.table.ask(request, lambda: keys)

    def know(self, *keys: bytes, request: str = "r") -> set[bytes]:
        """A question from its beginning to its end."""
        if self.ask(*keys, request=request) is None:
            self.work()
        hits = self.ask(*keys, request=request)
        self.table.forget(request)
        assert hits is not None
        return set(hits)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_call_for_a_whole_prefix(bench: Bench) -> None:
    bench.asked.there = {A, B}
    assert not bench.table.is_open("r")
    assert bench.ask(A, B, C) is None
    assert bench.ask(A, B, C) is None, "not asked twice"
    assert bench.table.is_open("r")
    bench.work()
    assert not bench.table.is_open("r")
    assert bench.asked.calls == [[chunk_name(key) for key in (A, B, C)]]
    assert bench.ask(A, B, C) == {A, B}
    assert len(bench.asked.calls) == 1


def test_requests_that_wait_together_are_one_call_and_shared_chunks_are_asked_once(bench: Bench) -> None:
    bench.asked.there = {A, B}
    bench.ask(A, B, request="1")
    bench.ask(A, C, request="2")
    bench.work()
    assert bench.asked.calls == [[chunk_name(key) for key in (A, B, C)]]
    assert (bench.ask(request="1"), bench.ask(request="2")) == ({A, B}, {A})


def test_nothing_is_asked_on_the_scheduler_thread(bench: Bench) -> None:
    def keys() -> list[bytes]:
        raise AssertionError

    assert bench.table.ask("r", keys) is None
    assert bench.asked.calls == []


def test_answers_grow_old(bench: Bench) -> None:
    bench.asked.there = {A}
    assert bench.know(A, B) == {A}
    bench.clock.advance(1.5)
    assert bench.know(A, B) == {A}
    assert bench.asked.calls[1:] == [[chunk_name(B)]], "the hit is still known, the miss is not"
    bench.clock.advance(1)
    bench.know(A)
    assert bench.asked.calls[2:] == [[chunk_name(A)]]


def test_an_answer_that_nobody_fetched_in_time_is_asked_again(bench: Bench) -> None:
    bench.asked.there = {A}
    bench.ask(A)
    bench.work()
    bench.clock.advance(SETTINGS.hit_ttl_s)
    assert bench.ask(A) is None


def test_steps_longer_than_answers_count_do_not_ask_for_ever(bench: Bench) -> None:
    bench.asked.there = {A}
    assert bench.ask(A) is None
    bench.work()
    bench.clock.advance(3 * SETTINGS.hit_ttl_s)
    assert bench.ask(A) is None
    bench.work()
    bench.clock.advance(3 * SETTINGS.hit_ttl_s)
    assert bench.ask(A) == {A}


def test_no_answer_in_time_is_a_miss_and_quiet_for_a_while(bench: Bench) -> None:
    """R039: pending has a deadline; a slow store is then not asked at all."""
    assert bench.ask(A) is None
    bench.clock.advance(0.6)
    assert not bench.table.is_open("r"), "it has run out of time"
    assert bench.ask(A) == NOTHING
    assert bench.ask(B, request="2") == NOTHING, "the store is not asked now"
    bench.clock.advance(6)
    assert bench.ask(C, request="3") is None
    assert bench.ask(C, request="4") == NOTHING, "one question probes"


def test_unreachable_store_is_a_miss(bench: Bench) -> None:
    bench.asked.there = None
    bench.ask(A)
    bench.work()
    assert bench.ask(A) == NOTHING
    assert bench.ask(B, request="2") == NOTHING


def test_a_late_answer_ends_the_quiet(bench: Bench) -> None:
    bench.asked.there = {A}
    bench.ask(A)
    bench.clock.advance(0.6)
    assert bench.ask(A) == NOTHING
    bench.work()
    assert bench.know(A, request="2") == {A}


def test_failed_load_flips_to_miss_until_stored_again(bench: Bench) -> None:
    """R038: else the request would be tried again in every step, for ever."""
    bench.asked.there = {A}
    name = chunk_name(A)
    assert bench.know(A) == {A}
    assert bench.table.is_stored(name)
    bench.table.note_failed(name)
    assert bench.know(A) == set()
    assert bench.table.has_failed(name)
    assert not bench.table.is_stored(name)
    bench.clock.advance(10)
    assert bench.know(A) == set(), "longer than any ordinary miss"
    bench.table.note_stored(name)
    assert bench.know(A) == {A}
    assert not bench.table.has_failed(name)


def test_an_answer_on_its_way_does_not_undo_a_failure(bench: Bench) -> None:
    bench.asked.there = {A}
    bench.asked.before = lambda: bench.table.note_failed(chunk_name(A))
    bench.ask(A)
    bench.work()
    assert bench.know(A) == set()


def test_an_answer_that_was_given_is_void_after_a_failure(bench: Bench) -> None:
    bench.asked.there = {A}
    bench.ask(A)
    bench.work()
    bench.table.note_failed(chunk_name(A))
    assert bench.know(A) == set()


def test_hung_thread_bounds_the_queue(bench: Bench) -> None:
    for number in range(MAX_QUESTIONS + 5):
        bench.ask(A, request=str(number))
    assert bench.table._queue.qsize() == MAX_QUESTIONS
    assert bench.ask(A, request="one more") == NOTHING


def test_stored_chunks_are_not_stored_again_for_a_while(bench: Bench) -> None:
    bench.table.note_stored("a")
    bench.clock.advance(59)
    assert bench.table.is_stored("a")
    bench.clock.advance(2)
    assert not bench.table.is_stored("a")


def test_one_line_says_why_lookups_miss(bench: Bench) -> None:
    """R056."""
    bench.asked.there = {A}
    bench.table.note_failed(chunk_name(C))
    bench.clock.advance(REPORT_INTERVAL_S - 31)
    bench.table.note_failed(chunk_name(C))
    bench.know(A, B, C)
    bench.clock.advance(29)
    bench.know(A)
    bench.clock.advance(3)
    bench.know(A)
    assert bench.log.lines == ["HearthFS: 3 of 5 chunk lookups were hits (60 %); misses: 1 absent, 1 failed to load"]


def test_absence_is_not_remembered(bench: Bench) -> None:
    """Another engine may be storing the chunk right now."""
    assert bench.know(A) == set()
    bench.asked.there = {A}
    assert bench.know(A) == {A}


def test_what_was_seen_and_is_absent_is_gone(bench: Bench) -> None:
    bench.asked.there = {A, B}
    bench.know(A, B, C)
    bench.asked.there = {A}
    bench.clock.advance(SETTINGS.hit_ttl_s)
    assert bench.know(A, B, C) == {A}
    assert bench.table.gone_total == 1
    assert (bench.table.is_stored(chunk_name(A)), bench.table.is_stored(chunk_name(B))) == (True, False)


def test_clear_forgets(bench: Bench) -> None:
    bench.table.note_stored(chunk_name(A))
    bench.table.clear()
    assert bench.ask(A) is None
    assert not bench.table.is_stored(chunk_name(A))


def test_how_long_questions_waited(bench: Bench) -> None:
    bench.ask(A)
    bench.clock.advance(0.2)
    bench.work()
    assert bench.table.take_waits() == [pytest.approx(0.2)]
    assert bench.table.take_waits() == []


def test_a_failing_call_does_not_end_the_thread() -> None:
    """R055."""
    log, answers = Log(), iter([RuntimeError("bug"), [True]])

    def ask(names: Sequence[str]) -> list[bool]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    table = LookupTable(ask, SETTINGS, Notices(log))
    first, second = (table.ask(request, lambda: [A]) for request in ("1", "2"))
    assert (first, second) == (None, None)
    one, two = table._queue.get(), table._queue.get()
    table.start()
    table._queue.put(one)
    while not log.lines:
        pass
    table._queue.put(two)
    table.close(5)
    assert table.ask("2", lambda: [A]) == {A}
    assert any("bug" in line for line in log.lines)


def test_tenants_are_asked_for_their_own_and_counted(bench: Bench) -> None:
    assert bench.table.ask("r", lambda: [A, B], "tenant-1") is None
    bench.work()
    assert bench.asked.calls == [[chunk_name(A, "tenant-1"), chunk_name(B, "tenant-1")]]
    assert bench.table.tenants == {"tenant-1": (0, 2)}
    for number in range(2 * MAX_TENANTS):
        bench.table.ask(str(number), lambda: [A], f"tenant-{number}")
    bench.work()
    assert len(bench.table.tenants) == MAX_TENANTS + 1
    assert bench.table.tenants[OTHER_TENANTS][1] > 0


def test_lingering_ends_with_an_answer_or_with_its_time() -> None:
    go = threading.Event()

    def ask(names: Sequence[str]) -> list[bool]:
        go.wait(20)
        return [True]

    table = LookupTable(ask, SETTINGS.model_copy(update={"lookup_timeout_s": 20}), Notices(Log()))
    table.start()
    table.linger(100)  # nothing is asked
    assert table.ask("r", lambda: [A]) is None
    table.linger(0.005)
    assert table.ask("r", lambda: [A]) is None
    go.set()
    table.linger(100)
    assert table.ask("r", lambda: [A]) == {A}
    table.close(20)
