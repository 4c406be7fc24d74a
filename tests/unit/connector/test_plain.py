import os
import threading
from pathlib import Path

import pytest
from hearthfs.common.errors import BlockCorrupt, DeadlineExceeded, NotFound, Unavailable
from hearthfs.connector.plain import ORPHAN_AGE_S, TEMPORARY, PlainStore


@pytest.fixture
def store(tmp_path: Path) -> PlainStore:
    return PlainStore(str(tmp_path))


def put(store: PlainStore, name: str, data: bytes, replace: bool = False) -> None:
    assert store.store("d/e", [name], [memoryview(data)], 10, replace) == [None]


def test_store_lookup_load(store: PlainStore) -> None:
    put(store, "a", b"hello")
    assert store.lookup("d/e", ["a", "b"], 1) == [True, False]
    buffers = [memoryview(bytearray(5)), memoryview(bytearray(5))]
    first, second = store.load("d/e", ["a", "b"], buffers, 10)
    assert first is None
    assert bytes(buffers[0]) == b"hello"
    assert isinstance(second, NotFound)


def test_existing_is_kept_unless_replaced(store: PlainStore, tmp_path: Path) -> None:
    put(store, "a", b"one")
    put(store, "a", b"two")
    assert (tmp_path / "d/e/a").read_bytes() == b"one"
    put(store, "a", b"two", replace=True)
    assert (tmp_path / "d/e/a").read_bytes() == b"two"


@pytest.mark.parametrize("length", [0, 3, 9])
def test_another_length_is_refused(store: PlainStore, tmp_path: Path, length: int) -> None:
    put(store, "a", b"hello")
    (tmp_path / "d/e/a").write_bytes(b"x" * length)
    (error,) = store.load("d/e", ["a"], [memoryview(bytearray(5))], 10)
    assert isinstance(error, BlockCorrupt)


def test_failed_write_leaves_nothing(store: PlainStore, tmp_path: Path) -> None:
    (tmp_path / "d/e/a").mkdir(parents=True)
    (tmp_path / "d/e/a/in-the-way").touch()
    (error,) = store.store("d/e", ["a"], [memoryview(b"x")], 10, replace=True)
    assert error is not None
    assert list((tmp_path / "d/e" / TEMPORARY).iterdir()) == []


def test_no_time_left(store: PlainStore) -> None:
    (error,) = store.load("d/e", ["a"], [memoryview(bytearray(5))], -1)
    assert isinstance(error, DeadlineExceeded)
    with pytest.raises(DeadlineExceeded):
        store.lookup("d/e", ["a"], -1)


def test_orphans_go_young_temporaries_stay(tmp_path: Path) -> None:
    """R084: what a killed writer left is removed, a living one's file is not."""
    temporary = tmp_path / "d/e" / TEMPORARY
    temporary.mkdir(parents=True)
    (temporary / "old").touch()
    (temporary / "young").touch()
    age = os.stat(temporary / "old").st_mtime - ORPHAN_AGE_S - 10
    os.utime(temporary / "old", (age, age))
    put(PlainStore(str(tmp_path)), "a", b"x")
    assert [entry.name for entry in temporary.iterdir()] == ["young"]


def test_missing_root_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="create it"):
        PlainStore(str(tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []


def test_many_writers_of_the_same_names(tmp_path: Path) -> None:
    """R001: all succeed, and whoever looks meanwhile sees whole files only."""
    size, names = 64 << 10, [f"k{n}" for n in range(8)]
    payloads = {bytes([n]) * size for n in range(4)}
    errors: list[object] = []
    torn: list[str] = []
    done = threading.Event()

    def write(payload: bytes) -> None:
        mine = PlainStore(str(tmp_path))
        for _ in range(20):
            errors.extend(e for e in mine.store("d", names, [memoryview(payload)] * len(names), 10, True) if e)

    def read() -> None:
        store = PlainStore(str(tmp_path))
        while not done.is_set():
            for name in names:
                buffer = bytearray(size)
                (error,) = store.load("d", [name], [memoryview(buffer)], 10)
                if not isinstance(error, NotFound) and (error or bytes(buffer) not in payloads):
                    torn.append(name)

    writers = [threading.Thread(target=write, args=(payload,)) for payload in payloads]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert (errors, torn) == ([], [])
    assert list((tmp_path / "d" / TEMPORARY).iterdir()) == []
