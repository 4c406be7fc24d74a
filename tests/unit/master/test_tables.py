"""What every store must do, run against both."""

# ruff: noqa: PT012 (what fails is a transaction of several statements)

import pytest
from hearthfs.common.errors import NotFound
from hearthfs.master.store import LmdbStore
from hearthfs.master.tables import PAGE_ROWS, MemoryStore, from_u64, named, of_worker, pair, rows, u64


@pytest.fixture(params=["memory", "lmdb"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    else:
        store = LmdbStore(tmp_path / "data", map_size_bytes=64 << 20, reserve_bytes=0)
        yield store
        store.close()


def put(store, table, *pairs):
    with store.batch() as batch, batch.step() as txn:
        for key, value in pairs:
            txn.put(table, key, value)


def read(store, table, key):
    with store.snapshot() as reader:
        return reader.get(table, key)


def test_put_get_delete(store):
    put(store, "inodes", (b"a", b"1"))
    assert read(store, "inodes", b"a") == b"1"
    assert read(store, "dentries", b"a") is None
    put(store, "inodes", (b"a", b"2"))
    assert read(store, "inodes", b"a") == b"2"
    with store.batch() as batch, batch.step() as txn:
        assert txn.delete("inodes", b"a")
        assert not txn.delete("inodes", b"a")
        assert txn.get("inodes", b"a") is None
    assert read(store, "inodes", b"a") is None


def test_empty_values_and_binary_keys(store):
    put(store, "xattrs", (b"\0\xff" * 100, b""))
    assert read(store, "xattrs", b"\0\xff" * 100) == b""


def test_a_transaction_sees_its_own_changes(store):
    put(store, "inodes", (b"a", b"1"), (b"c", b"3"))
    with store.batch() as batch, batch.step() as txn:
        txn.put("inodes", b"b", b"2")
        txn.delete("inodes", b"a")
        assert txn.get("inodes", b"b") == b"2"
        assert txn.scan("inodes") == [(b"b", b"2"), (b"c", b"3")]
        assert txn.get_many("inodes", [b"a", b"c", b"b"], bytes.decode) == [None, "3", "2"]


def test_a_failed_step_leaves_nothing_and_the_others_stay(store):
    put(store, "inodes", (b"old", b"0"))
    with store.batch() as batch:
        with batch.step() as txn:
            txn.put("inodes", b"first", b"1")
        with pytest.raises(NotFound), batch.step() as txn:
            txn.put("inodes", b"second", b"2")
            txn.put("inodes", b"first", b"changed")
            txn.delete("inodes", b"old")
            raise NotFound("x")
        with batch.step() as txn:
            assert txn.scan("inodes") == [(b"first", b"1"), (b"old", b"0")]
            txn.put("inodes", b"third", b"3")
    with store.snapshot() as reader:
        assert [key for key, _ in reader.scan("inodes")] == [b"first", b"old", b"third"]


def test_a_failed_batch_leaves_nothing(store):
    with pytest.raises(NotFound), store.batch() as batch:
        with batch.step() as txn:
            txn.put("inodes", b"a", b"1")
        raise NotFound("x")
    assert read(store, "inodes", b"a") is None


def test_a_snapshot_does_not_move(store):
    put(store, "inodes", (b"a", b"1"))
    with store.snapshot() as reader:
        put(store, "inodes", (b"a", b"2"), (b"b", b"2"))
        assert reader.get("inodes", b"a") == b"1"
        assert reader.scan("inodes") == [(b"a", b"1")]
    assert read(store, "inodes", b"a") == b"2"


def test_scan_bounds(store):
    put(store, "order", *[(pair(parent, cookie), b"x") for parent in (1, 2, 3) for cookie in (1, 5, 9)])
    with store.snapshot() as reader:
        assert [k for k, _ in reader.scan("order", u64(2))] == [pair(2, 1), pair(2, 5), pair(2, 9)]
        assert [k for k, _ in reader.scan("order", u64(2), pair(2, 2))] == [pair(2, 5), pair(2, 9)]
        assert [k for k, _ in reader.scan("order", u64(2), pair(2, 2), 1)] == [pair(2, 5)]
        assert reader.scan("order", u64(2), pair(2, 10)) == []
        assert reader.scan("order", u64(4)) == []
        assert reader.scan("order", limit=0) == []
        assert len(reader.scan("order")) == 9


def test_rows_go_on_after_a_page(store):
    put(store, "garbage", *[(of_worker("w", number), b"x") for number in range(PAGE_ROWS + 5)])
    put(store, "garbage", (of_worker("w2", 1), b"x"))
    with store.snapshot() as reader:
        assert [from_u64(key) for key, _ in rows(reader, "garbage", of_worker("w"))] == list(range(PAGE_ROWS + 5))


def test_get_many_follows_changes(store):
    put(store, "inodes", (b"a", b"1"))
    for value in (b"1", b"1", b"2"):
        put(store, "inodes", (b"a", value))
        with store.snapshot() as reader:
            assert reader.get_many("inodes", [b"a", b"b", b"a"], int) == [int(value), None, int(value)]


def test_keys_keep_the_order_of_numbers():
    numbers = [0, 1, 255, 256, 1 << 32, (1 << 64) - 1]
    assert sorted(map(u64, reversed(numbers))) == [u64(number) for number in numbers]
    assert from_u64(u64(1 << 40)) == 1 << 40
    assert named(1, b"x").startswith(u64(1))
    assert not of_worker("w2", 1).startswith(of_worker("w"))
