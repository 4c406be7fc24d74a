"""One command's view of the tables while it changes them, and what it touched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ..common.errors import DataDamaged, HearthError
from .directory_policy import DirectoryPolicy
from .records import Counters, Extent, Inode, Quota
from .tables import Transaction, named, pair, u64
from .view import View

_encode = msgspec.msgpack.Encoder().encode


class Touch(NamedTuple):
    """Something that caches must forget: a name in a directory, an inode, or both at once.

    ``holders`` are the inodes and directories whose grants cover it.
    """

    directory: int
    name: bytes
    inode: int
    content: bool
    holders: tuple[int, ...]


class Stored(NamedTuple):
    """A block of a file that may be evicted one day came to these workers, or into these quotas."""

    workers: tuple[str, ...]
    quotas: tuple[int, ...]
    block: int
    size_bytes: int
    depth: int
    file: tuple[int, bytes]  # directory, name


class Freed(NamedTuple):
    """A block left these workers and quotas."""

    workers: tuple[str, ...]
    quotas: tuple[int, ...]
    block: int
    size_bytes: int


def item_errno(error: HearthError) -> int:
    """The errno of one failed item of a batch; damage fails the whole batch. Raises: DataDamaged."""
    if isinstance(error, DataDamaged):
        raise error
    return error.number


class Change(View):
    """Writes go through here, so that counters, caches to invalidate and record encodings have one place."""

    def __init__(self, txn: Transaction, *, now_ns: int, client_id: int = 0) -> None:
        super().__init__(txn)
        self.txn = txn
        self.now_ns = now_ns
        self.client_id = client_id
        self.touched: list[Touch] = []
        self.moved: list[Stored | Freed] = []
        self._counters: Counters | None = None
        self._changed_quotas: set[int] = set()
        self._quotas: dict[int, Quota | None] = {}
        self._policies: dict[int, DirectoryPolicy] = {}

    # ---------------------------------------------------------------- what was touched

    def touch_name(self, directory: int, name: bytes, inode: int = 0, content: bool = False) -> None:
        self.touched.append(Touch(directory, name, inode, content, (directory,)))

    def touch_inode(self, number: int, parents: Iterable[int], content: bool = False) -> None:
        self.touched.append(Touch(0, b"", number, content, (number, *parents)))

    # ---------------------------------------------------------------- what came and went

    def policy(self, directory: int) -> DirectoryPolicy:
        """As of the first time that this command asked."""
        if directory not in self._policies:
            self._policies[directory] = super().policy(directory)
        return self._policies[directory]

    def stored(self, inode: Inode, extent: Extent, workers: tuple[str, ...], quotas: tuple[int, ...] = ()) -> None:
        """Notes it if the file may be evicted one day."""
        if inode.links and self.policy(inode.links[0][0]).cache:
            size_bytes, file = extent.length_bytes, inode.links[0]
            self.moved.append(Stored(workers, quotas, extent.block, size_bytes, inode.depth, file))

    def freed(self, extent: Extent, workers: tuple[str, ...], quotas: tuple[int, ...] = ()) -> None:
        self.moved.append(Freed(workers, quotas, extent.block, extent.length_bytes))

    # ---------------------------------------------------------------- quotas

    def find_quota(self, quota: int) -> Quota | None:
        """With the changes of this command; they are written by ``flush``."""
        if quota not in self._quotas:
            self._quotas[quota] = super().find_quota(quota)
        return self._quotas[quota]

    def put_quota(self, quota: int, record: Quota | None) -> None:
        """None: it is no more."""
        self._quotas[quota] = record
        self._changed_quotas.add(quota)

    # ---------------------------------------------------------------- counters

    @property
    def count(self) -> Counters:
        """The counters; changes are written by ``flush``."""
        if self._counters is None:
            self._counters = self.counters()
        return self._counters

    def flush(self) -> None:
        for quota in self._changed_quotas:
            record = self._quotas[quota]
            if record is None:
                self.txn.delete("quotas", u64(quota))
            else:
                self.txn.put("quotas", u64(quota), _encode(record))
        if self._counters is not None:
            self.txn.put("meta", b"counters", _encode(self._counters))

    def next_inode(self) -> int:
        number = self.count.next_inode
        self.count.next_inode = number + 1
        return number

    def next_cookie(self) -> int:
        number = self.count.next_cookie
        self.count.next_cookie = number + 1
        return number

    def next_block(self) -> int:
        number = self.count.next_block
        self.count.next_block = number + 1
        return number

    # ---------------------------------------------------------------- writing

    def put(self, table: str, key: bytes, record: msgspec.Struct) -> None:
        self.txn.put(table, key, _encode(record))

    def delete(self, table: str, key: bytes) -> bool:
        return self.txn.delete(table, key)

    def put_inode(self, number: int, inode: Inode) -> None:
        self.txn.put("inodes", u64(number), _encode(inode))

    def delete_inode(self, number: int) -> None:
        self.txn.delete("inodes", u64(number))
        for key, _ in self.txn.scan("xattrs", u64(number)):
            self.txn.delete("xattrs", key)
        self.count.inodes -= 1

    def delete_dentry(self, parent: int, name: bytes, cookie: int) -> None:
        self.txn.delete("dentries", named(parent, name))
        self.txn.delete("order", pair(parent, cookie))
