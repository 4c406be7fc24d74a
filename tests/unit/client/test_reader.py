"""Replicas are a dictionary here: bytes, or the error that asking gives."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hearthfs.client.crew import Crew
from hearthfs.client.deadline import Deadline
from hearthfs.client.layout import Replica, Version
from hearthfs.client.local_socket import LocalReply
from hearthfs.client.open_version import OpenVersion
from hearthfs.client.reader import RANGE_BYTES, LocalBlock, Reader
from hearthfs.common import checksums
from hearthfs.common.checksums import CHUNK_BYTES, Verifier
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import (
    BlockCorrupt,
    BlockMissing,
    DeadlineExceeded,
    HearthError,
    NotFound,
    Stale,
    Unavailable,
)
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import master_pb2, worker_pb2

DATA = random.Random(1).randbytes(2 * CHUNK_BYTES + 100)
PACKED = checksums.pack([checksums.checksum(DATA[at : at + CHUNK_BYTES]) for at in range(0, len(DATA), CHUNK_BYTES)])
DIGEST = checksums.digest(PACKED, len(DATA))
A, B, C = (Replica(name, f"node-{name}", f"{name}:1") for name in "abc")


def version(*replicas: Replica, **other: int) -> Version:
    fields = {"size_bytes": len(DATA), "valid_bytes": len(DATA)} | other
    return Version(5, fields["size_bytes"], BlockKey(9, 1), len(DATA), fields["valid_bytes"], DIGEST, replicas)


class FakeWorkers:
    def __init__(self) -> None:
        self.node_id = ""
        self.local = ""
        self.answers: dict[str, bytes | HearthError] = {}
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self.reply: Callable[[], LocalReply] | None = None

    def local_id(self) -> str:
        return self.local

    def local_call(self, request: worker_pb2.ControlRequest, deadline: Deadline) -> LocalReply:
        assert self.reply is not None
        return self.reply()

    def read(self, worker: Replica, what: Version, start: int, into: memoryview, timeout_s: float) -> None:
        self.asked.append(worker.worker_id)
        self.timeouts.append(timeout_s)
        answer = self.answers[worker.worker_id]
        if isinstance(answer, HearthError):
            raise answer
        into[:] = answer[start : start + len(into)]
        Verifier(PACKED, len(DATA), DIGEST).check(start, into)


class FakeMetadata:
    def __init__(self) -> None:
        self.reports: list[tuple[int, str]] = []
        self.entry: common.Entry | HearthError = NotFound("gone")

    def mutate(self, request: master_pb2.MutateRequest, deadline: Deadline) -> master_pb2.MutateReply:
        self.reports.append((request.report_bad_replica.block, request.report_bad_replica.worker_id))
        return master_pb2.MutateReply()

    def getattr(self, inode: int, deadline: Deadline) -> common.Entry:
        if isinstance(self.entry, HearthError):
            raise self.entry
        return self.entry


class Rig:
    def __init__(self) -> None:
        self.workers = FakeWorkers()
        self.metadata = FakeMetadata()
        self.crew = Crew(1)
        self.reader = Reader(self.metadata, self.workers, self.crew)  # type: ignore[arg-type]

    def read(self, opened: OpenVersion, offset: int = 0, size: int = len(DATA)) -> bytes:
        memory = bytearray(b"?" * size)
        with memoryview(memory) as view:
            done = opened.read(offset, view, Deadline(30.0, FakeClock()))
        return bytes(memory[:done])

    def open(self, *replicas: Replica, **other: int) -> OpenVersion:
        return OpenVersion(self.reader, version(*replicas, **other))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_good_replica_serves(rig: Rig) -> None:
    rig.workers.answers = {"a": DATA, "b": DATA}
    assert rig.read(rig.open(A, B)) == DATA
    assert set(rig.workers.asked) == {"a"}
    assert rig.metadata.reports == []


@pytest.mark.parametrize("error", [BlockCorrupt("bad"), BlockMissing("gone")])
def test_a_bad_replica_is_reported_once_and_not_asked_again(rig: Rig, error: HearthError) -> None:
    rig.workers.answers = {"a": error, "b": DATA}
    opened = rig.open(A, B)
    assert rig.read(opened) == DATA
    assert rig.read(opened, 5, 10) == DATA[5:15]
    assert rig.workers.asked.count("a") == 1
    assert rig.metadata.reports == [(9, "a")]


def test_flipped_bytes_never_come_out(rig: Rig) -> None:
    flipped = bytearray(DATA)
    flipped[CHUNK_BYTES + 3] ^= 1
    rig.workers.answers = {"a": bytes(flipped), "b": DATA}
    assert rig.read(rig.open(A, B)) == DATA
    rig.workers.answers = {"a": bytes(flipped)}
    with pytest.raises(BlockCorrupt):
        rig.read(rig.open(A))


def test_a_worker_that_does_not_answer_is_no_bad_replica(rig: Rig) -> None:
    rig.workers.answers = {"a": DeadlineExceeded("slow"), "b": Unavailable("down"), "c": DATA}
    assert rig.read(rig.open(A, B, C), 0, 10) == DATA[:10]
    assert rig.metadata.reports == []
    assert rig.workers.timeouts[0] < 15  # others are left: not the whole call for the first
    assert rig.workers.timeouts[-1] == 30


def test_lost_outweighs_wrong(rig: Rig) -> None:
    """Somebody who may have the bytes did not answer: that may pass, so the error says so."""
    rig.workers.answers = {"a": BlockMissing("gone"), "b": Unavailable("down")}
    with pytest.raises(Unavailable, match="down"):
        rig.read(rig.open(A, B))


def test_a_replica_made_since_the_open_is_found(rig: Rig) -> None:
    rig.workers.answers = {"a": BlockMissing("gone"), "b": DATA}
    extent = common.Extent(
        block=9, generation=1, length_bytes=len(DATA), valid_bytes=len(DATA), digest=DIGEST, sealed=True
    )
    address = common.WorkerAddress(worker_id="b", node_id="node-b", address="b:1")
    rig.metadata.entry = common.Entry(
        attributes=common.Attributes(inode=5, size_bytes=len(DATA)), extents=[extent], replicas=[address]
    )
    assert rig.read(rig.open(A)) == DATA


def test_another_version_is_never_given_for_the_open_one(rig: Rig) -> None:
    rig.workers.answers = {"a": BlockMissing("gone"), "b": DATA}
    extent = common.Extent(block=10, generation=1, length_bytes=len(DATA), valid_bytes=len(DATA), digest=DIGEST)
    rig.metadata.entry = common.Entry(attributes=common.Attributes(inode=5, size_bytes=len(DATA)), extents=[extent])
    with pytest.raises(Stale):
        rig.read(rig.open(A))


def test_no_replica_at_all(rig: Rig) -> None:
    rig.metadata.entry = Unavailable("master is down")
    with pytest.raises(Unavailable):
        rig.read(rig.open())


def test_small_reads_fetch_a_chunk_once(rig: Rig) -> None:
    rig.workers.answers = {"a": DATA}
    opened = rig.open(A)
    for at in range(0, 1000, 10):
        assert rig.read(opened, at, 10) == DATA[at : at + 10]
    assert rig.workers.asked == ["a"]
    assert rig.read(opened, CHUNK_BYTES - 5, 10) == DATA[CHUNK_BYTES - 5 : CHUNK_BYTES + 5]
    assert rig.read(opened, len(DATA) - 3, 10) == DATA[-3:]
    assert len(rig.workers.asked) == 3


def test_beyond_the_valid_bytes_are_zeros(rig: Rig) -> None:
    rig.workers.answers = {"a": DATA}
    opened = rig.open(A, size_bytes=3 * CHUNK_BYTES, valid_bytes=10)
    assert rig.read(opened, 0, 4 * CHUNK_BYTES) == DATA[:10] + bytes(3 * CHUNK_BYTES - 10)
    rig.workers.asked.clear()
    assert rig.read(opened, 100, 50) == bytes(50)
    assert rig.workers.asked == []
    assert rig.read(opened, 3 * CHUNK_BYTES, 5) == b""


def test_long_reads_are_several_streams(rig: Rig) -> None:
    starts = []

    def read(worker: Replica, what: Version, start: int, into: memoryview, timeout_s: float) -> None:
        starts.append((start, len(into)))

    rig.workers.read = read  # type: ignore[method-assign]
    size = 2 * RANGE_BYTES + CHUNK_BYTES
    whole = Version(5, size, BlockKey(9, 1), size, size, 1, (A,))
    OpenVersion(rig.reader, whole).read(0, memoryview(bytearray(size)), Deadline(30.0, FakeClock()))
    assert starts == [(0, RANGE_BYTES), (RANGE_BYTES, RANGE_BYTES), (2 * RANGE_BYTES, CHUNK_BYTES)]


@pytest.fixture
def block(tmp_path: Path) -> Path:
    path = tmp_path / "block"
    path.write_bytes(DATA)
    return path


def local_reply(path: Path, **fields: object) -> LocalReply:
    file = worker_pb2.BlockFile(**{"length_bytes": len(DATA), "checksums": PACKED, **fields})  # type: ignore[arg-type]
    message = worker_pb2.ControlReply(errnos=[0], blocks=[file], fd_indexes=[1])
    return LocalReply(message, [os.open(path, os.O_RDONLY)])


def test_the_local_descriptor_comes_first_and_is_given_up_when_it_lies(rig: Rig, block: Path) -> None:
    rig.workers.local = "a"
    rig.workers.answers = {"b": DATA}
    rig.workers.reply = lambda: local_reply(block)
    (opened,) = rig.reader.open_local([version(A, B)], Deadline(5))
    assert isinstance(opened, LocalBlock)
    reading = OpenVersion(rig.reader, version(A, B), opened, opened)
    assert rig.read(reading) == DATA
    assert rig.workers.asked == []
    with block.open("r+b") as file:
        file.write(b"!")
    assert rig.read(reading) == DATA
    assert rig.metadata.reports == [(9, "a")]
    assert "a" not in rig.workers.asked
    reading.close()


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"length_bytes": 5}, "long"),
        ({"checksums": PACKED[:8]}, "checksums"),
        ({"checksums": bytes(len(PACKED))}, "digest"),
    ],
)
def test_a_worker_with_another_version_is_found_out(
    rig: Rig, block: Path, fields: dict[str, object], what: str
) -> None:
    rig.workers.local = "a"
    rig.workers.reply = lambda: local_reply(block, **fields)
    (error,) = rig.reader.open_local([version(A)], Deadline(5))
    assert isinstance(error, BlockCorrupt)
    assert what in str(error)
    assert rig.metadata.reports == [(9, "a")]


def test_an_unsealed_block_is_read_unverified(rig: Rig, block: Path) -> None:
    rig.workers.local = "a"
    rig.workers.reply = lambda: local_reply(block, checksums=b"")
    unsealed = version(A)._replace(digest=0)
    (opened,) = rig.reader.open_local([unsealed], Deadline(5))
    assert isinstance(opened, LocalBlock)
    assert rig.read(OpenVersion(rig.reader, unsealed, opened, opened)) == DATA
    opened.close()


def test_a_short_local_file_is_corrupt_not_short(rig: Rig, block: Path) -> None:
    os.truncate(block, 100)
    fd = os.open(block, os.O_RDONLY)
    local = LocalBlock(fd, Verifier(PACKED, len(DATA), DIGEST))
    with pytest.raises(BlockCorrupt):
        local.read(0, memoryview(bytearray(CHUNK_BYTES)))
    local.close()
    local.close()
