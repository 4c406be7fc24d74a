"""Replicas are a dictionary here: bytes, or the error that asking gives."""

from __future__ import annotations

import errno
import fcntl
import mmap
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
from hearthfs.client.reader import PAGE_BYTES, RANGE_BYTES, LocalBlock, Reader
from hearthfs.client.silence import PATIENCE_S, Silence
from hearthfs.common import checksums
from hearthfs.common.checksums import CHUNK_BYTES, Verifier
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import (
    BlockCorrupt,
    BlockMissing,
    DeadlineExceeded,
    HearthError,
    NoSpace,
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
        self.silence = Silence(FakeClock())

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


def aligned(size: int, shift: int = 0) -> memoryview:
    return memoryview(mmap.mmap(-1, size + PAGE_BYTES))[shift : shift + size]


@pytest.mark.parametrize("shift", [0, 1], ids=["aligned memory", "memory that is not"])
@pytest.mark.parametrize("cached", ["all", "none", "half"])
def test_direct_reads_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int, cached: str
) -> None:
    data = random.Random(2).randbytes(9 * CHUNK_BYTES + 4097)
    sums = [checksums.checksum(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]
    packed = checksums.pack(sums)
    path = tmp_path / "block"
    path.write_bytes(data)
    preadv = os.preadv

    def some(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            if cached == "none":
                raise BlockingIOError(errno.EAGAIN, "not in the page cache")
            if cached == "half":
                return preadv(fd, [buffers[0][: len(buffers[0]) // 2]], offset)
            flags = 0
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", some)
    verifier = Verifier(packed, len(data), checksums.digest(packed, len(data)))
    block = LocalBlock(os.open(path, os.O_RDONLY), verifier, direct=True)
    memory = aligned(len(data), shift)
    block.read(0, memory)
    assert memory == data
    memory[:] = bytes(len(memory))
    block.read(2 * CHUNK_BYTES, memory[: len(data) - 2 * CHUNK_BYTES])
    assert memory[: len(data) - 2 * CHUNK_BYTES] == data[2 * CHUNK_BYTES :]
    block.close()


def test_a_disk_without_direct_reads_is_read_through_the_cache(block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    refused = []

    def picky(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, "no such flag")
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "not aligned enough")
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", picky)
    local = LocalBlock(os.open(block, os.O_RDONLY), Verifier(PACKED, len(DATA), DIGEST), direct=True)
    memory = aligned(len(DATA))
    for _ in range(2):
        local.read(0, memory)
        assert memory == DATA
    assert refused == [0]
    local.close()


def test_short_reads_are_gone_on_with(block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, offset, *flags: preadv(fd, [buffers[0][:100_003]], offset, *flags)
    )
    for direct in (False, True):
        local = LocalBlock(os.open(block, os.O_RDONLY), Verifier(PACKED, len(DATA), DIGEST), direct=direct)
        memory = bytearray(len(DATA))
        local.read(0, memoryview(memory))
        assert memory == DATA
        local.close()


def test_a_copy_is_brought_here_and_read_by_its_descriptor(rig: Rig, block: Path) -> None:
    rig.workers.local = "b"
    rig.workers.reply = lambda: local_reply(block)
    brought = rig.reader.bring_here(version(A), Deadline(5))
    assert brought is not None
    memory = bytearray(len(DATA))
    brought.read(0, memoryview(memory))
    assert memory == DATA
    brought.close()


def test_no_copy_is_no_error(rig: Rig) -> None:
    def refuse() -> LocalReply:
        raise NoSpace("full")

    assert rig.reader.bring_here(version(A), Deadline(5)) is None  # no worker on this node
    rig.workers.local = "b"
    rig.workers.reply = refuse
    assert rig.reader.bring_here(version(A), Deadline(5)) is None
    rig.workers.reply = lambda: LocalReply(worker_pb2.ControlReply(errnos=[errno.ENOSPC], message="full"), [])
    assert rig.reader.bring_here(version(A), Deadline(5)) is None
    rig.workers.local = "a"
    assert rig.reader.bring_here(version(A), Deadline(5)) is None  # nobody else has it


def test_one_that_was_silent_is_asked_last(rig: Rig) -> None:
    rig.workers.answers = {"a": DATA, "b": DATA}
    rig.workers.silence.note("a")
    assert rig.read(rig.open(A, B)) == DATA
    assert set(rig.workers.asked) == {"b"}
    rig.workers.silence.heard("a")
    assert rig.read(rig.open(A, B)) == DATA
    assert "a" in rig.workers.asked


def test_the_only_one_known_gets_little_time_until_the_master_was_asked(rig: Rig) -> None:
    """A batch is told of one replica of each file."""
    rig.workers.answers = {"a": DeadlineExceeded("hangs"), "b": DATA}
    rig.metadata.entry = common.Entry(
        attributes=common.Attributes(inode=5, size_bytes=len(DATA)),
        extents=[common.Extent(block=9, generation=1, length_bytes=len(DATA), valid_bytes=len(DATA), digest=DIGEST)],
        replicas=[common.WorkerAddress(worker_id=each, address=f"{each}:1") for each in "ab"],
    )
    rig.workers.silence.note("a")
    assert rig.read(rig.open(A)) == DATA
    assert rig.workers.asked[0] == "b", "the master is asked before one that was silent"
    rig.workers.silence.heard("a")
    rig.workers.asked.clear()
    rig.workers.timeouts.clear()
    assert rig.read(rig.open(A), 0, CHUNK_BYTES) == DATA[:CHUNK_BYTES]
    assert rig.workers.asked[0] == "a"
    assert rig.workers.timeouts[0] < PATIENCE_S + 1


def test_one_that_is_slow_and_the_only_one_gets_all_the_time(rig: Rig) -> None:
    rig.workers.answers = {"a": DeadlineExceeded("slow")}
    with pytest.raises(DeadlineExceeded):
        rig.read(rig.open(A), 0, CHUNK_BYTES)
    assert rig.workers.timeouts == [pytest.approx(PATIENCE_S, abs=0.1), 30.0]
