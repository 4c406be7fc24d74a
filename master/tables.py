"""The tables, their keys, and the small ordered key-value interface that all rules stand on.

| table | key | value (records.py) |
|---|---|---|
| meta | ``schema``, ``cluster``, ``epoch``, ``counters`` | Schema, Cluster, Epoch, Counters |
| meta | ``journal`` | number of the last journal record, u64 |
| meta | ``rebalancing`` | Rebalancing |
| inodes | inode u64 | Inode |
| dentries | parent u64, name | Dentry |
| order | parent u64, cookie u64 | Ordered |
| xattrs | inode u64, name | the value itself |
| blocks | block u64 | Block |
| working | block u64 | Working |
| worker_blocks | worker id, NUL, block u64 | Held |
| garbage | worker id, NUL, block u64 | Garbage |
| sessions | session u64 | Session |
| clients | client u64 | Client |
| results | client u64, request u64 | Result |
| workers | worker id | Worker |
| quotas | quota u64 | Quota |
| journal | number u64 | journal.Record |

Numbers are big-endian, so that the order of keys is the order of numbers.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

TABLES = (
    "meta",
    "inodes",
    "dentries",
    "order",
    "xattrs",
    "blocks",
    "working",
    "worker_blocks",
    "garbage",
    "sessions",
    "clients",
    "results",
    "workers",
    "quotas",
    "journal",
)
PAGE_ROWS = 1000
T = TypeVar("T")

_U64 = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
pack_u64 = _U64.pack
"""``u64`` where thousands are packed at once."""


def u64(number: int) -> bytes:
    return _U64.pack(number)


def pair(first: int, second: int) -> bytes:
    return _PAIR.pack(first, second)


def from_u64(key: bytes) -> int:
    """The number that a key ends with."""
    return int.from_bytes(key[-8:], "big")


def named(number: int, name: bytes) -> bytes:
    return _U64.pack(number) + name


def of_worker(worker_id: str, block: int | None = None) -> bytes:
    """Key of a worker's block, or without one the prefix of all of them."""
    return worker_id.encode() + b"\0" + (b"" if block is None else _U64.pack(block))


class Reader(Protocol):
    """One consistent state of all tables."""

    @property
    def version(self) -> int:
        """Which state it is: grows with each commit that changed something."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Raises: DataDamaged."""

    def get_many(self, table: str, keys: Sequence[bytes], decode: Callable[[bytes], T]) -> list[T | None]:
        """One decoded value, or None, for each key in order. Raises: DataDamaged.

        ``decode`` may be spared where the value is one that it decoded before, so it returns what nobody changes.
        """

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes = b"", limit: int = PAGE_ROWS
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` rows with this prefix and ``key >= start``, in order of keys. Raises: DataDamaged."""


class Transaction(Reader, Protocol):
    """A state that is being changed; its own reads see the changes."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Raises: NoSpace."""

    def delete(self, table: str, key: bytes) -> bool:
        """Whether the row was there. Raises: NoSpace."""


class Batch(Protocol):
    """Several transactions that become durable together."""

    @contextmanager
    def step(self) -> Iterator[Transaction]:
        """One of them: an exception inside leaves nothing of it, and all of the others."""


class Store(Protocol):
    @contextmanager
    def snapshot(self) -> Iterator[Reader]:
        """The last committed state, unmoved by later commits."""

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Durable when the block ends; nothing of it stays when an exception leaves the block.

        Raises:
            NoSpace: no room for it; nothing was changed, and the store stays usable.
            StoreFailed: durability is unknown; nothing may be acknowledged any more.
        """

    def version(self) -> int:
        """That of the last committed state."""

    def has_room(self) -> bool:
        """False when only operations that free something should be let in."""

    def clear_readers(self) -> int:
        """Frees what readers left behind whose process is gone; how many there were."""


def rows(reader: Reader, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """All rows with this prefix from ``start`` on, read in pages: rows may be changed meanwhile."""
    while True:
        page = reader.scan(table, prefix, start)
        yield from page
        if len(page) < PAGE_ROWS:
            return
        start = page[-1][0] + b"\0"


class MemoryStore:
    """The interface over dictionaries: for tests and for replaying a journal. A snapshot is a copy."""

    def __init__(self) -> None:
        self._state = _MemoryState({name: {} for name in TABLES})

    @contextmanager
    def snapshot(self) -> Iterator[Reader]:
        yield _MemoryState({name: dict(table) for name, table in self._state.tables.items()}, self._state.version)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        version = self._state.version + 1
        state = _MemoryState({name: dict(table) for name, table in self._state.tables.items()}, version)
        yield state
        self._state = state

    def version(self) -> int:
        return self._state.version

    def has_room(self) -> bool:
        return True

    def clear_readers(self) -> int:
        return 0


class _MemoryState:
    def __init__(self, tables: dict[str, dict[bytes, bytes]], version: int = 0) -> None:
        self.tables = tables
        self.version = version
        self._keys: dict[str, list[bytes]] = {}
        self._undo: list[tuple[str, bytes, bytes | None]] = []

    @contextmanager
    def step(self) -> Iterator[_MemoryState]:
        self._undo = []
        try:
            yield self
        except BaseException:
            for table, key, value in reversed(self._undo):
                if value is None:
                    self.tables[table].pop(key, None)
                else:
                    self.tables[table][key] = value
            self._keys = {}
            raise

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables[table].get(key)

    def get_many(self, table: str, keys: Sequence[bytes], decode: Callable[[bytes], T]) -> list[T | None]:
        values = (self.tables[table].get(key) for key in keys)
        return [None if value is None else decode(value) for value in values]

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes = b"", limit: int = PAGE_ROWS
    ) -> list[tuple[bytes, bytes]]:
        keys = self._keys.get(table)
        if keys is None:
            keys = self._keys[table] = sorted(self.tables[table])
        at = bisect.bisect_left(keys, max(prefix, start))
        page = []
        for key in keys[at : at + limit]:
            if not key.startswith(prefix):
                break
            page.append((key, self.tables[table][key]))
        return page

    def put(self, table: str, key: bytes, value: bytes) -> None:
        old = self.tables[table].get(key)
        self._undo.append((table, key, old))
        self.tables[table][key] = value
        if old is None and table in self._keys:
            bisect.insort(self._keys[table], key)

    def delete(self, table: str, key: bytes) -> bool:
        old = self.tables[table].pop(key, None)
        if old is None:
            return False
        self._undo.append((table, key, old))
        if table in self._keys:
            keys = self._keys[table]
            del keys[bisect.bisect_left(keys, key)]
        return True
