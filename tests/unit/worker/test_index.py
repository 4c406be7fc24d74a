import os
import struct

import lmdb
import pytest
from hearthfs.common.errors import DataDamaged, NewerFormat
from hearthfs.common.types import BlockKey
from hearthfs.worker.index import BlockRecord, Index, check_format

RECORD = BlockRecord(5, b"12345678", 77, 9, 10, 4096)
KEY = BlockKey(3, 2)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index"


def kill(index):
    index._environment.close()


def test_records_come_back(path):
    index = Index(path, "boot")
    assert index.rebuilt
    assert index.put(KEY, RECORD)
    assert index.get(KEY) == RECORD
    assert index.get(BlockKey(3, 1)) is None
    index.close()
    again = Index(path, "boot2")
    assert not again.rebuilt
    assert (again.blocks, again.disk_bytes) == (1, 4096)
    assert again.get(KEY) == RECORD
    assert again.drop(KEY)
    assert again.get(KEY) is None
    again.close()


def test_records_are_listed_in_order_of_key(path):
    index = Index(path, "boot")
    keys = [BlockKey(block, generation) for block in (0, 1, 255, 256, 1 << 63) for generation in (1, 2)]
    for key in reversed(keys):
        index.put(key, RECORD)
    assert [key for key, _ in index.records(page_size=3)] == keys
    index.close()


def test_after_a_kill_the_index_is_trusted(path):
    index = Index(path, "boot")
    index.put(KEY, RECORD)
    kill(index)
    again = Index(path, "boot")
    assert not again.rebuilt
    assert again.get(KEY) == RECORD
    again.close()


def test_after_a_crash_of_the_machine_it_is_made_anew(path):
    index = Index(path, "boot")
    index.put(KEY, RECORD)
    kill(index)
    again = Index(path, "another boot")
    assert again.rebuilt
    assert again.get(KEY) is None
    again.close()


def ruin_head(file):
    with file.open("r+b") as stream:
        stream.write(os.urandom(8192))


def cut(file):
    os.truncate(file, 8192 + 4096)


def empty(file):
    os.truncate(file, 0)


def remove(file):
    file.unlink()


def ruin_state(file):
    (file.parent / "state").write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("ruin", [ruin_head, cut, empty, remove, ruin_state])
def test_a_damaged_index_is_made_anew(path, ruin):
    index = Index(path, "boot")
    for block in range(500):
        index.put(BlockKey(block, 1), RECORD)
    index.close()
    ruin(path / "data.mdb")
    again = Index(path, "boot")
    assert again.rebuilt
    assert list(again.records()) == []
    assert again.put(KEY, RECORD)
    again.close()


def test_a_flipped_byte_in_a_value_makes_the_record_absent(path):
    index = Index(path, "boot")
    index.put(KEY, RECORD)
    index.close()
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.index(RECORD.checksums)
    for copy in range(at, len(data)):
        if data[copy : copy + 8] == RECORD.checksums:
            data[copy] ^= 1
    file.write_bytes(data)
    again = Index(path, "boot")
    assert again.get(KEY) is None
    assert list(again.records()) == [(KEY, None)]
    again.close()


def test_a_damaged_page_is_found_at_the_start(path):
    index = Index(path, "boot")
    for block in range(500):
        index.put(BlockKey(block, 1), RECORD)
    index.close()
    data = bytearray((path / "data.mdb").read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 + 10] ^= 0xFF  # the kind of each page
    (path / "data.mdb").write_bytes(data)
    again = Index(path, "boot")
    assert again.rebuilt
    assert (again.blocks, again.disk_bytes) == (0, 0)
    again.close()


def test_damage_that_comes_later_ends_a_report_instead_of_shortening_it(path, monkeypatch):
    index = Index(path, "boot")
    index.put(KEY, RECORD)
    real = index._page
    monkeypatch.setattr(index, "_page", lambda after, limit: real(after, limit) if after is None else fail())

    def fail():
        raise lmdb.CorruptedError("injected")

    with pytest.raises(DataDamaged, match="restart"):
        list(index.records())
    index.close()


def test_a_newer_schema_is_refused_and_left_alone(path):
    index = Index(path, "boot")
    index.close()
    (path / "state").write_text("2 clean\n")
    with pytest.raises(NewerFormat, match="schema 2"):
        check_format(path)
    assert (path / "state").read_text() == "2 clean\n"


def test_the_position_of_the_last_page_is_where_we_think(path):
    """``_damaged_pages`` reads LMDB's meta page itself: this notices if its layout changes."""
    index = Index(path, "boot")
    for block in range(200):
        index.put(BlockKey(block, 1), RECORD)
    info = index._environment.info()
    index.close()
    head = (path / "data.mdb").read_bytes()[:8192]
    assert info["last_pgno"] in {struct.unpack_from("<Q", head, start + 136)[0] for start in (0, 4096)}


def test_a_failed_write_says_so(path):
    index = Index(path, "boot")
    kill(index)
    assert not index.put(KEY, RECORD)
    assert not index.drop(KEY)
    assert index.get(KEY) is None
