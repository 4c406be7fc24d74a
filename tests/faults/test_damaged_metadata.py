"""The master's file is cut, torn, or has a wrong byte: what comes out is right, or refused by name."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hearthfs.common.errors import DataDamaged
from hearthfs.master.store import FILE_NAME
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.support.read_tables import read

PAGE_BYTES = 4096
FILES = 300
FLIPS = 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped master's directory, with some hundred files and a journal."""
    with Cluster(tmp_path_factory.mktemp("damaged"), workers=1) as cluster:
        client = cluster.client(1)
        for number in range(FILES):
            client.makedirs(f"/d{number % 7}", exist_ok=True)
            client.write_bytes(f"/d{number % 7}/f{number}", b"%d" % number)
        for number in range(0, FILES, 3):
            client.unlink(f"/d{number % 7}/f{number}")
        client.close()
        cluster.term("worker1")
        cluster.term("master")
        return cluster.data()


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data, tmp_path / "copy"))


def read_elsewhere(data: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "hearthfs.tests.support.read_tables", str(data)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    result: dict[str, object] = json.loads(done.stdout)
    return result


def read_here(data: Path) -> dict[str, object]:
    try:
        return read(data)
    except DataDamaged as error:
        return {"refused": str(error)}


def check_right_or_refused(
    data: Path, expected: dict[str, object], reading: Callable[[Path], dict[str, object]] = read_elsewhere
) -> str:
    """The refusal; empty when every row was read as it was."""
    found = reading(data)
    if "refused" in found:
        text = str(found["refused"])
        assert "restore from a backup" in text
        return text
    assert found == expected
    return ""


@pytest.mark.parametrize("pages", range(1, 9))
def test_a_file_that_is_cut(copy: Path, data: Path, pages: int) -> None:
    expected = read(data)
    path = copy / FILE_NAME
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - pages * PAGE_BYTES)
    check_right_or_refused(copy, expected)


def test_a_file_of_which_half_is_gone_is_refused(copy: Path, data: Path) -> None:
    expected = read(data)
    path = copy / FILE_NAME
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    assert "is cut" in check_right_or_refused(copy, expected)


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    "tear",
    [lambda page: bytes(PAGE_BYTES), lambda page: page[:2048] + bytes(2048), lambda page: bytes(512) + page[512:]],
    ids=["zeros", "second half", "first sector"],
)
def test_a_torn_meta_page(copy: Path, data: Path, page: int, tear: Callable[[bytes], bytes]) -> None:
    expected = read(data)
    with (copy / FILE_NAME).open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        old = file.read(PAGE_BYTES)
        file.seek(page * PAGE_BYTES)
        file.write(tear(old))
    check_right_or_refused(copy, expected)


def test_a_wrong_byte_in_a_value_is_never_an_answer(copy: Path, data: Path, seed: int) -> None:
    expected, chance, refused = read(data), random.Random(seed), 0
    path = copy / FILE_NAME
    whole = path.read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"\xa4name", at) or whole.startswith(b"\xa4mode", at)]
    assert len(places) > FLIPS  # field names of records: inside values, live or left behind
    for at in chance.sample(places, FLIPS):
        damaged = bytearray(whole)
        damaged[at + chance.randrange(5)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        found = check_right_or_refused(copy, expected, reading=read_here)
        assert not found or "does not match its checksum" in found
        refused += bool(found)
    print(f"{refused} of {FLIPS} wrong bytes were in what is live, and refused")
    assert refused > 0


def test_a_master_refuses_a_cut_file_in_one_line(copy: Path) -> None:
    path = copy / FILE_NAME
    with path.open("r+b") as file:
        file.truncate(3 * PAGE_BYTES)
    done = subprocess.run(
        [sys.executable, "-m", "hearthfs.cli.main", "master", "--data", str(copy), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode > 0
    (line,) = done.stderr.strip().splitlines()
    assert "restore from a backup" in line
