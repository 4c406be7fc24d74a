from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import Unavailable
from hearthfs.connector.backend import ChunkStore
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.connector.storage import Storage
from hearthfs.tests.unit.connector.fakes import Log, MemoryStore, storage_of

SETTINGS = ConnectorSettings(root="/kv", probe_interval_s=5)


class Opener:
    def __init__(self) -> None:
        self.calls = 0
        self.store: MemoryStore | None = None

    def __call__(self, settings: ConnectorSettings) -> ChunkStore:
        self.calls += 1
        if self.store is None:
            raise Unavailable("not mounted")
        return self.store


def test_not_mounted_is_no_cache_one_warning_and_a_probe_every_few_seconds() -> None:
    log, clock, opener = Log(), FakeClock(), Opener()
    storage = Storage(SETTINGS, Notices(log, clock), opener, clock)
    for _ in range(10):
        assert storage.lookup(["d"], ["a"]) is None
        (error,) = storage.load("d", ["a"], [memoryview(bytearray(1))])
        assert isinstance(error, Unavailable)
    assert opener.calls == 1
    for _ in range(20):
        clock.advance(5)
        storage.lookup(["d"], ["a"])
    assert opener.calls == 21
    assert len([line for line in log.lines if "without the KV cache" in line]) == 1
    opener.store = MemoryStore()
    opener.store.files["d", "a"] = b"x"
    clock.advance(5)
    assert storage.lookup(["d"], ["a"]) == [True]


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
    assert isinstance(storage.load("d", ["a"], [memoryview(bytearray(1))])[0], Unavailable)
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
    assert not storage.is_reachable()
