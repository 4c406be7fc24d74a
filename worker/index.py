"""What a disk's block files hold: length and checksums, by block key, in LMDB beside the blocks.

The index is a cache of what the files say. It is written without fsync: after a mere process death it is whole (the
page cache has it), after a crash of the machine it is not trusted and made anew by reading the files. What could be
wrong then (a torn block whose checksums were computed from the torn bytes) is caught by the digest that the master
has. Each value carries a checksum over its table, key and body; a value that fails it counts as absent.
"""

from __future__ import annotations

import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import xxhash

from ..common.errors import DataDamaged, NewerFormat
from ..common.telemetry import get_logger
from ..common.types import BlockKey

MAP_BYTES = 64 << 30  # address space, not disk: 1 KiB for each of 64 million blocks
SCHEMA = 1
PAGE = 4096
_TABLE = b"blocks"
_KEY_BYTES = 12
_STATE = "state"  # beside the database: "<schema> <boot id>" while in use, "<schema> clean" after an orderly end

log = get_logger("hearthfs.worker.index")


class BlockRecord(msgspec.Struct, frozen=True):
    """One committed block file.

    Attributes:
        checksums: little-endian u64 for each 1 MiB chunk.
        inode, ctime_ns: of the file when its bytes were last known to be right; another value means "verify first".
        disk_bytes: what the file takes from the disk.
        synced: the bytes were fsynced before the commit was acknowledged.
        boot_id: of the machine's boot in which they were written.
    """

    length_bytes: int
    checksums: bytes
    digest: int
    inode: int
    ctime_ns: int
    disk_bytes: int
    synced: bool = False
    boot_id: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BlockRecord)


def _pack_key(key: BlockKey) -> bytes:
    return struct.pack(">QI", *key)


