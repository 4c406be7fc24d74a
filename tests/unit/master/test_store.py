# ruff: noqa: PT012 (what fails is a transaction of several statements)

import os

import lmdb
import msgspec
import pytest
from hearthfs.common.errors import DataDamaged, NewerFormat, NoSpace
from hearthfs.master import store as store_module
from hearthfs.master.records import Schema
from hearthfs.master.store import FILE_NAME, LmdbStore, StoreFailed


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def put(store, key, value, table="inodes"):
    with store.batch() as batch, batch.step() as txn:
        txn.put(table, key, value)


def test_what_was_committed_is_there_after_a_restart(data):
    store = LmdbStore(data)
    put(store, b"a", b"1")
    store.close()
    store = LmdbStore(data)
    with store.snapshot() as reader:
        assert reader.get("inodes", b"a") == b"1"
    store.close()


def test_files_are_private(data):
    store = LmdbStore(data)
    assert data.stat().st_mode & 0o077 == 0
    assert [path.name for path in data.iterdir() if path.stat().st_mode & 0o077] == []
    store.close()


@pytest.mark.parametrize("access", ["get", "get_many", "scan"])
def test_a_flipped_byte_is_noticed(data, access):
    store = LmdbStore(data)
    put(store, b"key", b"x" * 100 + b"needle" + b"y" * 100)
    put(store, b"other", b"good")
    store.close()
    path = data / FILE_NAME
    content = bytearray(path.read_bytes())
    at = content.find(b"needle")
    assert at > 0
    while at >= 0:  # older copies of the page too
        content[at] ^= 1
        at = content.find(b"needle", at)
    path.write_bytes(content)
    store = LmdbStore(data)
    with store.snapshot() as reader:
        assert reader.get("inodes", b"other") == b"good"
        with pytest.raises(DataDamaged, match="table inodes, key 6b6579"):
            if access == "get":
                reader.get("inodes", b"key")
            elif access == "get_many":
                reader.get_many("inodes", [b"key"], bytes.decode)
            else:
                reader.scan("inodes")
    store.close()


def test_a_value_under_another_key_or_table_is_damage(data):
    store = LmdbStore(data)
    put(store, b"key", b"value")
    environment = store._environment
    with environment.begin(write=True) as txn:
        raw = txn.get(b"key", db=store._tables["inodes"].handle)
        txn.put(b"moved", raw, db=store._tables["inodes"].handle)
        txn.put(b"key", raw, db=store._tables["blocks"].handle)
    with store.snapshot() as reader:
        for table, key in (("inodes", b"moved"), ("blocks", b"key")):
            with pytest.raises(DataDamaged):
                reader.get(table, key)
    store.close()


def test_a_newer_schema_is_refused_and_untouched(data):
    store = LmdbStore(data)
    put(store, b"schema", msgspec.msgpack.encode(Schema(99)), table="meta")
    store.close()
    before = (data / FILE_NAME).read_bytes()
    with pytest.raises(NewerFormat, match="schema version 99"):
        LmdbStore(data)
    assert (data / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("content", [b"no such format" * 1000, b"", b"\0" * 4096])
def test_what_is_no_data_file_is_refused_or_empty(data, content):
    data.mkdir()
    (data / FILE_NAME).write_bytes(content)
    try:
        LmdbStore(data).close()
        assert not content.strip(b"\0")
    except DataDamaged as error:
        assert str(data / FILE_NAME) in str(error)  # noqa: PT017


def test_a_directory_that_cannot_be_made(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        LmdbStore(tmp_path / "missing" / "data")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="Not a directory"):
        LmdbStore(tmp_path / "file")


def test_a_full_map_fails_the_step_and_deletes_go_on(data):
    store = LmdbStore(data, map_size_bytes=2 << 20, reserve_bytes=1 << 20)
    assert store.has_room()
    number = 0
    while store.has_room():
        put(store, b"%08d" % number, os.urandom(20_000))
        number += 1
    assert number > 10
    for gone in range(number):
        with store.batch() as batch, batch.step() as txn:
            assert txn.delete("inodes", b"%08d" % gone)
    assert store.has_room()
    store.close()


def test_a_full_map_is_no_space_and_harmless(data):
    store = LmdbStore(data, map_size_bytes=1 << 20, reserve_bytes=0)
    put(store, b"a", b"1")
    with store.batch() as batch:
        with batch.step() as txn:
            txn.put("inodes", b"b", b"2")
        with pytest.raises(NoSpace), batch.step() as txn:
            for number in range(1000):
                txn.put("inodes", b"%d" % number, b"x" * 4000)
    with store.snapshot() as reader:
        assert reader.scan("inodes") == [(b"a", b"1"), (b"b", b"2")]
    store.close()


def test_a_full_disk_leaves_no_room(data, monkeypatch):
    store = LmdbStore(data)
    real = os.statvfs(data)
    monkeypatch.setattr(store_module.os, "statvfs", lambda _: os.statvfs_result((*real[:4], 10, *real[5:])))
    assert not store.has_room()
    store.close()


def test_what_was_deleted_is_room_on_a_full_disk(data, monkeypatch):
    """The file keeps its pages: the disk stays as full as it was."""
    store = LmdbStore(data, reserve_bytes=1 << 20)
    for number in range(100):
        put(store, b"%08d" % number, os.urandom(20_000))
    real = os.statvfs(data)
    monkeypatch.setattr(store_module.os, "statvfs", lambda _: os.statvfs_result((*real[:4], 10, *real[5:])))
    assert not store.has_room()
    for gone in range(100):
        with store.batch() as batch, batch.step() as txn:
            txn.delete("inodes", b"%08d" % gone)
    assert store.has_room()
    store.close()


class FailingTransaction:
    def __init__(self, error):
        self._error = error

    def commit(self):
        raise self._error

    def abort(self):
        pass


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (lmdb.Error("mdb_txn_commit: Input/output error"), StoreFailed),
        (lmdb.DiskError("mdb_txn_commit: No space left on device"), NoSpace),
        (lmdb.MapFullError("mdb_txn_commit"), NoSpace),
    ],
)
def test_a_failed_commit(data, monkeypatch, error, raised):
    store = LmdbStore(data)
    environment = store._environment

    class Environment:
        def begin(self, **_):
            return FailingTransaction(error)

    monkeypatch.setattr(store, "_environment", Environment())
    with pytest.raises(raised), store.batch():
        pass
    monkeypatch.setattr(store, "_environment", environment)
    store.close()
