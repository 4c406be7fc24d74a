import threading

import pytest
from hearthfs.common import checksums
from hearthfs.common.clock import FakeClock, SystemClock
from hearthfs.common.errors import (
    BlockCorrupt,
    DeadlineExceeded,
    HearthError,
    InvalidArgument,
    NoSpace,
    Unavailable,
)
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import StoreMaker, block_path, pattern, put, read_all, sums
from hearthfs.worker import fetch as fetch_module
from hearthfs.worker.control import Control
from hearthfs.worker.data_door import DataDoor
from hearthfs.worker.fetch import Fetcher
from hearthfs.worker.leases import Leases
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.service import BlockStreams, GrpcDoor, WorkerService

KEY = BlockKey(0xF1, 1)
DATA = pattern((5 << 20) + 11)
DIGEST = checksums.digest(sums(DATA), len(DATA))


class Source:
    """A worker to fetch from."""

    def __init__(self, store, *, data_port, port=0):
        self.store = store
        self.reads = 0
        self.offsets = set()
        self.leases = Leases(10, 100, iter(range(1, 1000)).__next__)
        self.door = GrpcDoor(f"127.0.0.1:{port}", 8, 30)
        self.data = DataDoor("127.0.0.1", 0, 16, "w1")
        metrics = Metrics()
        streams = BlockStreams(store, self.leases, SystemClock(), metrics)
        real = streams.open_range

        def counted(request):
            self.reads += 1
            self.offsets.add(request.offset_bytes)
            return real(request)

        streams.open_range = counted
        invite = self.data.invite if data_port else None
        control = Control(store, self.leases, None, SystemClock(), metrics, "w1", "c1", lambda: None, invite)
        self.door.start(WorkerService(control, store, self.leases, None), streams)
        self.data.start(streams, metrics)
        self.address = f"127.0.0.1:{self.door.port}"

    def stop(self):
        self.door.stop(0)
        self.data.stop(0)
        self.leases.close()


@pytest.fixture(params=[True, False], ids=["data port", "grpc"])
def sources(tmp_path, monkeypatch, request):
    """Makes source workers that have the block."""
    monkeypatch.setattr(fetch_module, "PIECE_BYTES", 2 << 20)
    made = []

    def make(data=DATA):
        maker = StoreMaker(tmp_path / f"source{len(made)}")
        maker.directory.mkdir()
        source = Source(maker(), data_port=request.param)
        if data is not None:
            put(source.store, KEY, data)
        made.append(source)
        return source

    yield make
    for source in made:
        source.stop()
        source.store.close()


@pytest.fixture
def fetcher():
    made = []

    def make(store, clock, timeout_s):
        made.append(Fetcher(store, clock, timeout_s))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def nothing_left(store):
    assert not list((store.disks[0].path / "working").iterdir())
    assert store.catalog.find(KEY) is None
    assert store.disks[0].space().used_bytes == 0


@pytest.mark.parametrize("data", [b"", b"x", pattern(2 << 20), DATA])
def test_a_block_comes_over_whole(store, sources, data, fetcher):
    source = sources(data)
    digest = checksums.digest(sums(data), len(data))
    fetched = fetcher(store, SystemClock(), 60).fetch(KEY, len(data), digest, [source.address])
    assert (fetched.record.digest, fetched.record.checksums, fetched.verified) == (digest, sums(data), True)
    assert read_all(store, KEY) == data


def test_a_block_that_is_here_is_not_fetched_again(store, sources, fetcher):
    put(store, KEY, DATA)
    source = sources()
    assert not fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [source.address]).verified
    assert source.reads == 0
    with pytest.raises(BlockCorrupt, match="another one"):
        fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST ^ 1, [source.address])


def test_many_ask_and_one_fetches(store, sources, fetcher):
    source = sources()
    own = fetcher(store, SystemClock(), 60)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(own.fetch(KEY, len(DATA), DIGEST, [source.address])))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert source.reads == 3  # pieces


def test_the_next_source_is_asked_when_one_fails(store, sources, fetcher):
    empty, bad, good = sources(None), sources(), sources()
    with block_path(bad.store, KEY).open("r+b") as stream:
        stream.seek(4 << 20)
        stream.write(b"\xff\xfe\xfd")
    fetched = fetcher(store, SystemClock(), 60).fetch(
        KEY, len(DATA), DIGEST, ["127.0.0.1:1", empty.address, bad.address, good.address]
    )
    assert fetched.record.digest == DIGEST
    assert read_all(store, KEY) == DATA


