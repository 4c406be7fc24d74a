"""What a file version is made of, and which bytes to fetch from where to read a range of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..common.checksums import CHUNK_BYTES
from ..common.types import BlockKey
from ..proto import common_pb2 as common


class Replica(NamedTuple):
    worker_id: str
    node_id: str
    address: str
    suspect: bool = False


class Version(NamedTuple):
    """One published content of one inode. Bytes [0, valid_bytes) are the block's, [valid_bytes, size_bytes) zeros."""

    inode: int
    size_bytes: int
    key: BlockKey | None
    length_bytes: int = 0
    valid_bytes: int = 0
    digest: int = 0
    replicas: tuple[Replica, ...] = ()

    @property
    def what(self) -> str:
        """For error texts."""
        return f"block {self.key} of inode {self.inode}"


def replica(worker: common.WorkerAddress) -> Replica:
    return Replica(worker.worker_id, worker.node_id, worker.address, worker.suspect)


def version_of(entry: common.Entry) -> Version:
    """The version that a lookup gave. One file has one block at most."""
    attributes = entry.attributes
    if not entry.extents:
        return Version(attributes.inode, attributes.size_bytes, None)
    (extent,) = entry.extents
    return Version(
        attributes.inode,
        attributes.size_bytes,
        BlockKey(extent.block, extent.generation),
        extent.length_bytes,
        extent.valid_bytes,
        extent.digest,
        tuple(replica(worker) for worker in entry.replicas),
    )


def in_order(replicas: Iterable[Replica], worker_id: str, node_id: str, tried: Collection[str] = ()) -> list[Replica]:
    """Which to ask, one after the other: this node's worker, others on this node, the rest as the master gave them;
    suspect ones after all that are not. Those ``tried`` are left out."""
    return sorted(
        (each for each in replicas if each.worker_id not in tried),
        key=lambda each: (each.suspect, each.worker_id != worker_id, not node_id or each.node_id != node_id),
    )


class Piece(NamedTuple):
    """Whole chunks [start, start + size) of the block, of which [skip, skip + take) go to ``into`` of the range."""

    start: int
    size: int
    skip: int
    take: int
    into: int

    @property
    def direct(self) -> bool:
        """Every byte is wanted, so it can be read where it belongs."""
        return self.skip == 0 and self.take == self.size


def pieces(offset: int, size: int, length_bytes: int) -> list[Piece]:
    """Splits the block's range [offset, offset + size) into whole chunks, so that each can be verified: at most one
    piece at either end is not direct, and that is one chunk.

    >>> [piece.direct for piece in pieces(1, 2 * CHUNK_BYTES, 4 * CHUNK_BYTES)]
    [False, True, False]
    """
    if not size:
        return []
    end = offset + size
    assert offset >= 0
    assert end <= length_bytes
    result = []
    at = offset
    while at < end:
        start = at - at % CHUNK_BYTES
        chunk_end = min(start + CHUNK_BYTES, length_bytes)
        if at == start and end >= chunk_end:
            stop = end if end == length_bytes else end - end % CHUNK_BYTES
            result.append(Piece(start, stop - start, 0, stop - start, at - offset))
        else:
            stop = min(end, chunk_end)
            result.append(Piece(start, chunk_end - start, at - start, stop - at, at - offset))
        at = stop
    return result


def present_bytes(version: Version, offset: int, size: int) -> tuple[int, int]:
    """Of ``size`` bytes wanted at ``offset``: how many the file has, and how many of these are the block's (they come
    first; the others are zeros)."""
    in_file = max(0, min(offset + size, version.size_bytes) - offset)
    in_block = max(0, min(offset + in_file, version.valid_bytes) - offset) if version.key else 0
    return in_file, in_block
