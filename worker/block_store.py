"""The blocks of this worker: the one place that knows where a block is and what state it is in.

States: working (a file in ``working/``) -> committed (a file in ``blocks/`` and a record in the index) -> gone. The
rename is the step that commits: a crash before it leaves a working block, a crash after it a block whose record is
made anew at the next start. A committed file never changes; one that does not match its record is moved aside and
never served again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

import msgspec

from ..common import checksums
from ..common.errors import (
    BlockCorrupt,
    BlockMissing,
    Busy,
    Exists,
    FileTooBig,
    InvalidArgument,
    NoSpace,
    NotFound,
)
from ..common.telemetry import get_logger
from ..common.types import FILE_MAX_BYTES, BlockKey, Buffer
from .copying import copy_file, verify_file
from .disk import Disk, Space, real_bytes
from .index import BlockRecord
from .key_locks import KeyLocks
from .leases import HeldBlock
from .reports import Changes, Report

log = get_logger("worker.blocks")


@dataclass(frozen=True)
class WorkingFile:
    """An open working block. Whoever has it closes ``fd``.

    Attributes:
        limit_bytes: it may grow to here now.
    """

    fd: int
    length_bytes: int
    limit_bytes: int


class BlockStore:
    """Thread-safe. One operation at a time on one block."""

    def __init__(self, disks: Sequence[Disk], changes: Changes, boot_id: str) -> None:
        self.disks = list(disks)
        self._changes = changes
        self._boot_id = boot_id
        self._locks = KeyLocks()
        self._guard = threading.Lock()
        self._working: dict[BlockKey, Disk] = {}
        self._filling: set[BlockKey] = set()
        self.bad_blocks = 0
        for disk in self.disks:
            for key, status in disk.sweep_parts():
                self._working[key] = disk
                disk.count_loose(key, real_bytes(status))

    # ------------------------------------------------------------ finding

    def _find(self, key: BlockKey) -> tuple[Disk, BlockRecord] | None:
        for disk in self.disks:
            record = disk.index.get(key)
            if record is not None:
                return disk, record
        return None

    def _choose_disk(self, wanted_bytes: int = 1) -> Disk:
        """The disk with the most room.

        Raises:
            NoSpace: none has ``wanted_bytes``.
        """
        roomiest = self._roomiest()
        if roomiest[1] < wanted_bytes:
            for disk in self.disks:
                disk.drop_bad_files()
            roomiest = self._roomiest()
        if roomiest[1] < wanted_bytes:
            raise NoSpace(f"no disk of this worker has {wanted_bytes} bytes left: the most is {max(0, roomiest[1])}")
        return roomiest[0]

    def _roomiest(self) -> tuple[Disk, int]:
        return max(((disk, self.space_of(disk).available_bytes) for disk in self.disks), key=lambda pair: pair[1])

    @staticmethod
    def space_of(disk: Disk) -> Space:
        """Of a disk that does not answer: nothing."""
        try:
            return disk.space()
        except OSError:
            return Space(0, 0, 0)

    # ------------------------------------------------------------ reading

    def open_read(self, key: BlockKey) -> HeldBlock:
        """Opens a committed block for reading. A file that changed since its bytes were known to be right is read and
        checked first.

        Raises:
            NotFound: no such block here.
            BlockMissing, BlockCorrupt: it was here; it has been moved aside and the master will be told.
        """
        with self._locks.holding(key):
            found = self._find(key)
            if found is None:
                found = self._index_unknown(key)
            disk, record = found
            try:
                fd = disk.open_block(key)
            except FileNotFoundError:
                self._lose(disk, key, record, "its file is gone")
                raise BlockMissing(f"block {key}: its file on {disk.path} is gone") from None
            try:
                record = self._checked(disk, key, fd, record)
            except BaseException as error:
                os.close(fd)
                if isinstance(error, BlockCorrupt):
                    self._lose(disk, key, record, str(error))
                raise
            return HeldBlock(fd, record)

    def _checked(self, disk: Disk, key: BlockKey, fd: int, record: BlockRecord) -> BlockRecord:
        status = disk.calls.fstat("check-block", fd)
        if status.st_size != record.length_bytes:
            raise BlockCorrupt(f"block {key}: its file has {status.st_size} bytes, not {record.length_bytes}")
        survived = record.synced or record.boot_id == self._boot_id
        if survived and (status.st_ino, status.st_ctime_ns) == (record.inode, record.ctime_ns):
            return record
        with disk.noting_failure():
            verify_file(disk.calls, fd, record.length_bytes, record.checksums, f"block {key}")
        # Taken before the bytes were read: a change during the check shows at the next open.
        record = self._record(status, record.checksums, record.synced)
        disk.index.put(key, record)
        return record

    def _remember(self, disk: Disk, key: BlockKey, record: BlockRecord) -> None:
        """Enters a new committed file. Without space for the record it stays a loose file, looked at when opened."""
        if disk.index.put(key, record):
            disk.count_loose(key, None)
            disk.count_block(record.disk_bytes, 1)
        else:
            disk.count_loose(key, record.disk_bytes)
        self._changes.note(key, Report(key, record.length_bytes, record.digest))

    def _record(self, status: os.stat_result, packed: bytes, synced: bool) -> BlockRecord:
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

    def _index_unknown(self, key: BlockKey) -> tuple[Disk, BlockRecord]:
        """A block file without a record (the index was lost): makes the record from the bytes.

        Raises:
            NotFound: there is no such file.
        """
        for disk in self.disks:
            try:
                fd = disk.open_block(key)
            except FileNotFoundError:
                continue
            try:
                with disk.noting_failure():
                    status = disk.calls.fstat("check-block", fd)
                    packed = checksums.of_file(fd, status.st_size)
            finally:
                os.close(fd)
            record = self._record(status, packed, synced=False)
            self._remember(disk, key, record)
            return disk, record
        raise NotFound(f"block {key} is not on this worker")

    def mark_bad(self, key: BlockKey, reason: str) -> None:
        """A reader found that the block's bytes are not right."""
        with self._locks.holding(key):
            found = self._find(key)
            if found is not None:
                disk, record = found
                self._lose(disk, key, record, reason)

    def _lose(self, disk: Disk, key: BlockKey, record: BlockRecord, reason: str) -> None:
        log.error("block-bad", block=str(key), disk=str(disk.path), reason=reason)
        self.bad_blocks += 1
        try:
            disk.move_aside(key)
        except OSError as error:
            log.error("move-aside-failed", block=str(key), error=str(error))
        self._forget(disk, key, record)

    def _forget(self, disk: Disk, key: BlockKey, record: BlockRecord) -> None:
        if disk.index.drop(key):
            disk.count_block(-record.disk_bytes, -1)
        self._changes.note(key, None)

    # ------------------------------------------------------------ writing

    def create(self, key: BlockKey) -> WorkingFile:
        """Makes an empty working block, or finds the one that is there.

        Raises:
            Exists: it is committed already.
            NoSpace: no disk takes new blocks.
        """
        with self._locks.holding(key):
            disk, fd = self._open_or_make(key)
            return self._working_file(disk, key, fd)

    def _open_or_make(self, key: BlockKey) -> tuple[Disk, int]:
        disk = self._working.get(key)
        if disk is not None:
            try:
                return disk, disk.open_working(key)
            except FileNotFoundError:
                self._drop_working(disk, key)
                raise BlockMissing(f"working block {key}: its file was deleted by somebody else") from None
        if self._find(key) is not None:
            raise Exists(f"block {key} is committed: its bytes do not change any more")
        if key in self._filling:
            raise Busy(f"block {key} is being fetched")
        disk = self._choose_disk()
        fd = disk.open_working(key, create=True)
        self._add_working(disk, key, os.fstat(fd))
        return disk, fd

    def _add_working(self, disk: Disk, key: BlockKey, status: os.stat_result) -> None:
        with self._guard:
            self._working[key] = disk
        disk.count_loose(key, real_bytes(status))

    def _drop_working(self, disk: Disk, key: BlockKey) -> None:
        with self._guard:
            self._working.pop(key, None)
        disk.count_loose(key, None)

    def _working_file(self, disk: Disk, key: BlockKey, fd: int) -> WorkingFile:
        try:
            status = disk.calls.fstat("stat-working", fd)
            disk.count_loose(key, real_bytes(status))
            return WorkingFile(fd, status.st_size, status.st_size + max(0, disk.space().available_bytes))
        except BaseException:
            os.close(fd)
            raise

    def create_copy(self, key: BlockKey, source: BlockKey, copy_bytes: int) -> WorkingFile:
        """Makes a working block with the first ``copy_bytes`` (0: all) of a committed one. A block of that key that
        exists already is returned as it is.

        The source is read and checked first: whoever writes into the copy computes new checksums from what it finds.

        Raises:
            NotFound, BlockMissing, BlockCorrupt, NoSpace, InvalidArgument.
        """
        if key == source:
            raise InvalidArgument(f"block {key} cannot be a copy of itself")
        with self._locks.holding(key):
            if key in self._working:
                disk, fd = self._open_or_make(key)
                return self._working_file(disk, key, fd)
            if self._find(key) is not None:
                raise Exists(f"block {key} is committed: its bytes do not change any more")
            if key in self._filling:
                raise Busy(f"block {key} is being fetched")
            held = self.open_read(source)
            try:
                disk, fd = self._copy(key, source, held, copy_bytes)
            finally:
                os.close(held.fd)
            return self._working_file(disk, key, fd)

    def _copy(self, key: BlockKey, source: BlockKey, held: HeldBlock, copy_bytes: int) -> tuple[Disk, int]:
        length = held.record.length_bytes
        wanted = copy_bytes or length
        if wanted > length:
            raise InvalidArgument(f"block {source} has {length} bytes, not the {copy_bytes} to copy")
        found = self._find(source)
        home = found[0] if found else self.disks[0]
        disk = home if self.space_of(home).available_bytes >= wanted else self._choose_disk(wanted)
        try:
            with home.noting_failure():
                verify_file(home.calls, held.fd, length, held.record.checksums, f"block {source}")
        except BlockCorrupt as error:
            self.mark_bad(source, str(error))
            raise
        fd = disk.open_working(key, part=True)
        try:
            with disk.noting_failure():
                copy_file(disk.calls, held.fd, fd, wanted, length)
                disk.part_to_working(key)
        except BaseException as error:
            os.close(fd)
            disk.remove_working(key, part=True)
            raise _no_space(error, key) from error
        self._add_working(disk, key, os.fstat(fd))
        return disk, fd

    def write(self, key: BlockKey, offset: int, pieces: Iterable[Buffer], size: int) -> int:
        """Writes ``size`` bytes, which come in ``pieces``, into a working block (made when it does not exist), and
        returns the block's length. If it raises, the range holds nothing of value.

        Raises:
            NoSpace, Exists (committed already), FileTooBig, InvalidArgument (other than ``size`` bytes came).
        """
        if offset + size > FILE_MAX_BYTES:
            raise FileTooBig(f"block {key}: {offset + size} bytes are more than the limit of {FILE_MAX_BYTES}")
        with self._locks.holding(key):
            disk, fd = self._open_or_make(key)
        try:
            done = 0
            for piece in pieces:
                if done + len(piece) > size:
                    raise InvalidArgument(f"block {key}: more than the {size} bytes announced came")
                if disk.space().available_bytes < len(piece):
                    raise NoSpace(f"disk {disk.path} has no room for {len(piece)} more bytes of block {key}")
                with disk.noting_failure():
                    disk.calls.pwrite("write", fd, piece, offset + done)
                done += len(piece)
                disk.count_loose(key, real_bytes(os.fstat(fd)))
            if done != size:
                raise InvalidArgument(f"block {key}: {done} of the {size} bytes announced came")
            return os.fstat(fd).st_size
        except BaseException as error:
            if self._working.get(key) is disk:
                disk.count_loose(key, real_bytes(os.fstat(fd)))
            raise _no_space(error, key) from error
        finally:
            os.close(fd)

    # ------------------------------------------------------------ committing

    def commit(self, key: BlockKey, length_bytes: int, packed: bytes, *, sync: bool) -> BlockRecord:
        """Makes a working block final. The same commit again succeeds again.

        Args:
            packed: the checksums as computed by the writer; empty: computed here, by reading the file.

        Raises:
            NotFound, InvalidArgument (length or list does not fit), Exists (committed with other bytes), NoSpace.
        """
        if packed and len(packed) != 8 * checksums.chunk_count(length_bytes):
            raise InvalidArgument(f"block {key}: {len(packed)} bytes of checksums do not fit {length_bytes} bytes")
        with self._locks.holding(key):
            found = self._find(key)
            if found is not None:
                return self._commit_again(*found, key, length_bytes, packed, sync)
            disk = self._working.get(key)
            if disk is None:
                return self._commit_after_crash(key, length_bytes, packed, sync)
            try:
                fd = disk.open_working(key)
            except FileNotFoundError:
                self._drop_working(disk, key)
                raise NotFound(f"working block {key} is not on this worker any more") from None
            try:
                return self._commit_file(disk, key, fd, length_bytes, packed, sync=sync)
            finally:
                os.close(fd)

    def _commit_after_crash(self, key: BlockKey, length_bytes: int, packed: bytes, sync: bool) -> BlockRecord:
        """The rename may have happened and the record be lost: then the file says what was committed."""
        disk, record = self._index_unknown(key)
        return self._commit_again(disk, record, key, length_bytes, packed, sync)

    def _commit_again(
        self, disk: Disk, record: BlockRecord, key: BlockKey, length_bytes: int, packed: bytes, sync: bool
    ) -> BlockRecord:
        if record.length_bytes != length_bytes or (packed and record.checksums != packed):
            raise Exists(f"block {key} is committed with {record.length_bytes} other bytes")
        try:
            fd = disk.open_block(key)
        except FileNotFoundError:
            self._lose(disk, key, record, "its file is gone")
            raise BlockMissing(f"block {key}: its file on {disk.path} is gone") from None
        try:
            if sync and not record.synced:
                disk.sync_block(key, fd)
                record = msgspec.structs.replace(record, synced=True)
                disk.index.put(key, record)
        finally:
            os.close(fd)
        return record

    def _commit_file(
        self, disk: Disk, key: BlockKey, fd: int, length_bytes: int, packed: bytes, *, sync: bool, part: bool = False
    ) -> BlockRecord:
        status = disk.calls.fstat("stat-working", fd)
        if status.st_size != length_bytes:
            raise InvalidArgument(f"block {key}: its file has {status.st_size} bytes, the commit says {length_bytes}")
        disk.count_loose(key, real_bytes(status))
        space = disk.space()
        if space.available_bytes < 0:
            raise NoSpace(f"disk {disk.path} is {-space.available_bytes} bytes beyond its limit: block {key} must go")
        with disk.noting_failure():
            packed = packed or checksums.of_file(fd, length_bytes)
        try:
            disk.publish(key, fd, sync=sync, part=part)
        except OSError as error:
            raise _no_space(error, key) from error
        # The rename changed ctime, so the record takes it from now.
        record = self._record(os.fstat(fd), packed, sync)
        self._drop_working(disk, key)
        self._remember(disk, key, record)
        return record

    def fill(
        self, key: BlockKey, length_bytes: int, write_all: Callable[[Callable[[Buffer, int], None]], bytes]
    ) -> BlockRecord:
        """Makes a committed block of bytes that ``write_all(pwrite)`` writes and whose checksums it returns. Whatever
        goes wrong, nothing of it stays. A block that is here already is returned instead.

        Raises:
            NoSpace, and whatever ``write_all`` raises.
        """
        with self._locks.holding(key):
            found = self._find(key)
            if found is not None:
                return found[1]
            if key in self._working or key in self._filling:
                raise Busy(f"block {key} is being written here")
            disk = self._choose_disk(length_bytes)
            fd = disk.open_working(key, part=True)
            self._filling.add(key)
        try:

            def pwrite(data: Buffer, offset: int) -> None:
                with disk.noting_failure():
                    disk.calls.pwrite("fill", fd, data, offset)

            packed = write_all(pwrite)
            with self._locks.holding(key):
                return self._commit_file(disk, key, fd, length_bytes, packed, sync=False, part=True)
        except BaseException as error:
            disk.remove_working(key, part=True)
            raise _no_space(error, key) from error
        finally:
            self._filling.discard(key)
            os.close(fd)

    # ------------------------------------------------------------ removing

    def discard(self, key: BlockKey) -> None:
        """Drops a working block; one that is not there is fine.

        Raises:
            Exists: it is committed, so the master decides.
        """
        with self._locks.holding(key):
            disk = self._working.get(key)
            if disk is not None:
                disk.remove_working(key)
                self._drop_working(disk, key)
            elif self._find(key) is not None:
                raise Exists(f"block {key} is committed: only the master orders its deletion")

    def delete(self, key: BlockKey) -> None:
        """Deletes a block in whatever state, as ordered. Its bytes stay readable for whoever has it open."""
        with self._locks.holding(key):
            disk = self._working.get(key)
            if disk is not None:
                disk.remove_working(key)
                self._drop_working(disk, key)
            for disk in self.disks:
                # The file first: a record without file is dropped at the next start, a file without record would
                # come back as a block.
                disk.remove_block(key)
                record = disk.index.get(key)
                if record is not None:
                    self._forget(disk, key, record)
            self._changes.note(key, None)

    # ------------------------------------------------------------ overview

    def reports(self) -> Iterator[Report]:
        """Every block, in ascending order of key."""
        with self._guard:
            working = sorted(self._working)
        committed = [
            (Report(key, record.length_bytes, record.digest) for key, record in disk.index.records() if record)
            for disk in self.disks
        ]
        return merge(*committed, (Report(key, 0, 0, working=True) for key in working))

    def refresh_working(self) -> None:
        """Clients write through descriptors of their own: looks how much their files take now."""
        with self._guard:
            working = list(self._working.items())
        for key, disk in working:
            try:
                fd = disk.open_working(key)
            except OSError:
                continue
            try:
                if self._working.get(key) is disk:
                    disk.count_loose(key, real_bytes(os.fstat(fd)))
            finally:
                os.close(fd)

    @property
    def blocks(self) -> int:
        return sum(disk.blocks for disk in self.disks)

    @property
    def working_blocks(self) -> int:
        return len(self._working)

    def close(self) -> None:
        for disk in self.disks:
            disk.close()


def _no_space(error: BaseException, key: BlockKey) -> BaseException:
    """The same error, but a full disk's in the family's words."""
    if type(error) is OSError and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"block {key}: the disk is full")
    return error
