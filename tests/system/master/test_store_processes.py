"""The master's store between processes: the lock, and readers that died."""

import os
import subprocess
import sys

import pytest
from hearthfs.common.errors import Conflict
from hearthfs.master.store import FILE_NAME, LmdbStore


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def test_a_second_master_is_refused(data):
    store = LmdbStore(data)
    code = (
        "import sys, pathlib\n"
        "from hearthfs.master.store import LmdbStore\n"
        "try: LmdbStore(pathlib.Path(sys.argv[1]))\n"
        "except OSError as error: print(type(error).__name__, error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(data)], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Conflict")
    assert f"process {os.getpid()}" in result.stdout
    with pytest.raises(Conflict):
        LmdbStore(data)
    with store.batch() as batch, batch.step() as txn:
        txn.put("inodes", b"a", b"still works")
    store.close()
    LmdbStore(data).close()


def test_readers_of_dead_processes_are_cleared(data):
    store = LmdbStore(data)
    code = (
        "import lmdb, os, sys\n"
        "env = lmdb.open(sys.argv[1], subdir=False, max_dbs=32)\n"
        "txn = env.begin()\n"
        "txn.get(b'x')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(data / FILE_NAME)], check=True)
    assert store.clear_readers() == 1
    assert store.clear_readers() == 0
    store.close()
