"""One command's view of the tables while it changes them, and what it touched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ..common.errors import DataDamaged, HearthError
from .records import Counters, Inode
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
        self._counters: Counters | None = None

    # ---------------------------------------------------------------- what was touched

    def touch_name(self, directory: int, name: bytes, inode: int = 0, content: bool = False) -> None:
        self.touched.append(Touch(directory, name, inode, content, (directory,)))

    def touch_inode(self, number: int, parents: Iterable[int], content: bool = False) -> None:
        self.touched.append(Touch(0, b"", number, content, (number, *parents)))

    # ---------------------------------------------------------------- counters

    @property
    def count(self) -> Counters:
        """The counters; changes are written by ``flush``."""
        if self._counters is None:
            self._counters = self.counters()
        return self._counters

    def flush(self) -> None:
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
