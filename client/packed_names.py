"""Many names in one field, and the bitmap that answers them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..common.types import BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from .layout import Version, replica

MAX_NAMES = 8192
MAX_BYTES = 1 << 20
"""Of one request: the reply with layouts is about 60 bytes a name, and a message 4 MiB at most."""


def pack(names: Sequence[bytes]) -> common.PackedNames:
    """
    >>> pack([b"ab", b"cd"]).packed, list(pack([b"a", b"bc"]).names)
    (b'abcd', [b'a', b'bc'])
    """
    widths = set(map(len, names))
    if len(widths) == 1:
        return common.PackedNames(width=widths.pop(), packed=b"".join(names))
    return common.PackedNames(names=names)


def split(names: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Groups that fit into one request each."""
    if len(names) <= MAX_NAMES and len(b"".join(names)) + 4 * len(names) <= MAX_BYTES:
        return [names] if names else []
    groups = []
    start = total = 0
    for index, name in enumerate(names):
        total += len(name) + 4
        if index - start == MAX_NAMES or total > MAX_BYTES:
            groups.append(names[start:index])
            start, total = index, len(name) + 4
    if start < len(names):
        groups.append(names[start:])
    return groups


@dataclass(frozen=True, slots=True)
class LookupResult:
    """``found[i]``: name i is a regular file whose bytes can be read now. ``versions[i]``: how, when layouts were
    asked for and it is found; else None. ``replicate_on_read``: the directory wants a copy left on a reader's node."""

    found: list[bool]
    versions: list[Version | None]
    replicate_on_read: bool = False

    def part(self, indexes: Sequence[int]) -> LookupResult:
        """What it says of some of the names."""
        found = [self.found[index] for index in indexes]
        return LookupResult(found, [self.versions[index] for index in indexes], self.replicate_on_read)

    @property
    def leading_hits(self) -> int:
        """How many names from the first on are found without a gap."""
        return self.found.index(False) if False in self.found else len(self.found)

    @property
    def hits(self) -> int:
        return sum(self.found)


def bits(bitmap: bytes, count: int) -> list[bool]:
    """Least significant first; what is missing is False.

    >>> bits(b"\\x05", 3)
    [True, False, True]
    """
    number = int.from_bytes(bitmap, "little")
    return [digit == "1" for digit in f"{number:0{max(1, count)}b}"[::-1][:count]]


def result(reply: pb.LookupManyReply, count: int, want_layout: bool) -> LookupResult:
    found = bits(reply.found, count)
    versions: list[Version | None] = [None] * count
    if want_layout:
        hits = (index for index, hit in enumerate(found) if hit)
        for index, version in zip(hits, _versions(reply), strict=True):
            versions[index] = version
    return LookupResult(found, versions, reply.replicate_on_read)


def _versions(reply: pb.LookupManyReply) -> Iterator[Version]:
    replicas = [(replica(worker),) for worker in reply.workers]
    columns = zip(
        reply.inodes,
        reply.sizes_bytes,
        reply.blocks,
        reply.generations,
        reply.lengths_bytes,
        reply.valid_bytes,
        reply.digests,
        reply.worker_indexes,
        strict=True,
    )
    for inode, size, block, generation, length, valid, digest, worker in columns:
        if block:
            yield Version(inode, size, BlockKey(block, generation), length, valid, digest, replicas[worker])
        else:
            yield Version(inode, size, None)
