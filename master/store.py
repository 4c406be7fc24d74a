"""The tables in one LMDB file. The only module that knows LMDB.

LMDB has no checksums (a byte flipped in its file comes back as good data), so each stored value is::

    8 bytes  xxh3-64 of (table name, key, body), big-endian
    body

Files in the data directory: ``lock`` (flock: one master at a time), ``hearth.mdb``, ``hearth.mdb-lock`` (LMDB's reader
table). A directory ``restoring`` in it is what a restore that did not end left there: such data is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lmdb
import msgspec
import xxhash

from ..common.errors import Conflict, DataDamaged, HearthError, NewerFormat, NoSpace, Unavailable
from . import lmdb_pages
from .records import SCHEMA_VERSION, Schema
from .tables import PAGE_ROWS, TABLES, Batch, Reader, Transaction, rows

FILE_NAME = "hearth.mdb"
LOCK_NAME = "lock"
RESTORING_NAME = "restoring"
MAX_READERS = 512
DECODED_MAX = 1 << 13
"""Decoded records remembered per table (about 8 MB of inodes)."""
_OUT_OF_ROOM = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError)

T = TypeVar("T")
_digest = xxhash.xxh3_64_digest


class StoreFailed(HearthError):
    """A commit failed in a way that leaves its durability unknown: the process must stop, not try again."""


class _Table(NamedTuple):
    handle: Any
    name: bytes
    decoded: dict[bytes, tuple[bytes, Any, Any]]
    """What ``get_many`` decoded lately: key -> (stored value, decoder, record). Right in any state of the tables,
    because it counts only while the stored value is the same."""


class LmdbStore:
    """Raises (constructor):
    Conflict: another master has this directory.
    NewerFormat: written by a newer version.
    DataDamaged: not a readable data file, or a restore that did not end.
    OSError: the directory cannot be made or written.
    """

    def __init__(self, data: Path, map_size_bytes: int = 1 << 40, reserve_bytes: int = 64 << 20) -> None:
        self._data = data
        self._map_size_bytes = map_size_bytes
        self._reserve_bytes = reserve_bytes
        self._lock_fd = _lock(data)
        try:
            path = data / FILE_NAME
            if (data / RESTORING_NAME).exists():
                raise DataDamaged(
                    f"{data}: a restore did not end here; empty the directory and run hearth journal restore again"
                )
            if path.exists():
                _refuse_cut(path)
                _refuse_newer(path)
            self._environment = _open(path, map_size_bytes)
            cleared = self._environment.reader_check()
            self.readers_cleared = cleared
            with _damage_named(data):
                self._tables = {
                    name: _Table(self._environment.open_db(name.encode()), name.encode(), {}) for name in TABLES
                }
            self._page_bytes: int = self._environment.stat()["psize"]
            self._stamp_schema()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _stamp_schema(self) -> None:
        with self.batch() as batch, batch.step() as txn:
            if txn.get("meta", b"schema") is None:
                txn.put("meta", b"schema", msgspec.msgpack.encode(Schema(SCHEMA_VERSION)))

    @contextmanager
    def snapshot(self) -> Iterator[Reader]:
        txn = self._begin_read()
        try:
            with _damage_named(self._data):
                yield _LmdbTransaction(txn, self._tables)
        finally:
            txn.abort()

    def _begin_read(self) -> Any:
        try:
            return self._environment.begin(buffers=False)
        except lmdb.ReadersFullError:
            self.clear_readers()
            return self._environment.begin(buffers=False)
        except lmdb.PanicError:
            raise Unavailable(f"{self._data}: a commit failed; the master stops, try the next one") from None

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        try:
            txn = self._environment.begin(write=True)
        except lmdb.PanicError as error:
            raise StoreFailed(f"{self._data}: a commit failed before: {error}; stopping") from None
        try:
            yield _LmdbBatch(self._data, self._environment, txn, self._tables)
        except BaseException:
            txn.abort()
            raise
        try:
            txn.commit()
        except _OUT_OF_ROOM as error:
            raise NoSpace(f"{self._data}: no room for metadata: {error}") from None
        except lmdb.Error as error:
            raise StoreFailed(
                f"{self._data}: commit failed: {error}; stopping, nothing of it was acknowledged"
            ) from None

    def version(self) -> int:
        return int(self._environment.info()["last_txnid"])

    def copy_to(self, fd: int, look: Callable[[Reader], T]) -> T:
        """Writes the last committed state into a file or pipe, as a data file without free pages; what ``look`` finds
        in the same state. Commits go on meanwhile. It takes long: for a thread of its own.

        Raises:
            DataDamaged: a page cannot be read, or ``fd`` not be written.
        """
        txn = self._begin_read()
        try:
            found = look(_LmdbTransaction(txn, self._tables))
            self._environment.copyfd(fd, compact=True, txn=txn)
        except lmdb.Error as error:
            raise DataDamaged(f"{self._data}: cannot be copied: {error}") from None
        finally:
            txn.abort()
        return found

    def used_bytes(self) -> int:
        """About what a copy will have."""
        return self._pages_in_use() * self._page_bytes

    def verify(self) -> None:
        """Reads every value of every table. Raises: DataDamaged."""
        path = self._data / FILE_NAME
        try:
            with self.snapshot() as reader:
                for table in TABLES:
                    for _ in rows(reader, table):
                        pass
        except DataDamaged as error:
            raise DataDamaged(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    def has_room(self) -> bool:
        disk = os.statvfs(self._data)
        disk_bytes = disk.f_bavail * disk.f_frsize
        file_bytes = (self._environment.info()["last_pgno"] + 1) * self._page_bytes
        if disk_bytes >= self._reserve_bytes and file_bytes + self._reserve_bytes <= self._map_size_bytes:
            return True
        # The file never shrinks: what was deleted inside it is room too, or a disk once full would stay so for ever.
        used_bytes = self._pages_in_use() * self._page_bytes
        return bool(min(file_bytes + disk_bytes, self._map_size_bytes) - used_bytes >= self._reserve_bytes)

    def _pages_in_use(self) -> int:
        """Pages of all tables: what is left in the map beside them LMDB gives out again."""
        with self._environment.begin() as txn:
            stats = [txn.stat(table.handle) for table in self._tables.values()]
        return sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)

    def clear_readers(self) -> int:
        """Frees the slots of readers whose process is gone; their old snapshots would keep the file growing."""
        return int(self._environment.reader_check())

    def close(self) -> None:
        self._environment.close()
        os.close(self._lock_fd)


class _LmdbBatch:
    def __init__(self, data: Path, environment: Any, parent: Any, tables: dict[str, _Table]) -> None:
        self._data = data
        self._environment = environment
        self._parent = parent
        self._tables = tables

    @contextmanager
    def step(self) -> Iterator[Transaction]:
        txn = self._environment.begin(write=True, parent=self._parent)
        try:
            yield _LmdbTransaction(txn, self._tables)
            txn.commit()
        except BaseException as error:
            txn.abort()
            if isinstance(error, _OUT_OF_ROOM):
                raise NoSpace(f"no room for metadata: {error}") from None
            if isinstance(error, _DAMAGED):
                raise _damaged_file(self._data, error) from None
            raise


class _LmdbTransaction:
    def __init__(self, txn: Any, tables: dict[str, _Table]) -> None:
        self._txn = txn
        self._tables = tables

    @property
    def version(self) -> int:
        return int(self._txn.id())

    def get(self, table: str, key: bytes) -> bytes | None:
        handle, prefix, _ = self._tables[table]
        value = self._txn.get(key, None, handle)
        return None if value is None else _verified(prefix, key, value)

    def get_many(self, table: str, keys: Sequence[bytes], decode: Callable[[bytes], T]) -> list[T | None]:
        handle, prefix, known = self._tables[table]
        get, recall = self._txn.get, known.get
        result: list[T | None] = []
        append = result.append
        for key in keys:
            value = get(key, None, handle)
            if value is None:
                append(None)
                continue
            memory = recall(key)
            if memory is None or memory[0] != value or memory[1] is not decode:
                if len(known) >= DECODED_MAX:
                    known.clear()
                memory = known[key] = (value, decode, decode(_verified(prefix, key, value)))
            append(memory[2])
        return result

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes = b"", limit: int = PAGE_ROWS
    ) -> list[tuple[bytes, bytes]]:
        page: list[tuple[bytes, bytes]] = []
        handle, name, _ = self._tables[table]
        with self._txn.cursor(handle) as cursor:
            if limit < 1 or not cursor.set_range(max(prefix, start)):
                return page
            for key, value in cursor:
                if not key.startswith(prefix):
                    break
                page.append((key, _verified(name, key, value)))
                if len(page) == limit:
                    break
        return page

    def put(self, table: str, key: bytes, value: bytes) -> None:
        handle, prefix, _ = self._tables[table]
        self._txn.put(key, _digest(prefix + key + value) + value, True, True, False, handle)

    def delete(self, table: str, key: bytes) -> bool:
        return bool(self._txn.delete(key, b"", self._tables[table].handle))


def _verified(table: bytes, key: bytes, value: bytes) -> bytes:
    body = value[8:]
    if _digest(table + key + body) != value[:8]:
        raise _damaged(table.decode(), key)
    return body


@contextmanager
def _damage_named(data: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise _damaged_file(data, error) from None


def _damaged_file(data: Path, error: Exception) -> DataDamaged:
    return DataDamaged(f"{data / FILE_NAME}: a page is not what it should be: {error}; restore from a backup")


def _damaged(table: str, key: bytes) -> DataDamaged:
    return DataDamaged(f"table {table}, key {key.hex()}: the value does not match its checksum; restore from a backup")


def _lock(data: Path) -> int:
    with suppress(FileExistsError):
        data.mkdir(mode=0o700)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(data / LOCK_NAME, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise Conflict(f"{data}: another master (process {owner or 'unknown'}) runs on this data") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _open(path: Path, map_size_bytes: int, readonly: bool = False) -> Any:
    try:
        return lmdb.open(
            str(path),
            map_size=map_size_bytes,
            subdir=False,
            mode=0o600,
            max_dbs=len(TABLES) + 8,
            max_readers=MAX_READERS,
            readonly=readonly,
            readahead=False,
        )
    except lmdb.Error as error:
        raise DataDamaged(f"{path}: cannot be opened as metadata: {error}; restore from a backup") from None


def _refuse_cut(path: Path) -> None:
    """LMDB maps its file: reading a page beyond the end would end the process. A file may be shorter than its head says
    all the same: pages that a transaction took and gave back are never written. So the pages are followed, then."""
    size_bytes = path.stat().st_size
    try:
        with path.open("rb") as file:
            if size_bytes and lmdb_pages.is_short(file, size_bytes):  # empty: the first start was ended early
                lmdb_pages.check(file, size_bytes)
    except lmdb_pages.CutError as error:
        raise DataDamaged(f"{path} is cut: {error}; restore from a backup") from None


def _refuse_newer(path: Path) -> None:
    """Looks at the schema before anything is written."""
    environment = _open(path, 1 << 40, readonly=True)
    try:
        with environment.begin() as txn:
            try:
                with _damage_named(path.parent):
                    table = environment.open_db(b"meta", txn=txn, create=False)
                    value = txn.get(b"schema", db=table)
            except lmdb.NotFoundError:
                return
            if value is None:
                return
            version = msgspec.msgpack.decode(_verified(b"meta", b"schema", value), type=Schema).version
    finally:
        environment.close()
    if version > SCHEMA_VERSION:
        raise NewerFormat(
            f"{path}: schema version {version}, this program knows {SCHEMA_VERSION}; start the newer program on it"
        )
