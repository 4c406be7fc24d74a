import threading

from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import NoSpace, Unavailable
from hearthfs.connector.backend import ChunkStore
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.connector.storage import Storage
from hearthfs.tests.unit.connector.fakes import Log, MemoryStore, storage_of
from hearthfs.tests.unit.connector.test_loads import wait_until

SETTINGS = ConnectorSettings(root="/kv", probe_interval_s=5)
BUFFER = memoryview(bytearray(1))


class Opener:
    def __init__(self) -> None:
        self.calls = 0
        self.store: MemoryStore | None = None

    def __call__(self, settings: ConnectorSettings) -> ChunkStore:
        self.calls += 1
        if self.store is None:
            raise Unavailable("not mounted")
        return self.store


def test_not_mounted_is_no_cache_and_one_warning() -> None:
    log, opener = Log(), Opener()
    storage = Storage(SETTINGS, Notices(log), opener)
    for _ in range(10):
        assert not storage.probe()
        assert storage.lookup(["d"], ["a"]) is None
        (error,) = storage.load("d", ["a"], [memoryview(bytearray(1))], 1)
        assert isinstance(error, Unavailable)
    assert opener.calls == 10, "nothing but the probe tries to open it"
    assert len(log.lines) == 1
    assert "without the KV cache" in log.lines[0]
    opener.store = MemoryStore()
    opener.store.files["d", "a"] = b"x"
    assert storage.probe()
    assert storage.lookup(["d"], ["a"]) == [True]


def test_the_probing_thread_opens_it_and_ends_with_it() -> None:
    opener = Opener()
    storage = Storage(SETTINGS.model_copy(update={"probe_interval_s": 0.001}), Notices(Log()), opener)
    storage.start()
    wait_until(lambda: opener.calls > 3)
    opener.store = MemoryStore()
    wait_until(lambda: storage.is_open)
    storage.close()
    other = Storage(SETTINGS, Notices(Log()), Opener())
    other.start()
    other.close()
    wait_until(lambda: not any(thread.name == "hearth-probe" for thread in threading.enumerate()))


def test_a_store_that_opens_after_close_is_closed() -> None:
    opener = Opener()
    opener.store = MemoryStore()
    storage = Storage(SETTINGS, Notices(Log()), opener)
    storage.close()
    assert not storage.probe()
    assert (opener.store.closed, storage.is_open) == (True, False)


def test_a_hit_needs_every_rank() -> None:
    """R066: a chunk that one rank lacks is a miss for all."""
    store = MemoryStore()
    store.files = dict.fromkeys([("0", "a"), ("1", "a"), ("0", "b"), ("1", "c")], b"")
    storage = storage_of(store, SETTINGS, Log())
    assert storage.lookup(["0", "1"], ["a", "b", "c"]) == [True, False, False]
    assert store.lookups == [("0", ["a", "b", "c"]), ("1", ["a", "b"])]


def test_no_error_escapes() -> None:
    store, log = MemoryStore(), Log()
    store.error = RuntimeError("bug")
    storage = storage_of(store, SETTINGS, log)
    assert storage.lookup(["d"], ["a"]) is None
    assert isinstance(storage.load("d", ["a"], [memoryview(bytearray(1))], 1)[0], Unavailable)
    assert isinstance(storage.store("d", ["a"], [memoryview(b"x")], False)[0], Unavailable)
    assert any("RuntimeError: bug" in line for line in log.lines)


def test_manifest_is_written_once_and_after_close_nothing_is() -> None:
    store = MemoryStore()
    storage = storage_of(store, SETTINGS, Log())
    storage.put_manifest_once("d", "manifest.json", b"1")
    storage.put_manifest_once("d", "manifest.json", b"2")
    assert store.files["d", "manifest.json"] == b"1"
    storage.close()
    assert storage.lookup(["d"], ["a"]) is None
    assert not storage.is_open


