"""The master's own check of its tables: every law that the modules of the rules state, over one snapshot.

It needs no memory that grows with the tables: each row is checked against the rows it refers to, and those against it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..common.types import ROOT_INODE
from .records import Block, Dentry, Held, Inode, Ordered, Working
from .tables import from_u64, of_worker, pair, rows
from .view import View

PROBLEMS_MAX = 1000

_inode = msgspec.msgpack.Decoder(Inode).decode
_dentry = msgspec.msgpack.Decoder(Dentry).decode
_ordered = msgspec.msgpack.Decoder(Ordered).decode
_block = msgspec.msgpack.Decoder(Block).decode
_held = msgspec.msgpack.Decoder(Held).decode
_working = msgspec.msgpack.Decoder(Working).decode


class DentryRow(NamedTuple):
    parent: int
    name: bytes
    dentry: Dentry


class InodeRow(NamedTuple):
    number: int
    inode: Inode


class BlockRow(NamedTuple):
    """``inode`` is 0 for a working block, whose owner is ``client_id``."""

    block: int
    generation: int
    inode: int
    length_bytes: int
    digest: int
    workers: tuple[str, ...]
    client_id: int


Row = DentryRow | InodeRow | BlockRow


class Check:
    """Iterate ``rows()`` to its end, then read ``problems`` (at most 1000) and the counts.

    ``rows`` gives None now and then where it only compares, so that a caller can let others run.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self.problems: list[str] = []
        self.dentries = 0
        self.inodes = 0
        self.blocks = 0
        self._published = 0
        self._without_replica = 0
        self._held = 0
        self._quota_bytes: dict[int, int] = {}

    def rows(self) -> Iterator[Row | None]:
        """Raises: DataDamaged: a value does not match its checksum."""
        yield from self._dentry_rows()
        yield from self._inode_rows()
        yield from self._block_rows()
        yield from self._ordered_rows()
        yield from self._worker_rows()
        self._check_counters()

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    def _dentry_rows(self) -> Iterator[Row]:
        parent, subdirectories = 0, 0
        for key, value in rows(self._view.reader, "dentries"):
            here, name, dentry = from_u64(key[:8]), key[8:], _dentry(value)
            if here != parent:
                self._check_directory(parent, subdirectories)
                parent, subdirectories = here, 0
            subdirectories += self._check_dentry(here, name, dentry)
            self.dentries += 1
            yield DentryRow(here, name, dentry)
        self._check_directory(parent, subdirectories)

    def _check_dentry(self, parent: int, name: bytes, dentry: Dentry) -> bool:
        """Whether it names a directory."""
        inode = self._view.find_inode(dentry.inode)
        if inode is None:
            self.problem(f"dentry {parent}/{name!r} names inode {dentry.inode}, which does not exist")
            return False
        if inode.links.count((parent, name)) != 1:
            self.problem(f"inode {dentry.inode} does not list its name {parent}/{name!r} once")
        ordered = self._view.reader.get("order", pair(parent, dentry.cookie))
        if ordered is None or _ordered(ordered) != Ordered(name, dentry.inode, stat.S_IFMT(inode.mode)):
            self.problem(f"dentry {parent}/{name!r}: cookie {dentry.cookie} is not in the directory's order")
        return inode.is_directory

    def _check_directory(self, number: int, subdirectories: int) -> None:
        if not number:
            return
        inode = self._view.find_inode(number)
        if inode is None or not inode.is_directory:
            self.problem(f"inode {number} has entries and is no directory")
        elif inode.nlink != 2 + subdirectories:
            self.problem(
                f"directory {number}: nlink is {inode.nlink}, {subdirectories} subdirectories make {2 + subdirectories}"
            )

    def _inode_rows(self) -> Iterator[Row]:
        for key, value in rows(self._view.reader, "inodes"):
            number, inode = from_u64(key), _inode(value)
            self.inodes += 1
            self._check_inode(number, inode)
            yield InodeRow(number, inode)

    def _check_inode(self, number: int, inode: Inode) -> None:
        if not inode.links and number != ROOT_INODE:
            self.problem(f"inode {number} is an orphan: no name leads to it")
        for parent, name in inode.links:
            dentry = self._view.find_dentry(parent, name)
            if dentry is None or dentry.inode != number:
                self.problem(f"inode {number}: its name {parent}/{name!r} does not lead to it")
        if inode.is_directory:
            if self._view.is_empty(number) and inode.nlink != 2:
                self.problem(f"directory {number}: nlink is {inode.nlink}, and it is empty")
            if len(inode.links) > 1:
                self.problem(f"directory {number} has {len(inode.links)} names")
        elif inode.nlink != len(inode.links):
            self.problem(f"inode {number}: nlink is {inode.nlink}, and it has {len(inode.links)} names")
        if len(inode.extents) > 1 or (inode.extents and not inode.is_regular):
            self.problem(f"inode {number} has {len(inode.extents)} extents")
        self._count_in_quota(number, inode)
        for extent in inode.extents:
            self._without_replica += not extent.workers
            self._held += len(extent.workers)
            block = self._view.find_block(extent.block)
            if block != Block(number, extent.generation):
                self.problem(
                    f"inode {number}: its block {extent.block:016x}.{extent.generation} is recorded as {block}"
                )
            if not 0 < extent.valid_bytes <= extent.length_bytes or extent.valid_bytes > inode.size_bytes:
                self.problem(
                    f"inode {number}, {inode.size_bytes} bytes: {extent.valid_bytes} of {extent.length_bytes} are valid"
                )
            for worker_id in extent.workers:
                held = self._view.reader.get("worker_blocks", of_worker(worker_id, extent.block))
                if held is None or _held(held).generation != extent.generation:
                    self.problem(f"block {extent.block:016x}: its replica on {worker_id} is not in that worker's list")

    def _count_in_quota(self, number: int, inode: Inode) -> None:
        if not inode.quota:
            return
        if inode.quota not in self._quota_bytes and self._view.find_quota(inode.quota) is None:
            self.problem(f"inode {number} counts in quota {inode.quota}, which does not exist")
        size_bytes = sum(extent.length_bytes for extent in inode.extents)
        self._quota_bytes[inode.quota] = self._quota_bytes.get(inode.quota, 0) + size_bytes

    def _block_rows(self) -> Iterator[Row]:
        for key, value in rows(self._view.reader, "blocks"):
            number, block = from_u64(key), _block(value)
            self._published += 1
            self.blocks += 1
            inode = self._view.find_inode(block.inode)
            extent = inode.extents[0] if inode and inode.extents else None
            if extent is None or (extent.block, extent.generation) != (number, block.generation):
                self.problem(
                    f"block {number:016x}.{block.generation} names inode {block.inode}, which does not have it"
                )
                yield BlockRow(number, block.generation, block.inode, 0, 0, (), 0)
            else:
                workers = extent.workers
                yield BlockRow(number, block.generation, block.inode, extent.length_bytes, extent.digest, workers, 0)
        for key, value in rows(self._view.reader, "working"):
            number, working = from_u64(key), _working(value)
            self.blocks += 1
            if self._view.find_block(number) is not None:
                self.problem(f"block {number:016x} is a working block and part of a file")
            yield BlockRow(number, working.generation, 0, 0, 0, (working.worker_id,), working.client_id)

    def _ordered_rows(self) -> Iterator[None]:
        count = 0
        for key, value in rows(self._view.reader, "order"):
            count += 1
            parent, cookie, ordered = from_u64(key[:8]), from_u64(key), _ordered(value)
            dentry = self._view.find_dentry(parent, ordered.name)
            if dentry != Dentry(ordered.inode, cookie):
                self.problem(f"directory {parent}: cookie {cookie} lists {ordered.name!r}, whose dentry is {dentry}")
            if count % 500 == 0:
                yield None
        if count != self.dentries:
            self.problem(f"{count} rows of order for {self.dentries} dentries")

    def _worker_rows(self) -> Iterator[None]:
        count = 0
        for key, value in rows(self._view.reader, "worker_blocks"):
            count += 1
            worker_id, block, held = key[:-9].decode(), from_u64(key), _held(value)
            found = self._view.find_block(block)
            if found is None or found.generation != held.generation:
                self.problem(f"worker {worker_id}: its block {block:016x}.{held.generation} belongs to no file")
            if count % 500 == 0:
                yield None
        if count != self._held:
            self.problem(f"{count} rows of worker_blocks for {self._held} replicas")

    def _check_counters(self) -> None:
        counters = self._view.counters()
        told = (counters.inodes, counters.blocks, counters.without_replica)
        found = (self.inodes, self._published, self._without_replica)
        if told != found:
            self.problem(f"counters of inodes, blocks and files without replica say {told}, the tables have {found}")
        self._check_quotas()
        xattr_owner = 0
        for key, _ in rows(self._view.reader, "xattrs"):
            owner = from_u64(key[:8])
            if owner != xattr_owner and self._view.find_inode(owner) is None:
                self.problem(f"extended attributes of inode {owner}, which does not exist")
            xattr_owner = owner

    def _check_quotas(self) -> None:
        used: dict[int, int] = {}
        for quota, size_bytes in self._quota_bytes.items():
            for number, _ in self._view.quota_chain(quota):
                used[number] = used.get(number, 0) + size_bytes
        for number, record in self._view.quotas():
            if record.used_bytes != used.get(number, 0):
                self.problem(
                    f"quota {number} of directory {record.directory} counts {record.used_bytes} bytes, "
                    f"its files have {used.get(number, 0)}"
                )


def problems(view: View) -> list[str]:
    """All that is wrong with the tables."""
    check = Check(view)
    for _ in check.rows():
        pass
    return check.problems
