import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import Unavailable
from hearthfs.connector import chunk_format
from hearthfs.connector.loads import Loader, LoadResult
from hearthfs.connector.notices import Notices
from hearthfs.connector.pages import HostPages
from hearthfs.connector.pieces import Piece
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.connector.staging import Arena
from hearthfs.tests.unit.connector.fakes import Log, MemoryStore, storage_of

PAGE, DIRECTORY = 512, "m/l/0"
SETTINGS = ConnectorSettings(
    root="/kv", load_threads=2, batch_chunks=2, load_timeout_s=10, flush_timeout_s=0.05, store_threads=1
)


class Bench:
    """A loader over a memory store, with an engine of 64 blocks of one layer."""

    def __init__(self, slots: int = 4) -> None:
        self.store, self.log, self.clock = MemoryStore(), Log(), FakeClock()
        self.engine = np.zeros((64, PAGE), dtype=np.int8)
        self.arena = Arena(slots, chunk_format.file_bytes(PAGE))
        storage = storage_of(self.store, SETTINGS, self.log, self.clock)
        mover = HostPages([[self.engine]], 1)
        notices = Notices(self.log, interval_s=0)
        self.loader = Loader(storage, DIRECTORY, mover, self.arena, SETTINGS, notices, self.clock)

    def fill(self, name: str, value: int, first_block: int = 0) -> None:
        file = bytearray(chunk_format.file_bytes(PAGE))
        file[:PAGE] = bytes([value]) * PAGE
        chunk_format.seal(file, PAGE, name, DIRECTORY, first_block)
        self.store.files[DIRECTORY, name] = bytes(file)

    def submit(self, job_id: int, *names: str, unclear: tuple[str, ...] = ()) -> None:
        pieces = [Piece(name, 0, 0, (int(name[1:]),)) for name in names]
        self.loader.submit(job_id, f"r{job_id}", pieces, list(unclear))

    def results(self, count: int = 1) -> list[LoadResult]:
        found: list[LoadResult] = []
        wait_until(lambda: len(found.extend(self.loader.finished()) or found) >= count)
        return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def hang(inside: threading.Event, go: threading.Event) -> Callable[[], None]:
    """A store that says when a call is in it and stays there until it may go."""

    def call() -> None:
        inside.set()
        go.wait(5)

    return call


@contextmanager
def running(bench: Bench) -> Iterator[Bench]:
    bench.loader.start()
    try:
        yield bench
    finally:
        bench.loader.stop()
        for thread in bench.loader._threads:
            thread.join(5)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running(Bench()) as bench:
        yield bench


def test_all_chunks_land_in_their_blocks(bench: Bench) -> None:
    names = [f"c{n}" for n in range(1, 20)]
    for n, name in enumerate(names, 1):
        bench.fill(name, n)
    bench.submit(1, *names)
    (result,) = bench.results()
    assert (result.job_id, result.request_id, result.failed, result.size_bytes) == (1, "r1", {}, 19 * PAGE)
    assert [int(bench.engine[n, 0]) for n in range(1, 20)] == list(range(1, 20))
    assert bench.arena.free_slots == bench.arena.slots


def test_missing_chunk_fails_the_request_and_names_itself(bench: Bench) -> None:
    bench.fill("c1", 1)
    bench.submit(1, "c1", "c2")
    (result,) = bench.results()
    assert list(result.failed) == ["c2"]
    assert not bench.engine.any(), "a failed load delivers nothing"


@pytest.mark.parametrize("damage", ["flip", "truncate", "zeros", "other"])
def test_bad_bytes_are_never_delivered(bench: Bench, damage: str) -> None:
    bench.fill("c1", 1)
    bench.fill("c2", 2)
    data = bytearray(bench.store.files[DIRECTORY, "c2"])
    if damage == "flip":
        data[100] ^= 1
    elif damage == "truncate":
        del data[-1:]
    elif damage == "zeros":
        data = bytearray(len(data))
    else:
        data = bytearray(bench.store.files[DIRECTORY, "c1"])
    bench.store.files[DIRECTORY, "c2"] = bytes(data)
    bench.submit(1, "c1", "c2")
    (result,) = bench.results()
    assert list(result.failed) == ["c2"]
    assert not bench.engine.any()


def test_blocks_that_a_chunk_does_not_hold_are_refused(bench: Bench) -> None:
    bench.fill("c1", 1, first_block=1)
    bench.submit(1, "c1")
    assert "not kept" in bench.results()[0].failed["c1"]


def test_unclear_blocks_fail_at_once(bench: Bench) -> None:
    bench.fill("c1", 1)
    bench.submit(1, "c1", unclear=("c9",))
    assert set(bench.results()[0].failed) == {"c1", "c9"}


