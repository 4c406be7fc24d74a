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
from hearthfs.worker.fetch import Fetcher
from hearthfs.worker.leases import Leases
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.service import BlockStreams, GrpcDoor, WorkerService

KEY = BlockKey(0xF1, 1)
DATA = pattern((5 << 20) + 11)
DIGEST = checksums.digest(sums(DATA), len(DATA))


class Source:
    """A worker to fetch from."""

    def __init__(self, store):
        self.store = store
        self.reads = 0
        self.leases = Leases(10, 100, iter(range(1, 1000)).__next__)
        self.door = GrpcDoor("127.0.0.1:0", 8, 30)
        streams = BlockStreams(store, self.leases, SystemClock(), Metrics())
        real = streams.read

        def counted(request):
            self.reads += 1
            return real(request)

        streams.read = counted
        self.door.start(WorkerService(None, store, self.leases, None), streams)
        self.address = f"127.0.0.1:{self.door.port}"

    def stop(self):
        self.door.stop(0)
        self.leases.close()


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Makes source workers that have the block."""
    monkeypatch.setattr(fetch_module, "PIECE_BYTES", 2 << 20)
    made = []

    def make(data=DATA):
        maker = StoreMaker(tmp_path / f"source{len(made)}")
        maker.directory.mkdir()
        source = Source(maker())
        if data is not None:
            put(source.store, KEY, data)
        made.append(source)
        return source

    yield make
    for source in made:
        source.stop()
        source.store.close()


def nothing_left(store):
    assert not list((store.disks[0].path / "working").iterdir())
    assert store.catalog.find(KEY) is None
    assert store.disks[0].space().used_bytes == 0


@pytest.mark.parametrize("data", [b"", b"x", pattern(2 << 20), DATA])
def test_a_block_comes_over_whole(store, sources, data):
    source = sources(data)
    digest = checksums.digest(sums(data), len(data))
    record = Fetcher(store, SystemClock(), 60).fetch(KEY, len(data), digest, [source.address])
    assert (record.digest, record.checksums) == (digest, sums(data))
    assert read_all(store, KEY) == data


def test_a_block_that_is_here_is_not_fetched_again(store, sources):
    put(store, KEY, DATA)
    source = sources()
    Fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [source.address])
    assert source.reads == 0
    with pytest.raises(BlockCorrupt, match="another one"):
        Fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST ^ 1, [source.address])


def test_many_ask_and_one_fetches(store, sources):
    source = sources()
    fetcher = Fetcher(store, SystemClock(), 60)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetcher.fetch(KEY, len(DATA), DIGEST, [source.address])))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert source.reads == 3  # pieces


def test_the_next_source_is_asked_when_one_fails(store, sources):
    empty, bad, good = sources(None), sources(), sources()
    with block_path(bad.store, KEY).open("r+b") as stream:
        stream.seek(4 << 20)
        stream.write(b"\xff\xfe\xfd")
    record = Fetcher(store, SystemClock(), 60).fetch(
        KEY, len(DATA), DIGEST, ["127.0.0.1:1", empty.address, bad.address, good.address]
    )
    assert record.digest == DIGEST
    assert read_all(store, KEY) == DATA


@pytest.mark.parametrize(
    ("length", "digest", "error"),
    [(len(DATA), DIGEST ^ 1, BlockCorrupt), (len(DATA) - 1, DIGEST, HearthError), (len(DATA) + 5, DIGEST, HearthError)],
)
def test_another_version_than_the_master_named_is_not_taken(store, sources, length, digest, error):
    source = sources()
    with pytest.raises(error):
        Fetcher(store, SystemClock(), 60).fetch(KEY, length, digest, [source.address])
    nothing_left(store)


def test_a_failed_fetch_leaves_nothing_and_can_be_tried_again(store, sources, make_store):
    source = sources()
    fetcher = Fetcher(store, SystemClock(), 60)
    with pytest.raises(Unavailable):
        fetcher.fetch(KEY, len(DATA), DIGEST, ["127.0.0.1:1"])
    nothing_left(store)
    make_store.calls.errors["fill"] = OSError(28, "injected")
    make_store.calls.after["fill"] = 1
    with pytest.raises(NoSpace):
        fetcher.fetch(KEY, len(DATA), DIGEST, [source.address])
    nothing_left(store)
    make_store.calls.errors.clear()
    fetcher.fetch(KEY, len(DATA), DIGEST, [source.address])
    assert read_all(store, KEY) == DATA


def test_a_block_for_which_there_is_no_room_is_not_begun(make_store, sources):
    store = make_store(limit=4 << 20)
    source = sources()
    with pytest.raises(NoSpace):
        Fetcher(store, SystemClock(), 60).fetch(KEY, len(DATA), DIGEST, [source.address])
    assert source.reads == 0
    nothing_left(store)


def test_the_deadline_covers_all_sources(store, sources):
    class Late(FakeClock):
        def monotonic_s(self):
            self.advance(3)
            return super().monotonic_s()

    source = sources()
    with pytest.raises(DeadlineExceeded):
        Fetcher(store, Late(), 5).fetch(KEY, len(DATA), DIGEST, [source.address])
    nothing_left(store)


def test_stopping_ends_a_fetch(store, sources, monkeypatch):
    source = sources()
    begun, release = threading.Event(), threading.Event()
    real = source.store.open_read

    def stuck(key):
        begun.set()
        release.wait(60)
        return real(key)

    monkeypatch.setattr(source.store, "open_read", stuck)
    fetcher = Fetcher(store, SystemClock(), 30)
    errors = []

    def work():
        try:
            fetcher.fetch(KEY, len(DATA), DIGEST, [source.address, source.address])
        except HearthError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    fetcher.stop()
    thread.join(20)
    release.set()
    assert not thread.is_alive()
    assert isinstance(errors[0], Unavailable)
    nothing_left(store)


def test_nonsense_is_refused(store):
    fetcher = Fetcher(store, SystemClock(), 5)
    for length, sources in ((1, []), (1 << 62, ["127.0.0.1:1"])):
        with pytest.raises(InvalidArgument):
            fetcher.fetch(KEY, length, 1, sources)
