"""The worker is a buffer here; what counts is what it is sent, and the checksums that go with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hearthfs.client.deadline import Deadline
from hearthfs.client.drafts import PIECE_BYTES, Allocated, Committed, Draft, LocalDraft, SpoolDraft, StreamDraft
from hearthfs.client.layout import Replica
from hearthfs.client.local_socket import LocalReply
from hearthfs.common import checksums
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.common.errors import BlockMissing, NoSpace, NotSupported
from hearthfs.common.types import BlockKey
from hearthfs.proto import worker_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

PLACE = Allocated(BlockKey(3, 1), Replica("w", "n", "h:1"))
END = Deadline(30.0)


class FakeWorkers:
    """Takes writes and commits of one block. ``limits``: what create answers, in turn."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.writes: list[tuple[int, int]] = []
        self.commits: list[pb.CommitItem] = []
        self.limits: list[int] = []
        self.errno = 0

    def write(self, worker: Replica, key: BlockKey, offset: int, data: memoryview, deadline: Deadline) -> None:
        self.writes.append((offset, len(data)))
        self.bytes.extend(bytes(max(0, offset + len(data) - len(self.bytes))))
        self.bytes[offset : offset + len(data)] = data

    def local_call(self, request: pb.ControlRequest, deadline: Deadline) -> LocalReply:
        limit = self.limits.pop(0)
        return LocalReply(pb.ControlReply(errnos=[0], blocks=[pb.BlockFile(limit_bytes=limit)]), [])

    def persist(self, worker: Replica, request: pb.ControlRequest, deadline: Deadline) -> LocalReply:
        (item,) = request.commit.items
        self.commits.append(item)
        packed = item.checksums or packed_of(bytes(self.bytes))
        file = pb.BlockFile(length_bytes=item.length_bytes, checksums=packed)
        return LocalReply(pb.ControlReply(errnos=[self.errno], blocks=[file]), [])


def packed_of(data: bytes) -> bytes:
    return checksums.pack([checksums.checksum(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)])


@pytest.fixture
def workers() -> FakeWorkers:
    return FakeWorkers()


def local(workers: Any, path: Path, limit: int = 1 << 40) -> LocalDraft:
    import os

    return LocalDraft(PLACE, os.open(path, os.O_RDWR | os.O_CREAT), 0, limit, workers)


@pytest.fixture(params=["local", "stream", "spool"])
def draft(request: pytest.FixtureRequest, workers: Any, tmp_path: Path) -> Iterator[Draft]:
    makers: dict[str, Callable[[], Draft]] = {
        "local": lambda: local(workers, tmp_path / "block"),
        "stream": lambda: StreamDraft(PLACE, workers),
        "spool": lambda: SpoolDraft(PLACE, workers),
    }
    made = makers[request.param]()
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * PIECE_BYTES + 5])
def test_in_order(draft: Draft, workers: FakeWorkers, tmp_path: Path, size: int) -> None:
    data = random.randbytes(size)
    for at in range(0, size, 700_001):
        draft.write(at, memoryview(data)[at : at + 700_001], END)
    done = draft.commit(False, END)
    assert done == Committed(PLACE.key, "w", size, checksums.digest(packed_of(data), size))
    assert workers.commits[0].checksums == packed_of(data)
    stored = (tmp_path / "block").read_bytes() if isinstance(draft, LocalDraft) else bytes(workers.bytes)
    assert stored == data
    assert all(length <= PIECE_BYTES for _, length in workers.writes)


def test_out_of_order(draft: Draft, workers: FakeWorkers, tmp_path: Path) -> None:
    expected = bytearray(3 * CHUNK_BYTES + 10)
    for offset, size in [(2 * CHUNK_BYTES, CHUNK_BYTES + 10), (0, 100), (50, 100), (CHUNK_BYTES - 1, 2)]:
        data = random.randbytes(size)
        draft.write(offset, memoryview(data), END)
        expected[offset : offset + size] = data
    done = draft.commit(True, END)
    assert done.length_bytes == len(expected)
    assert done.digest == checksums.digest(packed_of(bytes(expected)), len(expected))


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "write", "cut"]), st.integers(0, 40), st.integers(1, 20)), max_size=12
    )
)
def test_checksums_are_of_the_bytes_whatever_order_they_came_in(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Positions are in sixteenths of a chunk, so that chunks are met whole, in part and across."""
    workers: Any = FakeWorkers()
    unit = CHUNK_BYTES // 16
    path = tmp_path_factory.mktemp("draft") / "block"
    draft = local(workers, path)
    expected = bytearray()
    for kind, position, count in steps:
        if kind == "cut":
            draft.truncate(min(len(expected), position * unit))
            del expected[position * unit :]
        else:
            data = random.randbytes(1) * (count * unit)
            draft.write(position * unit, memoryview(data), END)
            expected.extend(bytes(max(0, position * unit + len(data) - len(expected))))
            expected[position * unit : position * unit + len(data)] = data
    done = draft.commit(False, END)
    draft.close()
    assert path.read_bytes() == expected
    assert done.digest == checksums.digest(packed_of(bytes(expected)), len(expected))


def test_own_bytes_can_be_read_and_cut_but_not_those_sent_away(draft: Draft) -> None:
    draft.write(0, memoryview(b"0123456789"), END)
    if isinstance(draft, StreamDraft):
        with pytest.raises(NotSupported):
            draft.read(0, memoryview(bytearray(3)))
        with pytest.raises(NotSupported):
            draft.truncate(5)
        draft.truncate(10)
        return
    memory = bytearray(4)
    draft.read(3, memoryview(memory))
    assert memory == b"3456"
    draft.truncate(5)
    draft.truncate(7)
    assert draft.length_bytes == 5


def test_checksums_are_of_the_callers_bytes_not_of_what_the_disk_kept(workers: Any, tmp_path: Path) -> None:
    data = random.randbytes(CHUNK_BYTES + 100)
    draft = local(workers, tmp_path / "block")
    draft.write(0, memoryview(data), END)
    with (tmp_path / "block").open("r+b") as file:
        file.write(b"the disk lost its mind")
    assert draft.commit(False, END).digest == checksums.digest(packed_of(data), len(data))
    draft.close()


def test_room_is_asked_for_again(workers: Any, tmp_path: Path) -> None:
    draft = local(workers, tmp_path / "block", limit=10)
    workers.limits = [15, 100]
    draft.write(0, memoryview(bytes(40)), END)
    assert draft.length_bytes == 40
    workers.limits = [100]
    with pytest.raises(NoSpace, match="no room beyond 100"):
        draft.write(40, memoryview(bytes(100)), END)
    assert draft.length_bytes == 100
    draft.close()


def test_a_commit_can_be_repeated_and_the_bytes_still_moved(workers: Any, tmp_path: Path) -> None:
    draft = local(workers, tmp_path / "block")
    draft.write(0, memoryview(b"data"), END)
    workers.errno = 28
    with pytest.raises(NoSpace):
        draft.commit(False, END)
    memory = bytearray(4)
    draft.read(0, memoryview(memory))
    assert memory == b"data"
    workers.errno = 0
    assert draft.commit(False, END).length_bytes == 4
    draft.close()


def test_a_block_that_its_worker_lost_is_no_missing_file(workers: Any, tmp_path: Path) -> None:
    draft = local(workers, tmp_path / "block")
    workers.errno = 2
    with pytest.raises(BlockMissing, match="being written"):
        draft.commit(False, END)
    draft.close()
