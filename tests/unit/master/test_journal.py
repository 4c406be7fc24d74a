import msgspec
import pytest
from hearthfs.common.errors import DataDamaged, InvalidArgument, NewerFormat, NotFound
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, journal
from hearthfs.master.tables import PAGE_ROWS, MemoryStore, u64

MKDIR = commands.Request(commands.Mkdir(ROOT_INODE, b"d", 0o755, 0, 0), 5)


def append(store, count):
    with store.batch() as batch, batch.step() as txn:
        return [journal.append(txn, MKDIR) for _ in range(count)]


def numbers(store, after=0):
    with store.snapshot() as reader:
        return [record.number for record in journal.iterate(reader, after)]


def test_records_are_numbered_without_gaps():
    store = MemoryStore()
    assert append(store, 3) == [1, 2, 3]
    assert append(store, 2) == [4, 5]
    assert numbers(store) == [1, 2, 3, 4, 5]
    assert numbers(store, after=3) == [4, 5]
    with store.snapshot() as reader:
        assert journal.last_number(reader) == 5
        assert next(journal.iterate(reader)).request == MKDIR


def test_trim_keeps_the_newest_and_the_count():
    store = MemoryStore()
    append(store, 10)
    with store.batch() as batch, batch.step() as txn:
        assert journal.trim(txn, 4) == 6
        assert journal.trim(txn, 4) == 0
    assert numbers(store) == [7, 8, 9, 10]
    with store.batch() as batch, batch.step() as txn:
        journal.trim(txn, 0)
    assert append(store, 1) == [11]


def test_trim_takes_a_page_at_a_time():
    store = MemoryStore()
    append(store, PAGE_ROWS + 5)
    with store.batch() as batch, batch.step() as txn:
        assert journal.trim(txn, 1) == PAGE_ROWS
        assert journal.trim(txn, 1) == 4


def test_a_missing_record_is_damage():
    store = MemoryStore()
    append(store, 5)
    with store.batch() as batch, batch.step() as txn:
        txn.delete("journal", u64(3))
    with pytest.raises(DataDamaged, match="record 4 stands where 3 belongs"):
        numbers(store)
    assert numbers(store, after=3) == [4, 5]


def test_a_record_under_another_number_is_damage():
    store = MemoryStore()
    append(store, 1)
    with store.batch() as batch, batch.step() as txn:
        txn.put("journal", u64(2), txn.get("journal", u64(1)) or b"")
        txn.delete("journal", u64(1))
    with pytest.raises(DataDamaged):
        numbers(store)


def test_newer_and_broken_records():
    with pytest.raises(NewerFormat, match="version 2"):
        journal.decode(msgspec.msgpack.encode({"number": 7, "version": 2, "what": "else"}))
    good = msgspec.msgpack.encode(journal.Record(1, MKDIR))
    for cut in range(len(good)):
        with pytest.raises(DataDamaged):
            journal.decode(good[:cut])
    unknown = {"number": 1, "request": {"command": {"type": "Explode"}, "now_ns": 1}}
    with pytest.raises(DataDamaged):
        journal.decode(msgspec.msgpack.encode(unknown))


def test_fields_of_later_versions_are_passed_over():
    record = msgspec.to_builtins(journal.Record(1, MKDIR), builtin_types=(bytes,))
    record["new_field"] = {"a": 1}
    record["request"]["command"]["other"] = 5
    assert journal.decode(msgspec.msgpack.encode(record)).request == MKDIR


# ------------------------------------------------------------------ pages for others


def page(store, after, up_to=1 << 60):
    with store.snapshot() as reader:
        return journal.page(reader, after, up_to)


def test_a_page_has_the_records_as_they_are_stored():
    store = MemoryStore()
    append(store, 70)
    found = page(store, 3, 68)
    assert [number for number, _ in found] == list(range(4, 69))
    assert [journal.decode(body).number for _, body in found] == [number for number, _ in found]
    assert page(store, 70) == []
    assert page(store, 68, 68) == []


def test_a_page_ends_at_its_bytes_and_has_one_record_at_least(monkeypatch):
    store = MemoryStore()
    append(store, 10)
    one = len(page(store, 0, 1)[0].body)
    for limit, count in ((1, 1), (one, 1), (3 * one, 3), (3 * one + 1, 3)):
        monkeypatch.setattr(journal, "PAGE_BYTES", limit)
        assert len(page(store, 0)) == count


def test_records_that_were_trimmed_are_refused_with_what_to_do():
    store = MemoryStore()
    append(store, 10)
    with store.batch() as batch, batch.step() as txn:
        journal.trim(txn, 4)
    with pytest.raises(NotFound, match=r"record 6 is gone, .* from 7 on: make a new backup"):
        page(store, 5)
    assert [number for number, _ in page(store, 6)] == [7, 8, 9, 10]
    with store.batch() as batch, batch.step() as txn:
        journal.trim(txn, 0)
    with pytest.raises(NotFound, match="record 10 is gone"):
        page(store, 9)
    assert page(store, 10) == []


def test_records_that_never_were_are_refused():
    store = MemoryStore()
    append(store, 3)
    with pytest.raises(InvalidArgument, match="ends at record 3, there is nothing after 4: was this cluster restored"):
        page(store, 4)


def test_a_page_without_one_of_its_records_is_damage():
    store = MemoryStore()
    append(store, 5)
    with store.batch() as batch, batch.step() as txn:
        txn.delete("journal", u64(3))
    with pytest.raises(DataDamaged, match="record 4 stands where 3 belongs"):
        page(store, 0)
