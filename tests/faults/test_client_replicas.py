"""What a reader gets when a replica is damaged, gone, dead or silent: the right bytes from another, or an error."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hearthfs.client.client import Client
from hearthfs.client.deadline import Deadline
from hearthfs.client.layout import version_of
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.common.errors import BlockCorrupt, BlockMissing, HearthError, NotFound, Unavailable
from hearthfs.proto import master_pb2, worker_pb2
from hearthfs.tests.support.cluster import Cluster

DATA = random.Random(7).randbytes(3 * CHUNK_BYTES + 500)


def block_files(cluster: Cluster, node: int, size: int = len(DATA)) -> list[Path]:
    found = []
    for path in cluster.disk(node).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
            if path.is_file() and path.stat().st_size == size:
                found.append(path)
    return found


def replicate(client: Client, path: str, cluster: Cluster, node: int) -> None:
    """Brings a second replica to ``node`` and waits until the master knows."""
    version = version_of(client.entry(path))
    assert version.key is not None
    target = client.core.workers
    (source,) = version.replicas
    fetch = worker_pb2.FetchBlock(
        key=master_pb2.BlockKey(block=version.key.block, generation=version.key.generation),
        length_bytes=version.length_bytes,
        digest=version.digest,
        sources=[source.address],
    )
    there = source._replace(worker_id=f"node{node}", address=cluster.address(f"worker{node}"))
    with target.remote(there, worker_pb2.ControlRequest(fetch=fetch), Deadline(10)) as reply:
        assert reply.error(0) is None
    wait_for(lambda: len(client.locate(path)) == 2)


def wait_for(condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def flip(path: Path, at: int = CHUNK_BYTES + 17) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(workers=2)


def readers(cluster: Cluster) -> list[Client]:
    return [cluster.client(1), cluster.client(None)]


@pytest.mark.parametrize("node", [1, None], ids=["by descriptor", "by gRPC"])
def test_a_flipped_bit_is_never_delivered(cluster: Cluster, node: int | None) -> None:
    writer, client = cluster.client(1), cluster.client(node)
    writer.write_bytes("/f", DATA)
    replicate(writer, "/f", cluster, 2)
    (file,) = block_files(cluster, 1)
    flip(file)
    memory = bytearray(len(DATA))
    assert client.get_many(["/f"], [memory]) == [None]
    assert memory == DATA
    with client.open("/f", "rb", buffering=0) as opened:
        opened.seek(CHUNK_BYTES)
        assert opened.read(100) == DATA[CHUNK_BYTES : CHUNK_BYTES + 100]
    if node == 1:  # the descriptor's reader met it for sure: the master knows, and the worker must not serve it again
        wait_for(lambda: [each.worker_id for each in client.locate("/f")] == ["node2"])


def test_a_bit_flipped_under_an_open_descriptor(cluster: Cluster) -> None:
    client = cluster.client(1)
    client.write_bytes("/f", DATA)
    replicate(client, "/f", cluster, 2)
    with client.open("/f", "rb", buffering=0) as opened:
        assert opened.read(10) == DATA[:10]
        (file,) = block_files(cluster, 1)
        flip(file)
        assert opened.read() == DATA[10:]
    wait_for(lambda: [each.worker_id for each in client.locate("/f")] == ["node2"])


@pytest.mark.parametrize("node", [1, None], ids=["by descriptor", "by gRPC"])
def test_the_only_replica_damaged_is_an_error_then_a_miss(cluster: Cluster, node: int | None) -> None:
    cluster.client(1).write_bytes("/f", DATA)
    client = cluster.client(node)
    (file,) = block_files(cluster, 1)
    flip(file)
    (error,) = client.get_many(["/f"], [bytearray(len(DATA))], timeout_s=10)
    assert isinstance(error, BlockCorrupt | BlockMissing | Unavailable), error
    wait_for(lambda: client.lookup_many("/", ["f"]).found == [False])
    (error,) = client.get_many(["/f"], [bytearray(len(DATA))], timeout_s=10)
    assert isinstance(error, NotFound)
    with pytest.raises(HearthError), client.open("/f", "rb", timeout_s=5) as opened:
        opened.read()
    assert client.put_many(["/f"], [DATA]) == [None]
    assert client.read_bytes("/f") == DATA


@pytest.mark.parametrize("node", [1, None], ids=["by descriptor", "by gRPC"])
def test_a_block_file_deleted_by_hand(cluster: Cluster, node: int | None) -> None:
    writer, client = cluster.client(1), cluster.client(node)
    writer.write_bytes("/f", DATA)
    replicate(writer, "/f", cluster, 2)
    for file in block_files(cluster, 1):
        file.unlink()
    assert client.read_bytes("/f") == DATA
    memory = bytearray(len(DATA))
    assert client.get_many(["/f"], [memory]) == [None]
    assert memory == DATA


def test_a_worker_dies_while_its_bytes_are_read(cluster: Cluster) -> None:
    writer, client = cluster.client(1), cluster.client(None)
    writer.write_bytes("/f", DATA)
    replicate(writer, "/f", cluster, 2)
    with client.open("/f", "rb", buffering=0) as opened, writer.open("/f", "rb", buffering=0) as local:
        assert opened.read(10) == DATA[:10]
        cluster.kill("worker1")
        assert opened.read() == DATA[10:]
        assert local.read() == DATA  # the descriptor needs no worker
    assert client.read_bytes("/f") == writer.read_bytes("/f") == DATA


def test_a_silent_worker_costs_seconds_not_the_call(cluster: Cluster) -> None:
    writer, client = cluster.client(1), cluster.client(None)
    writer.write_bytes("/f", DATA)
    replicate(writer, "/f", cluster, 2)
    cluster.stop("worker1")
    try:
        start = time.monotonic()
        for each in (client, writer):
            memory = bytearray(len(DATA))
            assert each.get_many(["/f"], [memory], timeout_s=15) == [None]
            assert memory == DATA
        assert time.monotonic() - start < 25
        assert writer.put_many(["/g"], [DATA], timeout_s=20) == [None]
        assert [each.worker_id for each in client.locate("/g")] == ["node2"]
    finally:
        cluster.cont("worker1")


def test_no_replica_left_fails_within_the_deadline(cluster: Cluster) -> None:
    writer, client = cluster.client(1), cluster.client(None)
    writer.write_bytes("/f", DATA)
    cluster.kill("worker1")
    start = time.monotonic()
    (error,) = client.get_many(["/f"], [bytearray(len(DATA))], timeout_s=3)
    assert error is not None
    assert time.monotonic() - start < 6


def test_a_file_replaced_between_look_up_and_read(cluster: Cluster) -> None:
    """A reader by gRPC has no lease before it reads: when the old bytes are gone it takes the new version."""
    writer, client = cluster.client(1), cluster.client(None)
    old, new = DATA, DATA[::-1]
    writer.write_bytes("/f", old)
    lookup = client.core.metadata.lookup_many
    seen = []

    def late(request: master_pb2.LookupManyRequest, deadline: Deadline) -> master_pb2.LookupManyReply:
        reply = lookup(request, deadline)
        if not seen:
            seen.append(1)
            writer.write_bytes("/f", new)
            wait_for(lambda: len(block_files(cluster, 1)) == 1)
        return reply

    client.core.metadata.lookup_many = late  # type: ignore[method-assign]
    memory = bytearray(len(DATA))
    assert client.get_many(["/f"], [memory]) == [None]
    assert memory == new


def test_an_open_remote_file_outlives_its_name(cluster: Cluster) -> None:
    writer, client = cluster.client(1), cluster.client(None)
    writer.write_bytes("/f", DATA)
    with client.open("/f", "rb", buffering=0) as opened:
        writer.remove("/f")
        wait_for(lambda: not block_files(cluster, 1))
        assert opened.read() == DATA
