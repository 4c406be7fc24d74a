"""What lies on a worker's disk that should not, or does not lie there that should: index, leftovers, strange files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hearthfs.tests.support.cluster import Cluster

from .conftest import block_files, check_sound, wait_for

CHANCE = random.Random(31)
CONTENTS = {f"/f{number}": CHANCE.randbytes(CHANCE.randrange(2 << 20)) for number in range(12)}
QUICK = {
    "master": {"session_idle_s": 2, "working_grace_s": 1},
    "worker": {"unknown_delay_s": 1},
}


def garble(index: Path) -> None:
    data = index / "data.mdb"
    size = data.stat().st_size
    with data.open("r+b") as file:
        for at in range(0, size, 4096):
            file.seek(at + 100)
            file.write(os.urandom(64))


def empty(index: Path) -> None:
    for path in index.iterdir():
        path.write_bytes(b"")


def flip_a_byte(index: Path) -> None:
    """In the middle of the last page: LMDB itself notices nothing."""
    data = index / "data.mdb"
    with data.open("r+b") as file:
        at = data.stat().st_size - 2048
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)


@pytest.mark.parametrize(
    ("damage", "end"),
    [
        (shutil.rmtree, signal.SIGKILL),
        (shutil.rmtree, signal.SIGTERM),
        (garble, signal.SIGTERM),
        (empty, signal.SIGKILL),
        (flip_a_byte, signal.SIGTERM),
    ],
)
def test_a_lost_index_is_made_anew(make_cluster, damage, end: int) -> None:
    cluster: Cluster = make_cluster(workers=1)
    client = cluster.client(1)
    for path, data in CONTENTS.items():
        client.write_bytes(path, data)
    end_worker(cluster, end)
    damage(cluster.disk(1) / "index")
    cluster.restart("worker1")
    others = [client, cluster.client(None)]
    wait_for("all files", lambda: others[1].lookup_many("/", [path[1:] for path in CONTENTS]).hits == len(CONTENTS))
    for each in others:
        for path, data in CONTENTS.items():
            assert each.read_bytes(path) == data
    client.write_bytes("/f0", b"new")
    client.write_bytes("/more", b"more")
    assert [others[1].read_bytes(path) for path in ("/f0", "/more")] == [b"new", b"more"]
    check_sound(cluster)


def end_worker(cluster: Cluster, how: int) -> None:
    if how == signal.SIGKILL:
        cluster.kill("worker1")
    else:
        cluster.term("worker1")


WRITER = """
import sys
from hearthfs.client.client import Client
client = Client(sys.argv[1], node_id="node1", worker_socket=sys.argv[2])
files = [client.open(f"/never{number}", "wb") for number in range(5)]
for file in files:
    file.write(bytes(3 << 20))
    file.flush()
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("restart", [False, True], ids=["worker lives", "worker restarts"])
def test_leftovers_of_a_dead_client_are_swept(make_cluster, restart: bool) -> None:
    cluster: Cluster = make_cluster(workers=1, settings=QUICK)
    working = cluster.disk(1) / "working"
    command = [sys.executable, "-P", "-c", WRITER, cluster.master_address, str(cluster.socket(1))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "written\n"
            assert len(list(working.iterdir())) >= 5
        finally:
            writer.kill()
    if restart:
        cluster.kill("worker1")
        cluster.restart("worker1")
    wait_for("the sweep", lambda: not list(working.iterdir()), 30)
    assert not [name for name in cluster.client(None).listdir("/") if name.startswith("never")]
    check_sound(cluster)


def test_files_that_nobody_knows_are_deleted_after_their_delay(make_cluster) -> None:
    cluster: Cluster = make_cluster(workers=1, settings=QUICK)
    client = cluster.client(1)
    for path, data in CONTENTS.items():
        client.write_bytes(path, data)
    cluster.kill("worker1")
    known = block_files(cluster, 1)
    blocks = cluster.disk(1) / "blocks"
    (blocks / "ee").mkdir(exist_ok=True)
    stranger = blocks / "ee" / "00000000deadbeee.1"
    stranger.write_bytes(b"nobody knows me")
    part = cluster.disk(1) / "working" / "00000000deadbeef.1.part"
    part.write_bytes(b"half")
    mine = cluster.disk(1) / "blocks" / "README"
    mine.write_text("not a block")
    cluster.restart("worker1")
    wait_for("the deletion", lambda: not stranger.exists(), 30)
    assert not part.exists()
    assert mine.exists(), "a file that is none of ours is nobody's to delete"
    assert set(known) <= set(block_files(cluster, 1))
    for path, data in CONTENTS.items():
        assert client.read_bytes(path) == data
    check_sound(cluster)


@pytest.mark.mount
def test_a_node_without_worker_reads_and_writes(make_cluster) -> None:
    cluster: Cluster = make_cluster(workers=1, mounts=2)
    here, there = cluster.mountpoint(1), cluster.mountpoint(2)
    client = cluster.client(None)
    data = random.Random(41).randbytes((9 << 20) + 17)
    (there / "by-mount").write_bytes(data)
    client.write_bytes("/by-sdk", data)
    assert client.put_many(["a", "b"], [data, b""], directory="/put") == [None, None]
    for place in (here, there):
        for name in ("by-mount", "by-sdk", "put/a"):
            assert (place / name).read_bytes() == data
        assert (place / "put/b").read_bytes() == b""
    with (there / "by-mount").open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"changed")
    data = data[: 1 << 20] + b"changed" + data[(1 << 20) + 7 :]
    assert (here / "by-mount").read_bytes() == data
    assert client.read_bytes("/by-mount") == data
    memory = bytearray(len(data))
    assert client.get_many(["/by-mount"], [memory]) == [None]
    assert memory == data
    check_sound(cluster)
