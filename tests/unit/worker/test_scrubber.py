import os
import threading

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import block_path, pattern, put
from hearthfs.worker import scrubber as scrubber_module
from hearthfs.worker.leases import Leases
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.scrubber import NOTE, Place, Scrubber, rate

KEYS = [BlockKey(number, 1) for number in (1, 2, 3)]
DATA = pattern((2 << 20) + 55)
DAY_S = 86400.0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make(store, clock):
    """A scrubber whose thread does not run: the test takes its steps."""

    def make(cycle_s=DAY_S, pressure=lambda: 0.0, pause_pressure=20.0):
        scrubber = Scrubber(
            store,
            clock,
            Metrics(),
            cycle_s=cycle_s,
            bytes_per_s=1 << 40,
            pause_pressure=pause_pressure,
            told=lambda: told.append(1),
            pressure=pressure,
        )
        scrubber._thread = threading.Thread(target=lambda: None)
        scrubber._rest = lambda seconds: clock.advance(max(0.0, seconds))
        scrubber.start()
        scrubber.told = told
        return scrubber

    told = []
    return make


def flip_behind_its_back(store, key, at=(1 << 20) + 7):
    """As a disk does it: neither the file's times nor its record know."""
    path = block_path(store, key)
    path.chmod(0o600)
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 4]), at)
        status = os.fstat(file.fileno())
    disk, record = store.catalog.find(key)
    disk.index.put(key, store.catalog.make_record(status, record.checksums, record.synced))


def removed(make_store):
    return set(make_store.changes.take().removed)


def test_a_cycle_reads_all_and_finds_what_the_disk_lost(store, make_store, make, clock):
    for key in KEYS:
        put(store, key, DATA)
    make_store.changes.acknowledge(make_store.changes.take())
    flip_behind_its_back(store, KEYS[1])
    store.open_read(KEYS[1]).close()  # opening alone does not see it
    scrubber = make()
    while scrubber.look_at_next():
        pass
    assert removed(make_store) == {KEYS[1]}
    assert [path.name for path in (store.disks[0].path / "bad").iterdir()] == [str(KEYS[1])]
    assert scrubber.told
    assert store.verify(KEYS[0], lambda _: None)
    # The next cycle begins when its time has come, and not before.
    flip_behind_its_back(store, KEYS[0])
    assert not scrubber.look_at_next()
    clock.advance(DAY_S)
    while scrubber.look_at_next():
        pass
    assert removed(make_store) == {KEYS[0], KEYS[1]}


def test_a_restart_goes_on_where_it_was(store, make, monkeypatch):
    monkeypatch.setattr(scrubber_module, "NOTE_S", 0.0)
    for key in KEYS:
        put(store, key, DATA)
    scrubber = make()
    assert scrubber.look_at_next()
    scrubber._note_places()
    again = make()
    seen = []
    again._store = type("Spy", (), {"disks": store.disks, "verify": lambda _, key, pace: seen.append(key) or True})()
    while again.look_at_next():
        pass
    assert seen == KEYS[1:]
    assert Place.parse(store.disks[0].read_note(NOTE)).finished


@pytest.mark.parametrize("text", ["", "x", "1 2", "soon - 0", "1 2 3 4"])
def test_a_note_that_says_nothing(text):
    assert Place.parse(text) is None


def test_the_pace(store, make, clock):
    for key in KEYS:
        put(store, key, DATA)
    scrubber = make(cycle_s=100.0)
    total = store.disks[0].block_bytes
    while scrubber.look_at_next():
        pass
    least_s = min(3 * len(DATA) / (1 << 20), 100 / 1.25)
    assert total < 100 << 20
    assert clock.monotonic_s() == pytest.approx(least_s, rel=0.5)
    assert rate(1 << 40, 100.0, 5.0) == 5.0
    assert rate(0, 100.0, 1 << 40) == 1 << 20


def test_it_waits_for_quieter_disks_but_not_for_ever(store, make, clock):
    put(store, KEYS[0], b"x" * 100)
    pressures = [50.0, 50.0, 10.0]
    scrubber = make(pressure=lambda: pressures.pop(0))
    assert scrubber.look_at_next()
    assert pressures == []
    assert clock.monotonic_s() == pytest.approx(2.0)
    clock.advance(2 * DAY_S)
    before_s = clock.monotonic_s()
    scrubber = make(pressure=lambda: 100.0)
    scrubber._places[store.disks[0]] = Place(0.0)
    assert scrubber.look_at_next()
    assert clock.monotonic_s() - before_s == pytest.approx(600, abs=2)
    unasked = make(pressure=lambda: 1 / 0, pause_pressure=0)
    unasked._places[store.disks[0]] = Place(0.0)
    assert unasked.look_at_next()


def test_what_is_doubted_is_told_again(store, make_store, make):
    for key in KEYS[:2]:
        put(store, key, DATA)
    make_store.changes.acknowledge(make_store.changes.take())
    flip_behind_its_back(store, KEYS[1])
    scrubber = make(cycle_s=0)
    assert not scrubber.look_at_next()
    scrubber.doubt(KEYS)
    for _ in KEYS:
        assert scrubber.look_at_doubted()
    assert not scrubber.look_at_doubted()
    batch = make_store.changes.take()
    assert [report.key for report in batch.added] == [KEYS[0]]
    assert set(batch.removed) == {KEYS[1], KEYS[2]}


def test_a_bad_block_is_in_no_lease(store, make):
    put(store, KEYS[0], DATA)
    leases = Leases(10, 100, iter(range(1, 1000)).__next__)
    store.catalog.on_lost = leases.revoke
    leases.grant({KEYS[0]: store.open_read(KEYS[0])}, 0.0)
    flip_behind_its_back(store, KEYS[0])
    assert not store.verify(KEYS[0], lambda _: None)
    assert leases.borrow(KEYS[0], 0.0) is None
    leases.close()


def test_a_block_made_anew_meanwhile_is_not_thrown_away(store):
    put(store, KEYS[0], DATA)
    flip_behind_its_back(store, KEYS[0])
    renewed = []

    def renew(_):
        if not renewed:
            renewed.append(1)
            store.delete(KEYS[0])
            put(store, KEYS[0], DATA)

    assert not store.verify(KEYS[0], renew)
    assert store.verify(KEYS[0], lambda _: None)


def test_what_is_kept_of_bad_files_is_bounded(store):
    disk = store.disks[0]
    disk.bad_files_kept, disk.bad_bytes_kept = 2, 1 << 30
    for key in KEYS:
        put(store, key, DATA)
        store.mark_bad(key, "test")
    assert disk.bad_files == 2
    disk.bad_bytes_kept = 100
    put(store, KEYS[0], DATA)
    store.mark_bad(KEYS[0], "test")
    assert disk.bad_files == 1


def test_the_thread(store, make_store, clock):
    """Doubts are looked at at once, also in the middle of a long pause."""
    put(store, KEYS[0], DATA)
    make_store.changes.acknowledge(make_store.changes.take())
    told = threading.Event()
    scrubber = Scrubber(
        store,
        clock,
        Metrics(),
        cycle_s=DAY_S,
        bytes_per_s=1.0,
        pause_pressure=0,
        told=told.set,
    )
    scrubber.start()
    scrubber.doubt([KEYS[0]])
    assert told.wait(20)
    scrubber.stop()
    assert [report.key for report in make_store.changes.take().added] == [KEYS[0]]
