import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import NoSpace
from hearthfs.connector import chunk_format
from hearthfs.connector.loads import Loader
from hearthfs.connector.notices import Notices
from hearthfs.connector.pages import HostPages
from hearthfs.connector.pieces import Piece
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.connector.staging import Arena
from hearthfs.connector.stores import Storer
from hearthfs.tests.unit.connector.fakes import Log, MemoryStore, storage_of
from hearthfs.tests.unit.connector.test_loads import hang, wait_until

PAGE, DIRECTORY = 512, "m/l/0"
SETTINGS = ConnectorSettings(
    root="/kv", batch_chunks=2, store_age_s=10, flush_timeout_s=0.05, store_threads=1, store_backlog_bytes=8 * PAGE
)


class Bench:
    """A storer over a memory store, with an engine of 64 blocks of one layer; block n holds bytes n."""

    def __init__(self, settings: ConnectorSettings = SETTINGS, slots: int = 4) -> None:
        self.store, self.log, self.clock = MemoryStore(), Log(), FakeClock()
        self.engine = np.repeat(np.arange(64, dtype=np.int8)[:, None], PAGE, axis=1)
        self.arena = Arena(slots, chunk_format.file_bytes(PAGE))
        self.storage = storage_of(self.store, settings, self.log, self.clock)
        mover, notices = HostPages([[self.engine]], 1), Notices(self.log, interval_s=0)
        loader = Loader(self.storage, DIRECTORY, mover, self.arena, settings, notices, self.clock)
        self.storer = Storer(self.storage, DIRECTORY, mover, self.arena, loader, settings, notices, self.clock)
        self.go, self.inside = threading.Event(), threading.Event()

    def hang(self) -> None:
        self.store.before_store = hang(self.inside, self.go)

    def submit(self, job_id: int, *blocks: int, replace: tuple[str, ...] = ()) -> None:
        pieces = [Piece(f"c{block}", 0, 0, (block,)) for block in blocks]
        self.storer.submit(job_id, pieces, [], frozenset(replace))

    def finished(self, count: int) -> list[int]:
        jobs: list[int] = []
        wait_until(lambda: len(jobs.extend(r.job_id for r in self.storer.finished()) or jobs) >= count)
        return jobs

    def outcomes(self, count: int) -> dict[str, str]:
        found: dict[str, str] = {}
        wait_until(lambda: len(found.update(self.storer.outcomes()) or found) >= count)
        return found


def stop(bench: Bench, timeout_s: float = 5) -> None:
    bench.go.set()
    bench.storer.stop(timeout_s)
    for thread in (bench.storer._gatherer, *bench.storer._writers):
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.storer.start()
    yield bench
    stop(bench)


def test_chunks_arrive_sealed_under_their_names(bench: Bench) -> None:
    bench.submit(1, 3, 4, 5)
    assert bench.finished(1) == [1]
    assert bench.outcomes(3) == {"c3": "", "c4": "", "c5": ""}
    for block in (3, 4, 5):
        file = bench.store.files[DIRECTORY, f"c{block}"]
        assert chunk_format.open_sealed(file, PAGE, f"c{block}", DIRECTORY) == 0
        assert file[:PAGE] == bytes([block]) * PAGE
    assert bench.arena.free_slots == bench.arena.slots


def test_done_means_copied_so_blocks_may_change_while_the_store_hangs(bench: Bench) -> None:
    """R047: what is stored are the bytes from before the engine went on."""
    bench.hang()
    bench.submit(1, 3, 4)
    assert bench.finished(1) == [1]
    assert bench.storer.outcomes() == [], "not stored, so nobody is told so"
    bench.engine[3:5] = 77
    bench.go.set()
    assert bench.outcomes(2) == {"c3": "", "c4": ""}
    assert bench.store.files[DIRECTORY, "c3"][:PAGE] == b"\x03" * PAGE


def test_slow_store_drops_and_says_so(bench: Bench) -> None:
    """R045: four slots fill up, then stores are dropped, and the engine never waits."""
    bench.storer._settings = SETTINGS.model_copy(update={"store_age_s": 0.02})
    bench.clock.advance(0)
    bench.hang()
    bench.submit(1, 1, 2, 3, 4)
    assert bench.finished(1) == [1]
    assert bench.inside.wait(5)
    bench.submit(2, 5, 6)
    assert bench.finished(1) == [2]
    outcomes = bench.outcomes(2)
    assert set(outcomes) == {"c5", "c6"}
    assert "slow store: waited" in outcomes["c5"]
    assert any("did not store 2 chunks" in line for line in bench.log.lines)
    bench.go.set()
    assert bench.outcomes(4) == {"c1": "", "c2": "", "c3": "", "c4": ""}


