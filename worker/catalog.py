"""The committed blocks on all disks: where each is, and whether its file is still what its record says.

Not locked by itself: ``BlockStore`` calls it with the block's lock held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from heapq import merge

from ..common import checksums
from ..common.errors import BlockCorrupt, BlockMissing, HearthError, NoSpace, NotFound
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from .copying import verify_file
from .disk import Disk, OpenBlock, Space, real_bytes
from .index import BlockRecord
from .reports import Changes, Report

log = get_logger("hearthfs.worker.blocks")


class Catalog:
    """
    Attributes:
        bad_blocks: found missing or damaged since the start.
        on_lost: called with each block that is not to be served any more.
    """

    def __init__(self, disks: Sequence[Disk], changes: Changes, boot_id: str) -> None:
        self.disks = list(disks)
        self.bad_blocks = 0
        self.on_lost: Callable[[BlockKey], None] = lambda _: None
        self._changes = changes
        self._boot_id = boot_id

    def find(self, key: BlockKey) -> tuple[Disk, BlockRecord] | None:
        for disk in self.disks:
            record = disk.index.get(key)
            if record is not None:
                return disk, record
        return None

    def open(self, key: BlockKey) -> OpenBlock:
        """Opens a block for reading. A file that changed since its bytes were known to be right is read and checked
        first; so is one that was not fsynced before the machine went down.

        Raises:
            NotFound: no such block here.
            BlockMissing, BlockCorrupt: it was here; it has been moved aside and the master will be told.
            Unavailable: the disk failed.
        """
        disk, record = self.find(key) or self.index_file(key)
        try:
            fd = disk.open_block(key)
        except FileNotFoundError:
            self.lose(disk, key, record, "its file is gone")
            raise BlockMissing(f"block {key}: its file on {disk.path} is gone") from None
        try:
            return OpenBlock(disk, fd, self._checked(disk, key, fd, record))
        except BaseException as error:
            os.close(fd)
            if isinstance(error, BlockCorrupt):
                self.lose(disk, key, record, str(error))
            raise

    def _checked(self, disk: Disk, key: BlockKey, fd: int, record: BlockRecord) -> BlockRecord:
        with disk.guard():
            status = disk.calls.fstat("check-block", fd)
        if status.st_size != record.length_bytes:
            raise BlockCorrupt(f"block {key}: its file has {status.st_size} bytes, not {record.length_bytes}")
        survived = record.synced or record.boot_id == self._boot_id
        if survived and (status.st_ino, status.st_ctime_ns) == (record.inode, record.ctime_ns):
            return record
        with disk.guard():
            verify_file(disk.calls, fd, record.length_bytes, record.checksums, f"block {key}")
        # `status` is older than the check: a change during it shows at the next open.
        return self.replace_file(disk, key, record, status)

    def index_file(self, key: BlockKey) -> tuple[Disk, BlockRecord]:
        """A file without a record (the index was lost, or a crash came between): makes the record from the bytes.

        Raises:
            NotFound: there is no such file.
        """
        for disk in self.disks:
            try:
                fd = disk.open_block(key)
            except FileNotFoundError:
                continue
            try:
                with disk.guard():
                    status = disk.calls.fstat("check-block", fd)
                    packed = checksums.of_file(fd, status.st_size)
            finally:
                os.close(fd)
            record = self.make_record(status, packed, synced=False)
            self.remember(disk, key, record)
            return disk, record
        raise NotFound(f"block {key} is not on this worker")

    def make_record(self, status: os.stat_result, packed: bytes, synced: bool) -> BlockRecord:
        return BlockRecord(
            length_bytes=status.st_size,
            checksums=packed,
            digest=checksums.digest(packed, status.st_size),
            inode=status.st_ino,
            ctime_ns=status.st_ctime_ns,
            disk_bytes=real_bytes(status),
            synced=synced,
            boot_id=self._boot_id,
        )

    def remember(self, disk: Disk, key: BlockKey, record: BlockRecord) -> None:
        """Enters a new committed file. Without space for the record it stays a loose file, looked at when opened."""
        if disk.index.put(key, record):
            disk.count_loose(key, None)
            disk.count_block(record.disk_bytes, 1)
        else:
            disk.count_loose(key, record.disk_bytes)
        self._changes.note(key, Report(key, record.length_bytes, record.digest))

    def replace_file(self, disk: Disk, key: BlockKey, record: BlockRecord, status: os.stat_result) -> BlockRecord:
        """The same bytes are in a file of this status now, and known to be right."""
        fresh = self.make_record(status, record.checksums, record.synced)
        if disk.index.put(key, fresh):
            disk.count_block(fresh.disk_bytes - record.disk_bytes, 0)
        return fresh

    def lose(self, disk: Disk, key: BlockKey, record: BlockRecord, reason: str) -> None:
        """The block is not what it should be: never serve it again, and tell the master."""
        log.error("block-bad", block=str(key), disk=str(disk.path), reason=reason)
        self.bad_blocks += 1
        try:
            disk.move_aside(key)
        except HearthError as error:
            log.error("move-aside-failed", block=str(key), error=str(error))
        self._forget(disk, key, record)
        self.on_lost(key)

    def tell(self, key: BlockKey) -> None:
        """The master is to hear again whether the block is here."""
        found = self.find(key)
        self._changes.note(key, Report(key, found[1].length_bytes, found[1].digest) if found is not None else None)

    def delete(self, key: BlockKey) -> None:
        """Its bytes stay readable for whoever has it open."""
        for disk in self.disks:
            # The file first: a record without file is dropped at the next start, a file without record would come
            # back as a block.
            disk.remove_block(key)
            disk.count_loose(key, None)
            record = disk.index.get(key)
            if record is not None:
                self._forget(disk, key, record)
        self._changes.note(key, None)

    def _forget(self, disk: Disk, key: BlockKey, record: BlockRecord) -> None:
        if disk.index.drop(key):
            disk.count_block(-record.disk_bytes, -1)
        self._changes.note(key, None)

    def reports(self) -> Iterator[Report]:
        """Every committed block, in ascending order of key."""
        return merge(
            *(
                (Report(key, record.length_bytes, record.digest) for key, record in disk.index.records() if record)
                for disk in self.disks
            )
        )

    @property
    def blocks(self) -> int:
        return sum(disk.blocks for disk in self.disks)

    # ------------------------------------------------------------ room

    def choose_disk(self, wanted_bytes: int = 1, prefer: Disk | None = None) -> Disk:
        """The preferred disk if it has room, else the one with the most of it for each of its writers (what they will
        write is not known, and nothing is reserved for them).

        Raises:
            NoSpace: none has ``wanted_bytes``.
        """
        if prefer is not None and self.space_of(prefer).available_bytes >= wanted_bytes:
            return prefer
        rooms = self._rooms()
        if max(rooms.values()) < wanted_bytes:
            for full in self.disks:
                full.drop_bad_files()
            rooms = self._rooms()
        fitting = {disk: room for disk, room in rooms.items() if room >= wanted_bytes}
        if not fitting:
            most = max(0, *rooms.values())
            raise NoSpace(f"no disk of this worker has {wanted_bytes} bytes left: the most is {most}")
        return max(fitting, key=lambda disk: fitting[disk] / (1 + disk.loose_files))

    def _rooms(self) -> dict[Disk, int]:
        return {disk: self.space_of(disk).available_bytes for disk in self.disks}

    @staticmethod
    def space_of(disk: Disk) -> Space:
        """Of a disk that does not answer: nothing."""
        try:
            return disk.space()
        except HearthError:
            return Space(0, 0, 0)