def test_a_store_that_raises_does_not_end_the_threads(bench: Bench) -> None:
    """R036, R055."""
    bench.fill("c1", 1)
    bench.store.error = Unavailable("gone")
    for job_id in range(4):
        bench.submit(job_id, "c1")
    assert all(result.failed for result in bench.results(4))
    bench.store.error = None
    bench.submit(8, "c1")
    assert "not asked" in bench.results()[0].failed["c1"]
    bench.clock.advance(SETTINGS.probe_interval_s)
    bench.submit(9, "c1")
    assert bench.results()[0].failed == {}


def test_a_hung_load_fails_at_its_deadline_and_writes_nothing_later(bench: Bench) -> None:
    bench.fill("c1", 1)
    go, inside = threading.Event(), threading.Event()
    bench.store.before_load = hang(inside, go)
    bench.submit(1, "c1")
    assert inside.wait(5)
    assert bench.loader.finished() == []
    bench.clock.advance(10.1)
    (result,) = bench.results()
    assert result.failed == {"c1": "late: not loaded within 10 s"}
    assert result.late
    assert not bench.loader.is_busy
    go.set()
    wait_until(lambda: bench.arena.free_slots == bench.arena.slots)
    assert not bench.engine.any()
    assert bench.loader.finished() == []


def test_a_load_has_the_time_that_its_order_says() -> None:
    """And no call of the store is given more than what is left of it."""
    bench = Bench(slots=1)
    bench.fill("c1", 1)
    bench.fill("c2", 2)
    pieces = [Piece(name, 0, 0, (1,)) for name in ("c1", "c2")]
    with running(bench):
        bench.store.before_load = lambda: bench.clock.advance(0.3)
        bench.loader.submit(1, "r", pieces, [], timeout_s=0.5)
        assert bench.results()[0].failed == {}
        assert bench.store.timeouts_s == [pytest.approx(0.5), pytest.approx(0.2)]
        go, inside = threading.Event(), threading.Event()
        bench.store.before_load = hang(inside, go)
        bench.loader.submit(2, "r", pieces, [], timeout_s=0.5)
        assert inside.wait(5)
        bench.clock.advance(0.6)
        (result,) = bench.results()
        assert (result.late, set(result.failed.values())) == (True, {"late: not loaded within 0.5 s"})
        go.set()


def test_wait_returns_soon_and_then_nothing_is_written(bench: Bench) -> None:
    bench.fill("c1", 1)
    go, inside = threading.Event(), threading.Event()
    bench.store.before_load = hang(inside, go)
    bench.submit(1, "c1")
    assert inside.wait(5)
    bench.loader.wait({1, 77})
    go.set()
    wait_until(lambda: bench.arena.free_slots == bench.arena.slots)
    assert not bench.engine.any()
    assert list(bench.results()[0].failed) == ["c1"]


def test_no_staging_memory_is_a_failed_load() -> None:
    bench = Bench(slots=1)
    bench.fill("c1", 1)
    bench.arena.acquire(1, 0)
    bench.loader._settings = SETTINGS.model_copy(update={"load_timeout_s": 0.02})
    with running(bench):
        bench.submit(1, "c1")
        assert bench.results()[0].failed == {"c1": "late: no staging memory in time"}


def test_more_chunks_than_memory_load_in_turns() -> None:
    bench = Bench(slots=1)
    names = [f"c{n}" for n in range(1, 10)]
    for name in names:
        bench.fill(name, 1)
    with running(bench):
        bench.submit(1, *names)
        assert bench.results()[0].failed == {}
    assert bench.engine[1:10].all()


def test_lingering_ends_with_a_load_or_with_its_time(bench: Bench) -> None:
    bench.loader.linger(100)  # nothing is loading
    bench.fill("c1", 1)
    go, inside = threading.Event(), threading.Event()
    bench.store.before_load = hang(inside, go)
    bench.submit(1, "c1")
    bench.loader.linger(0.005)
    assert bench.loader.finished() == []
    go.set()
    bench.loader.linger(100)
    assert bench.results()[0].failed == {}


def test_a_load_asks_once_where_its_chunks_are() -> None:
    """Whatever its size; one that is a single call asks by that."""
    bench = Bench()
    names = [f"c{number}" for number in range(1, 8)]
    for number, name in enumerate(names):
        bench.fill(name, number)
    with running(bench):
        bench.submit(1, *names)
        (result,) = bench.results()
        assert result.failed == {}
        assert bench.store.located == [names]
        bench.submit(2, *names[:2])
        bench.results()
    assert bench.store.located == [names]