def test_full_backlog_drops_at_once() -> None:
    bench = Bench()  # its threads do not run
    bench.submit(1, *range(8))
    bench.submit(2, 9)
    assert bench.storer.outcomes() == [("c9", "backlog full")]
    assert [result.job_id for result in bench.storer.finished()] == [2]
    bench.storer.start()
    assert bench.finished(1) == [1]
    bench.submit(3, 10)
    assert bench.finished(1) == [3]
    assert "c10" in bench.outcomes(9)
    stop(bench)


@pytest.mark.parametrize("error", [NoSpace("full"), RuntimeError("bug")])
def test_errors_of_the_store_are_outcomes(bench: Bench, error: Exception) -> None:
    """R043, R044, R055: a full or broken store costs the chunk, nothing else."""
    bench.store.error = error
    bench.submit(1, 3)
    assert bench.finished(1) == [1]
    assert bench.outcomes(1)["c3"]
    bench.store.error = None
    bench.submit(2, 3)
    assert bench.outcomes(1)["c3"].startswith("suspended: ")
    bench.clock.advance(SETTINGS.probe_interval_s)
    bench.submit(3, 3)
    assert bench.outcomes(1) == {"c3": ""}
    assert bench.arena.free_slots == bench.arena.slots


def test_unreachable_store_copies_nothing() -> None:
    bench = Bench()
    bench.storage.close()
    bench.storer.start()
    bench.submit(1, 3)
    assert bench.finished(1) == [1]
    assert bench.outcomes(1) == {"c3": "unreachable"}
    stop(bench)


def test_bad_files_are_replaced_good_ones_kept(bench: Bench) -> None:
    bench.store.files[DIRECTORY, "c3"] = bench.store.files[DIRECTORY, "c4"] = b"old"
    bench.submit(1, 3, 4, replace=("c3",))
    assert bench.outcomes(2) == {"c3": "", "c4": ""}
    assert bench.store.files[DIRECTORY, "c3"] != b"old"
    assert bench.store.files[DIRECTORY, "c4"] == b"old"


def test_wait_gives_up_what_has_not_been_copied(bench: Bench) -> None:
    """A preempted request's blocks are needed now, and staging is full behind a store that hangs."""
    bench.hang()
    bench.submit(1, 1, 2, 3, 4)
    assert bench.finished(1) == [1]
    bench.submit(2, 5)
    bench.storer.wait({1, 2, 99})
    bench.engine[:] = 99
    bench.go.set()
    outcomes = bench.outcomes(5)
    assert outcomes.pop("c5") == "preempted: the engine needs its blocks"
    assert set(outcomes.values()) == {""}
    assert (DIRECTORY, "c5") not in bench.store.files
    assert all(99 not in file[:PAGE] for (_, name), file in bench.store.files.items() if name.startswith("c"))


def test_stop_drains_within_its_time_and_tells_what_it_dropped() -> None:
    """R054."""
    bench = Bench()
    bench.storer.start()
    bench.hang()
    bench.submit(1, 1, 2)
    assert bench.inside.wait(5)
    bench.storer.stop(0.05)
    assert any("dropped 2 chunks" in line for line in bench.log.lines)
    stop(bench)


def test_a_store_that_is_slow_for_loads_gets_no_stores(bench: Bench) -> None:
    bench.storage.note_late_load("late: not loaded within 1 s")
    bench.submit(1, 3)
    assert bench.finished(1) == [1]
    assert bench.outcomes(1) == {"c3": "suspended: late: not loaded within 1 s"}
    bench.clock.advance(SETTINGS.probe_interval_s)
    bench.submit(2, 3)
    assert bench.outcomes(1) == {"c3": ""}


def test_the_store_is_told_how_deep_chunks_lie(bench: Bench) -> None:
    pieces = [Piece(f"c{block}", 0, 0, (block,), depth=100 * block) for block in (1, 2)]
    bench.storer.submit(1, pieces, [], frozenset())
    bench.outcomes(2)
    assert bench.store.depths == {"c1": 100, "c2": 200}