def test_another_cluster_at_the_root_replaces_the_client() -> None:
    opener, log, changes = Opener(), Log(), []
    first = opener.store = MemoryStore()
    storage = Storage(SETTINGS, Notices(log, interval_s=0), opener)
    storage.on_change = lambda: changes.append(storage.lookup(["d"], ["a"]))
    assert storage.probe()
    assert storage.probe()
    assert (opener.calls, changes) == (1, [[False]])
    first.elsewhere = True
    second = opener.store = MemoryStore()
    second.files["d", "a"] = b"x"
    assert storage.probe()
    assert (first.closed, second.closed, storage.lookup(["d"], ["a"])) == (True, False, [True])
    assert changes == [[False], [True]]
    assert "another cluster" in log.lines[-1]


def test_a_mount_that_is_gone_does_not_end_the_client() -> None:
    opener = Opener()
    store = opener.store = MemoryStore()
    storage = Storage(SETTINGS, Notices(Log()), opener)
    storage.probe()
    store.elsewhere = Unavailable("not mounted")
    assert storage.probe()
    assert (store.closed, opener.calls) == (False, 1)


def test_loads_stop_after_failures_in_a_row_and_one_is_tried_later() -> None:
    store, log, clock = MemoryStore(), Log(), FakeClock()
    store.files["d", "a"] = b"x"
    storage = storage_of(store, SETTINGS, log, clock)
    store.error = Unavailable("gone")
    for _ in range(SETTINGS.breaker_failures):
        assert storage.trouble == ""
        storage.load("d", ["a"], [BUFFER], 1)
    assert storage.trouble == "Unavailable: gone"
    store.error = None
    (error,) = storage.load("d", ["a"], [BUFFER], 1)
    assert "not asked, because: Unavailable: gone" in str(error)
    clock.advance(SETTINGS.probe_interval_s)
    assert storage.load("d", ["a"], [BUFFER], 1) == [None]
    assert storage.trouble == ""
    assert sum("loads are suspended" in line for line in log.lines) == 1


def test_a_missing_chunk_is_an_answer_and_no_failure_of_the_store() -> None:
    storage = storage_of(MemoryStore(), SETTINGS, Log())
    for _ in range(10):
        storage.load("d", ["a"], [BUFFER], 1)
    assert (storage.trouble, storage.sheds_stores) == ("", "")


def test_a_slow_store_loses_its_stores_first() -> None:
    """R045: one load that runs out of time suspends stores; loads go on."""
    clock = FakeClock()
    storage = storage_of(MemoryStore(), SETTINGS, Log(), clock)
    storage.note_late_load("late")
    assert (storage.trouble, storage.sheds_stores) == ("", "suspended: late")
    clock.advance(SETTINGS.probe_interval_s)
    assert storage.sheds_stores == ""


def test_a_full_cluster_is_asked_to_store_once_in_a_while() -> None:
    store, clock = MemoryStore(), FakeClock()
    storage = storage_of(store, SETTINGS, Log(), clock)
    store.error = NoSpace("full")
    storage.store("d", ["a"], [BUFFER], False)
    assert storage.sheds_stores == "suspended: NoSpace: full"
    assert storage.lookup(["d"], ["a"]) is None, "the others are asked"
    clock.advance(SETTINGS.probe_interval_s)
    assert storage.sheds_stores == ""


def test_tenants_are_directories() -> None:
    store = MemoryStore()
    storage = storage_of(store, SETTINGS, Log())
    names = ["t1/a", "t2/a", "a"]
    assert storage.store("d", names, [memoryview(bytes([n])) for n in range(3)], False) == [None] * 3
    assert store.files == {("t1/d", "a"): b"\0", ("t2/d", "a"): b"\1", ("d", "a"): b"\2"}
    assert storage.lookup(["d"], ["t1/a", "t3/a", "a"]) == [True, False, True]
    buffers = [memoryview(bytearray(1)) for _ in range(3)]
    outcomes = storage.load("d", ["t2/a", "t3/a", "t1/a"], buffers, 1)
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert [bytes(buffer) for buffer in buffers] == [b"\1", b"\0", b"\0"]