def _seal(packed_key: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_64_digest(_TABLE + packed_key + body) + body


def _unseal(packed_key: bytes, value: bytes) -> BlockRecord | None:
    body = value[8:]
    if value[:8] != xxhash.xxh3_64_digest(_TABLE + packed_key + body):
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


class Index:
    """The records of one disk. Thread-safe; opened once per process.

    Attributes:
        rebuilt: the index was lost, damaged or not to be trusted, and starts empty.
        blocks, disk_bytes: how many records were there at the start, and what their files take together.

    Raises:
        OSError: the disk does not work.
    """

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id
        self._lock = threading.Lock()
        reason = _distrust(directory, boot_id)
        if reason and directory.exists():
            log.warning("index-rebuilt", path=str(directory), reason=reason)
            shutil.rmtree(directory)
        self.rebuilt = bool(reason)
        try:
            self._open()
        except lmdb.Error as error:
            log.warning("index-rebuilt", path=str(directory), reason=str(error))
            shutil.rmtree(directory)
            self.rebuilt = True
            self._open()

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._environment = lmdb.open(
            str(self._directory), map_size=MAP_BYTES, sync=False, max_dbs=1, mode=0o600, max_readers=512
        )
        try:
            self._table = self._environment.open_db(_TABLE)
            self.blocks, self.disk_bytes = self._walk()
        except lmdb.Error:
            self._environment.close()
            raise
        self._write_state(self._boot_id)

    def _walk(self) -> tuple[int, int]:
        """Visits every record, so that a damaged page is found now and not in the middle of a report.

        Raises:
            lmdb.Error.
        """
        blocks = disk_bytes = seen = 0
        last = b""
        with self._environment.begin(db=self._table) as transaction, transaction.cursor() as cursor:
            for packed, value in cursor:
                seen += 1
                if len(packed) != _KEY_BYTES or packed <= last:
                    raise lmdb.CorruptedError("keys are not in order")
                last = packed
                record = _unseal(packed, value)
                if record is not None:
                    blocks += 1
                    disk_bytes += record.disk_bytes
            if seen != transaction.stat(self._table)["entries"]:
                raise lmdb.CorruptedError("records are missing")
        return blocks, disk_bytes

    def _write_state(self, word: str) -> None:
        temporary = self._directory / (_STATE + ".new")
        with temporary.open("w") as stream:
            stream.write(f"{SCHEMA} {word}\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self._directory / _STATE)

    def get(self, key: BlockKey) -> BlockRecord | None:
        """None also for a record that is damaged: the file is then looked at again."""
        packed = _pack_key(key)
        try:
            with self._environment.begin(db=self._table) as transaction:
                value = transaction.get(packed)
        except lmdb.Error as error:
            log.error("index-read-failed", block=str(key), error=str(error))
            return None
        if value is None:
            return None
        record = _unseal(packed, value)
        if record is None:
            log.warning("index-value-damaged", block=str(key))
        return record

    def put(self, key: BlockKey, record: BlockRecord) -> bool:
        """False: it could not be stored (no space). The block is still right, it is only not remembered."""
        packed = _pack_key(key)
        return self._write(key, lambda transaction: transaction.put(packed, _seal(packed, _encoder.encode(record))))

    def drop(self, key: BlockKey) -> bool:
        """False: it could not be removed; opening the block will show that its file is gone."""
        return self._write(key, lambda transaction: transaction.delete(_pack_key(key)))

    def _write(self, key: BlockKey, change: Callable[[Any], object]) -> bool:
        try:
            with self._lock, self._environment.begin(db=self._table, write=True) as transaction:
                change(transaction)
        except lmdb.Error as error:
            log.error("index-write-failed", block=str(key), error=str(error))
            return False
        return True

    def page(self, after: BlockKey | None, limit: int) -> list[tuple[BlockKey, BlockRecord | None]]:
        """Up to ``limit`` records in ascending order of key, from the first one above ``after``. A damaged value
        comes as None.

        Raises:
            DataDamaged: a page is damaged; the index is made anew at the next start.
        """
        try:
            return self._page(after, limit)
        except lmdb.Error as error:
            raise DataDamaged(f"index {self._directory}: {error}: restart the worker to make it anew") from error

    def _page(self, after: BlockKey | None, limit: int) -> list[tuple[BlockKey, BlockRecord | None]]:
        found: list[tuple[BlockKey, BlockRecord | None]] = []
        with self._environment.begin(db=self._table) as transaction, transaction.cursor() as cursor:
            start = b"" if after is None else _pack_key(after) + b"\0"
            going = cursor.set_range(start) if start else cursor.first()
            while going and len(found) < limit:
                packed, value = cursor.item()
                found.append((BlockKey(*struct.unpack(">QI", packed)), _unseal(packed, value)))
                going = cursor.next()
        return found

    def records(self, page_size: int = 4096) -> Iterator[tuple[BlockKey, BlockRecord | None]]:
        """All of them, in short transactions: what comes and goes meanwhile may or may not be seen."""
        after: BlockKey | None = None
        while page := self.page(after, page_size):
            yield from page
            after = page[-1][0]

    def close(self) -> None:
        """Makes the index durable, so that it is trusted after a reboot."""
        self._environment.sync(True)
        self._environment.close()
        self._write_state("clean")


def check_format(directory: Path) -> None:
    """
    Raises:
        NewerFormat: a newer version wrote the index there.
    """
    words = _read_state(directory)
    if words and words[0].isdigit() and int(words[0]) > SCHEMA:
        raise NewerFormat(f"{directory} has schema {words[0]}, this version reads up to {SCHEMA}: upgrade first")


def _read_state(directory: Path) -> list[str]:
    try:
        return (directory / _STATE).read_text().split()
    except (FileNotFoundError, UnicodeDecodeError):
        return []


def _distrust(directory: Path, boot_id: str) -> str:
    """Why the index there cannot be used, or ""."""
    words = _read_state(directory)
    if len(words) != 2 or words[0] != str(SCHEMA):
        return "its state file is missing or damaged"
    if words[1] not in ("clean", boot_id):
        return "the machine went down while it was in use"
    return _damaged_pages(directory / "data.mdb")


def _damaged_pages(file: Path) -> str:
    """LMDB maps its file and believes what the pages say: a file that is shorter than its own meta page promises
    would end the process with SIGBUS."""
    try:
        with file.open("rb") as stream:
            head = stream.read(2 * PAGE)
            size = os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        return "its file is missing"
    if len(head) < 2 * PAGE:
        return "its file is cut"
    for start in (0, PAGE):
        magic, _, page_size = struct.unpack_from("<II16xI", head, start + 16)
        (last_page,) = struct.unpack_from("<Q", head, start + 136)
        if magic != 0xBEEFC0DE or page_size != PAGE:
            return "its head is damaged"
        if (last_page + 1) * PAGE > size and last_page > 1:
            return "its file is cut"
    return ""
