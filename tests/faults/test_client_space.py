"""A full disk under the SDK's writes: another worker takes them, or the writer hears ENOSPC; never half a file."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hearthfs.client.client import Client
from hearthfs.common.errors import NoSpace
from hearthfs.tests.support.cluster import Cluster

MIB = 1 << 20
BLOCK = random.Random(3).randbytes(4 * MIB)


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two disks with room for about ten blocks each."""
    return make_cluster(workers=2, disk="tmpfs", disk_bytes=48 * MIB, settings={"worker": {"free_floor": "1MiB"}})


def test_puts_go_on_elsewhere_then_fail_whole(cluster: Cluster) -> None:
    client = cluster.client(1)
    stored: list[str] = []
    refused: list[BaseException] = []
    for step in range(8):
        paths = [f"/kv/{step}-{i}" for i in range(4)]
        errors = client.put_many(paths, [BLOCK] * 4)
        stored += [path for path, error in zip(paths, errors, strict=True) if error is None]
        refused += [error for error in errors if error is not None]
    assert {type(error) for error in refused} == {NoSpace}
    assert {each.worker_id for path in stored for each in client.locate(path)} == {"node1", "node2"}
    assert sorted(f"/kv/{name}" for name in client.listdir("/kv")) == sorted(stored)
    memory = [bytearray(len(BLOCK)) for _ in stored]
    assert client.get_many(stored, memory) == [None] * len(stored)
    assert all(each == BLOCK for each in memory)
    client.rmtree("/kv")
    assert put_soon(client)


def put_soon(client: Client) -> bool:
    """Deleted bytes come back with the next heartbeats."""
    import time

    end = time.monotonic() + 20
    while time.monotonic() < end:
        if client.put_many(["/again"], [BLOCK]) == [None]:
            return True
        time.sleep(0.2)
    return False


def test_a_file_moves_while_it_is_written(cluster: Cluster) -> None:
    client = cluster.client(1)
    pieces = 9
    assert client.put_many([f"/fill/{i}" for i in range(6)], [BLOCK] * 6) == [None] * 6
    with client.open("/big", "wb", buffering=0) as file:
        for piece in range(pieces):
            file.write(bytes([piece]) + BLOCK[1:])
    assert client.read_bytes("/big") == b"".join(bytes([piece]) + BLOCK[1:] for piece in range(pieces))
    assert [each.worker_id for each in client.locate("/big")] == ["node2"]


def test_too_big_for_all_is_said_and_the_old_version_stays(cluster: Cluster) -> None:
    client = cluster.client(1)
    client.write_bytes("/f", b"old")

    def write_too_much() -> None:
        with client.open("/f", "wb", buffering=0) as file:
            for _ in range(30):
                file.write(BLOCK)

    with pytest.raises(NoSpace):
        write_too_much()
    assert client.read_bytes("/f") == b"old"
