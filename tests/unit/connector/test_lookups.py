from collections.abc import Sequence

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.connector.lookups import MAX_BATCHES, REPORT_INTERVAL_S, Answer, LookupTable
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.tests.unit.connector.fakes import Log

SETTINGS = ConnectorSettings(
    root="/kv", lookup_timeout_s=0.5, hit_ttl_s=2, miss_ttl_s=1, failed_ttl_s=30, probe_interval_s=5
)


class Asked:
    def __init__(self) -> None:
        self.there: set[str] | None = set()
        self.calls: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> list[bool] | None:
        self.calls.append(list(names))
        return None if self.there is None else [name in self.there for name in names]


class Bench:
    """A table whose thread is the test."""

    def __init__(self) -> None:
        self.clock, self.asked, self.log = FakeClock(), Asked(), Log()
        self.table = LookupTable(self.asked, SETTINGS, Notices(self.log), self.clock)

    def work(self) -> None:
        self.table.flush()
        while not self.table._queue.empty():
            batch = self.table._queue.get()
            assert batch is not None
            self.table.answer_batch(batch)

    def ask(self, *names: str) -> list[Answer]:
        return [self.table.lookup(name) for name in names]


@pytest.fixture
def bench() -> Bench:
    return Bench()


LATER, HIT, MISS = Answer.LATER, Answer.HIT, Answer.MISS


def test_one_call_for_a_whole_prefix(bench: Bench) -> None:
    bench.asked.there = {"a", "b"}
    assert bench.ask("a", "b", "c") == [LATER, LATER, LATER]
    assert bench.ask("a", "b", "c") == [LATER, LATER, LATER], "not asked twice"
    bench.work()
    assert bench.asked.calls == [["a", "b", "c"]]
    assert bench.ask("a", "b", "c") == [HIT, HIT, MISS]
    assert len(bench.asked.calls) == 1


def test_nothing_is_asked_by_lookup_itself(bench: Bench) -> None:
    bench.ask("a")
    assert bench.asked.calls == []


def test_answers_grow_old(bench: Bench) -> None:
    bench.asked.there = {"a"}
    bench.ask("a", "b")
    bench.work()
    bench.clock.advance(1.5)
    assert bench.ask("a", "b") == [HIT, LATER]
    bench.clock.advance(1)
    assert bench.ask("a") == [LATER]


def test_no_answer_in_time_is_a_miss_and_quiet_for_a_while(bench: Bench) -> None:
    """R039: pending has a deadline; a slow store is then not asked at all."""
    bench.ask("a")
    bench.table.flush()
    bench.clock.advance(0.6)
    assert bench.ask("a") == [MISS]
    assert bench.ask("b") == [MISS], "the store is not asked now"
    bench.clock.advance(6)
    assert bench.ask("b") == [LATER]


def test_unreachable_store_is_a_miss(bench: Bench) -> None:
    bench.asked.there = None
    bench.ask("a")
    bench.work()
    assert bench.ask("a", "b") == [MISS, MISS]


def test_a_late_answer_still_counts(bench: Bench) -> None:
    bench.asked.there = {"a"}
    bench.ask("a")
    bench.clock.advance(0.6)
    assert bench.ask("a") == [MISS]
    bench.work()
    assert bench.ask("a") == [HIT]


def test_failed_load_flips_to_miss_until_stored_again(bench: Bench) -> None:
    """R038: else the request would be tried again in every step, for ever."""
    bench.asked.there = {"a"}
    bench.ask("a")
    bench.work()
    assert bench.ask("a") == [HIT]
    assert bench.table.is_stored("a")
    bench.table.note_failed("a")
    assert bench.ask("a") == [MISS]
    assert bench.table.has_failed("a")
    assert not bench.table.is_stored("a")
    bench.clock.advance(10)
    assert bench.ask("a") == [MISS], "longer than any ordinary miss"
    bench.table.note_stored("a")
    assert bench.ask("a") == [HIT]
    assert not bench.table.has_failed("a")


def test_an_answer_on_its_way_does_not_undo_a_failure(bench: Bench) -> None:
    bench.asked.there = {"a"}
    bench.ask("a")
    bench.table.note_failed("a")
    bench.work()
    assert bench.ask("a") == [MISS]


def test_hung_thread_bounds_the_queue(bench: Bench) -> None:
    for number in range(MAX_BATCHES + 5):
        bench.ask(str(number))
        bench.table.flush()
    assert bench.table._queue.qsize() == MAX_BATCHES
    assert bench.ask(str(MAX_BATCHES + 4)) == [MISS]


def test_stored_chunks_are_not_stored_again_for_a_while(bench: Bench) -> None:
    bench.table.note_stored("a")
    bench.clock.advance(59)
    assert bench.table.is_stored("a")
    bench.clock.advance(2)
    assert not bench.table.is_stored("a")


def test_one_line_says_why_lookups_miss(bench: Bench) -> None:
    """R056."""
    bench.asked.there = {"a"}
    bench.ask("a", "b", "c")
    bench.work()
    bench.table.note_failed("c")
    bench.ask("a", "b", "c")
    bench.clock.advance(REPORT_INTERVAL_S)
    bench.table.flush()
    assert bench.log.lines == ["HearthFS: 1 of 3 chunk lookups were hits (33 %); misses: 1 absent, 1 failed to load"]


def test_absence_is_forgotten_once_the_chunk_is_being_stored(bench: Bench) -> None:
    bench.ask("a", "b")
    bench.work()
    bench.table.note_failed("b")
    bench.table.note_storing("a")
    bench.table.note_storing("b")
    assert bench.ask("a", "b") == [LATER, MISS]
    bench.table.note_storing("a")
    assert bench.ask("a") == [LATER], "what is being asked is not asked twice"
    bench.work()
    assert bench.asked.calls == [["a", "b"], ["a"]]


def test_clear_forgets(bench: Bench) -> None:
    bench.table.note_stored("a")
    bench.table.clear()
    assert bench.ask("a") == [LATER]
    assert not bench.table.is_stored("a")


def test_a_failing_call_does_not_end_the_thread() -> None:
    """R055."""
    log, answers = Log(), iter([RuntimeError("bug"), [True]])

    def ask(names: Sequence[str]) -> list[bool]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    table = LookupTable(ask, SETTINGS, Notices(log))
    table.start()
    table.lookup("a")
    table.flush()
    table.lookup("b")
    table.flush()
    table.close(5)
    assert table.lookup("b") is HIT
    assert any("bug" in line for line in log.lines)