def test_a_long_block_comes_in_ranges_from_all_sources(store, sources, monkeypatch, fetcher):
    monkeypatch.setattr(fetch_module, "RANGE_BYTES", 2 << 20)
    one, other = sources(), sources()
    fetched = fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [one.address, other.address])
    assert fetched.record.digest == DIGEST
    assert read_all(store, KEY) == DATA
    assert (one.offsets, other.offsets) == ({0, 2 << 20}, {3 << 20, 5 << 20})


def test_one_bad_range_is_taken_from_the_other_source(store, sources, monkeypatch, fetcher):
    monkeypatch.setattr(fetch_module, "RANGE_BYTES", 2 << 20)
    bad, good = sources(), sources()
    with block_path(bad.store, KEY).open("r+b") as stream:
        stream.seek(1 << 20)
        stream.write(b"\xff\xfe\xfd")
    fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [bad.address, good.address])
    assert read_all(store, KEY) == DATA


def test_an_error_in_any_range_is_the_fetchs(store, sources, monkeypatch, make_store, fetcher):
    monkeypatch.setattr(fetch_module, "RANGE_BYTES", 2 << 20)
    source = sources()
    make_store.calls.errors["fill"] = OSError(28, "injected")
    make_store.calls.after["fill"] = 4
    with pytest.raises(NoSpace):
        fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [source.address])
    nothing_left(store)


@pytest.mark.parametrize(
    ("length", "digest", "error"),
    [(len(DATA), DIGEST ^ 1, BlockCorrupt), (len(DATA) - 1, DIGEST, HearthError), (len(DATA) + 5, DIGEST, HearthError)],
)
def test_another_version_than_the_master_named_is_not_taken(store, sources, length, digest, error, fetcher):
    source = sources()
    with pytest.raises(error):
        fetcher(store, SystemClock(), 60).fetch(KEY, length, digest, [source.address])
    nothing_left(store)


def test_a_failed_fetch_leaves_nothing_and_can_be_tried_again(store, sources, make_store, fetcher):
    source = sources()
    own = fetcher(store, SystemClock(), 60)
    with pytest.raises(Unavailable):
        own.fetch(KEY, len(DATA), DIGEST, ["127.0.0.1:1"])
    nothing_left(store)
    make_store.calls.errors["fill"] = OSError(28, "injected")
    make_store.calls.after["fill"] = 1
    with pytest.raises(NoSpace):
        own.fetch(KEY, len(DATA), DIGEST, [source.address])
    nothing_left(store)
    make_store.calls.errors.clear()
    own.fetch(KEY, len(DATA), DIGEST, [source.address])
    assert read_all(store, KEY) == DATA


def test_a_source_that_comes_back_is_used_at_once(store, sources, fetcher):
    source = sources()
    address, port = source.address, source.door.port
    own = fetcher(store, SystemClock(), 60)
    source.stop()
    for _ in range(3):
        with pytest.raises(Unavailable):
            own.fetch(KEY, len(DATA), DIGEST, [address])
    again = Source(source.store, data_port=True, port=port)
    try:
        own.fetch(KEY, len(DATA), DIGEST, [address])
    finally:
        again.stop()
    assert read_all(store, KEY) == DATA


def test_a_block_for_which_there_is_no_room_is_not_begun(make_store, sources, fetcher):
    store = make_store(limit=4 << 20)
    source = sources()
    with pytest.raises(NoSpace):
        fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [source.address])
    assert source.reads == 0
    nothing_left(store)


def test_the_deadline_covers_all_sources(store, sources, fetcher):
    class Late(FakeClock):
        def monotonic_s(self):
            self.advance(3)
            return super().monotonic_s()

    source = sources()
    with pytest.raises(DeadlineExceeded):
        fetcher(store, Late(), 5).fetch(KEY, len(DATA), DIGEST, [source.address])
    nothing_left(store)


def test_stopping_ends_a_fetch(store, sources, monkeypatch, fetcher):
    source = sources()
    begun, release = threading.Event(), threading.Event()
    real = source.store.open_read

    def stuck(key):
        begun.set()
        release.wait(60)
        return real(key)

    monkeypatch.setattr(source.store, "open_read", stuck)
    own = fetcher(store, SystemClock(), 30)
    errors = []

    def work():
        try:
            own.fetch(KEY, len(DATA), DIGEST, [source.address, source.address])
        except HearthError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    own.stop()
    thread.join(20)
    release.set()
    assert not thread.is_alive()
    assert isinstance(errors[0], Unavailable)
    nothing_left(store)


def test_nonsense_is_refused(store, fetcher):
    own = fetcher(store, SystemClock(), 5)
    for length, sources in ((1, []), (1 << 62, ["127.0.0.1:1"])):
        with pytest.raises(InvalidArgument):
            own.fetch(KEY, length, 1, sources)
