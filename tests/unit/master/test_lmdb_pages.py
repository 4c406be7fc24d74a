import random
from pathlib import Path

import lmdb
import pytest
from hearthfs.master import lmdb_pages
from hearthfs.master.lmdb_pages import CutError

KEYS = 400


def check(path: Path, size_bytes: int | None = None) -> None:
    with path.open("rb") as file:
        lmdb_pages.check(file, path.stat().st_size if size_bytes is None else size_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.mdb"


def fill(path: Path, seed: int, turns: int) -> None:
    """Two tables, with values of many pages, and much that is deleted again."""
    chance = random.Random(seed)
    environment = lmdb.open(str(path), map_size=1 << 28, subdir=False, max_dbs=4)
    tables = [environment.open_db(b"one"), environment.open_db(b"two")]
    for _ in range(turns):
        with environment.begin(write=True) as txn:
            for _ in range(60):
                key, table = b"%d" % chance.randrange(KEYS), chance.choice(tables)
                if chance.random() < 0.4:
                    txn.delete(key, db=table)
                else:
                    txn.put(key, bytes(chance.choice([0, 100, 1500, 5000, 20_000])), db=table)
        check(path)
    environment.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_whole_file_passes_after_every_transaction(path: Path, seed: int) -> None:
    fill(path, seed, 20)


def test_a_new_file_passes(path: Path) -> None:
    fill(path, 0, 0)
    check(path)
    with path.open("rb") as file:
        assert not lmdb_pages.is_short(file, path.stat().st_size)


def test_a_file_that_is_cut_passes_only_if_nobody_refers_to_what_is_gone(path: Path) -> None:
    """Where it passes LMDB reads all of it: else this process would end."""
    fill(path, 7, 12)
    whole, passed = path.read_bytes(), 0
    pages = len(whole) // 4096
    for kept in range(2, pages):
        path.write_bytes(whole[: kept * 4096])
        with path.open("rb") as file:
            assert lmdb_pages.is_short(file, kept * 4096)
        try:
            check(path)
        except CutError:
            continue
        passed += 1
        environment = lmdb.open(str(path), map_size=1 << 28, subdir=False, max_dbs=4, readonly=True, lock=False)
        with environment.begin() as txn:
            for name in (b"one", b"two"):
                for key, value in txn.cursor(environment.open_db(name, txn=txn, create=False)):
                    assert len(key) + len(value) > 0
        environment.close()
    assert passed < pages // 2


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_pages_say_the_check_ends_with_a_name(path: Path, seed: int) -> None:
    fill(path, seed, 6)
    whole, chance, refused = path.read_bytes(), random.Random(seed), 0
    for _ in range(150):
        damaged = bytearray(whole)
        page = chance.randrange(len(whole) // 4096) * 4096
        for _ in range(4):  # where heads and offsets are
            damaged[page + chance.randrange(64)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            check(path)
        except CutError:
            refused += 1
    assert refused > 0


def test_pages_that_are_none_are_refused(path: Path) -> None:
    fill(path, 3, 6)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    with pytest.raises(CutError, match="is none"):
        check(path)
    path.write_bytes(whole[:100])
    with pytest.raises(CutError, match="beyond its end"):
        check(path)
