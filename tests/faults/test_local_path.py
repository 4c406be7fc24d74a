"""The short way to this node's worker fails: the same bytes come the longer way, and the log says so once."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from hearthfs.client.client import Client
from hearthfs.client.deadline import Deadline
from hearthfs.client.layout import Version
from hearthfs.client.local_socket import LocalReply
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.proto import master_pb2, worker_pb2
from hearthfs.tests.faults.conftest import block_files, wait_for
from hearthfs.tests.support.cluster import Cluster

NAMES = [f"{number:02}" for number in range(24)]
CONTENTS = [random.Random(number).randbytes(CHUNK_BYTES // 4 + number) for number in range(len(NAMES))]


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(workers=2)


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def said(log: list[Any]) -> list[str]:
    return [line["event"] for line in log if line["log_level"] == "warning"]


def put(client: Client) -> None:
    assert client.put_many(NAMES, CONTENTS, directory="/d") == [None] * len(NAMES)


def got(client: Client) -> bool:
    memory = [bytearray(len(content)) for content in CONTENTS]
    errors = client.get_many(NAMES, memory, directory="/d")
    assert errors == [None] * len(NAMES), errors
    return memory == CONTENTS


def test_the_workers_socket_is_missing(cluster: Cluster, log: list[Any]) -> None:
    client = cluster.client(1, worker_socket=str(cluster.directory / "no.sock"))
    put(client)
    assert got(client)
    assert got(client)
    assert said(log) == ["local-worker-not-used"]


def test_the_worker_goes_and_comes_back(cluster: Cluster, log: list[Any]) -> None:
    client, other = cluster.client(1), cluster.client(2)
    put(other)
    assert got(client)
    cluster.kill("worker1")
    assert got(client)
    assert said(log) == []  # nothing of it was on this node
    put(client)
    assert {each.worker_id for name in NAMES for each in client.locate(f"/d/{name}")} == {"node2"}
    cluster.start("worker1")
    wait_for("room on worker1", lambda: put(client) or client.locate(f"/d/{NAMES[0]}")[0].worker_id == "node1")
    assert got(client)


def test_the_worker_dies_between_descriptors_and_commit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.client(1, timeout_s=60)
    put(client)
    workers = client.core.workers
    persist = workers.persist
    killed = []

    def late(worker: Any, request: worker_pb2.ControlRequest, deadline: Deadline) -> LocalReply:
        if not killed:
            killed.append(worker.worker_id)
            cluster.kill("worker1")
        return persist(worker, request, deadline)

    monkeypatch.setattr(workers, "persist", late)
    put(client)
    assert killed == ["node1"]
    assert got(client)
    assert {each.worker_id for name in NAMES for each in client.locate(f"/d/{name}")} == {"node2"}


def test_the_worker_dies_between_commit_and_publish(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.client(1)
    metadata = client.core.metadata
    mutate = metadata.mutate
    killed = []

    def late(request: master_pb2.MutateRequest, deadline: Deadline) -> master_pb2.MutateReply:
        if request.WhichOneof("op") == "put_many" and not killed:
            killed.append(1)
            cluster.kill("worker1")
        return mutate(request, deadline)

    client.mkdir("/d")
    monkeypatch.setattr(metadata, "mutate", late)
    errors = client.put_many(NAMES, CONTENTS, directory="/d")
    cluster.start("worker1")
    memory = [bytearray(len(content)) for content in CONTENTS]

    def read() -> bool:
        problems = client.get_many(NAMES, memory, directory="/d")
        return all(error is not None or problem is None for error, problem in zip(errors, problems, strict=True))

    wait_for("what was acknowledged to be readable again", read)
    for error, content, expected in zip(errors, memory, CONTENTS, strict=True):
        assert error is not None or content == expected


def test_a_block_that_is_deleted_behind_its_descriptor(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = cluster.client(1), cluster.client(2)
    put(client)
    reader = client.core.reader
    open_local = reader.open_local
    gone = []

    def then_gone(versions: list[Version], deadline: Deadline) -> list[Any]:
        blocks = open_local(versions, deadline)
        if not gone:
            gone.append(1)
            for name in NAMES:
                other.remove(f"/d/{name}")
            wait_for("the files are gone", lambda: not block_files(cluster, 1))
        return blocks

    monkeypatch.setattr(reader, "open_local", then_gone)
    few = NAMES[:8]  # one group: all its descriptors are there before the first is used
    memory = [bytearray(len(content)) for content in CONTENTS[:8]]
    assert client.get_many(few, memory, directory="/d") == [None] * len(few)
    assert memory == CONTENTS[:8]


def test_this_process_is_out_of_descriptors(cluster: Cluster, log: list[Any]) -> None:
    client = cluster.client(1)
    put(client)
    assert got(client)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    free = next(number for number in range(len(used) + 1) if number not in used)
    # So that three more fit: the lowest free numbers count, whatever the highest one in use is.
    room = [os.dup(0) for _ in range(3)]
    limit = max(*room, free) + 1
    for fd in room:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        assert got(client)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said(log) == ["local-worker-not-used"] * len(said(log))
    assert said(log)
    assert got(client)


def test_a_directory_may_ask_readers_to_leave_a_copy(cluster: Cluster) -> None:
    writer, reader = cluster.client(1), cluster.client(2)
    put(writer)
    assert got(reader)
    assert not block_files(cluster, 2)
    writer.setxattr("/d", "hearth.replicate_on_read", b"1")
    assert got(reader)
    assert len(block_files(cluster, 2)) == len(NAMES)
    wait_for("the master knows", lambda: all(len(reader.locate(f"/d/{name}")) == 2 for name in NAMES))
    cluster.kill("worker1")
    assert got(reader)


def test_no_room_for_a_copy_is_no_error(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=2, disk_bytes=8 << 20)
    writer, reader = cluster.client(1), cluster.client(2)
    writer.mkdir("/d")
    writer.setxattr("/d", "hearth.replicate_on_read", b"1")
    filling = reader.put_many(["/full"], [bytes(6 << 20)])
    assert filling == [None]
    assert {each.worker_id for each in reader.locate("/full")} == {"node2"}
    put(writer)
    assert got(reader)
