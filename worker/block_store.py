"""The blocks of this worker, and the steps that lead one from state to state.

States: working (a file in ``working/``) -> committed (a file in ``blocks/``, known to ``Catalog``) -> gone. The rename
is the step that commits: a crash before it leaves a working block, a crash after it a block whose record is made anew.
A committed file never changes; one that does not match its record is moved aside and never served again.
"""

from __future__ import annotations

import os
import threading
import time
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
    Stale,
)
from ..common.types import FILE_MAX_BYTES, BlockKey, Buffer
from .catalog import Catalog
from .copying import copy_file, verify_file
from .disk import Disk, OpenBlock, real_bytes
from .index import BlockRecord
from .key_locks import KeyLocks
from .reports import Changes, Report
from .verifying import verify_on_disk

Pwrite = Callable[[Buffer, int], None]

WRITER_TRIES = 25
WRITER_PAUSE_S = 0.002
"""A mount that holds a block's file lets it go when the program that wrote it has closed it, which is a matter of
milliseconds. After so long the block gets a file of its own."""


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
    """Thread-safe. One operation at a time on one block; no operation holds the locks of two."""

    def __init__(
        self, disks: Sequence[Disk], changes: Changes, boot_id: str, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.catalog = Catalog(disks, changes, boot_id)
        self._sleep = sleep
        self.disks = self.catalog.disks
        self._locks = KeyLocks()
        self._guard = threading.Lock()
        self._working: dict[BlockKey, Disk] = {}
        self._filling: set[BlockKey] = set()
        self._verified: dict[BlockKey, int] = {}  # being verified, and by which descriptor
        for disk in self.disks:
            for key, status in disk.sweep_parts():
                self._working[key] = disk
                disk.count_loose(key, real_bytes(status))

    # ------------------------------------------------------------ reading

    def open_read(self, key: BlockKey) -> OpenBlock:
        """As ``Catalog.open``. A block whose file a mount holds, because programs there may still write into it, is
        waited for; after that it gets a copy of the file as it was committed.

        Raises:
            Stale: the mount's programs wrote on; what they wrote will be another version.
        """
        for attempt in range(1, WRITER_TRIES + 1):
            with self._locks.holding(key):
                try:
                    return self.catalog.open(key)
                except Stale:
                    if attempt == WRITER_TRIES:
                        self._leave_to_writer(key)
                        return self.catalog.open(key)
            self._sleep(WRITER_PAUSE_S)
        raise AssertionError("unreachable")

    def _leave_to_writer(self, key: BlockKey) -> None:
        """With the lock: the file stays the writer's, and a copy with the committed bytes takes its place."""
        found = self.catalog.find(key)
        if found is None:
            raise NotFound(f"block {key} is not on this worker")
        disk, record = found
        source = disk.open_held_block(key)
        try:
            fd = disk.open_working(key, part=True)
            try:
                with disk.guard():
                    copy_file(disk.calls, source, fd, record.length_bytes, os.fstat(source).st_size)
                    verify_file(disk.calls, fd, record.length_bytes, record.checksums, f"block {key}")
                disk.publish(key, fd, sync=record.synced, part=True)
                self.catalog.replace_file(disk, key, record, os.fstat(fd))
            except BlockCorrupt:
                disk.remove_working(key, part=True)
                raise Stale(f"block {key}: a mount writes into its file; a newer version follows") from None
            except BaseException:
                disk.remove_working(key, part=True)
                raise
            finally:
                os.close(fd)
        finally:
            os.close(source)

    def mark_bad(self, key: BlockKey, reason: str) -> None:
        """A reader found that the block's bytes are not right."""
        with self._locks.holding(key):
            found = self.catalog.find(key)
            if found is not None:
                disk, record = found
                self.catalog.lose(disk, key, record, reason)

    def verify(self, key: BlockKey, pace: Callable[[int], None]) -> bool:
        """Reads all of a committed block from its disk; False: it was bad, has been moved aside, and the master will be
        told. Others may use the block meanwhile.

        Args:
            pace: see ``verify_on_disk``; what it raises passes.

        Raises:
            NotFound: it is not here.
            Unavailable: the disk failed.
        """
        try:
            opened = self.open_read(key)
        except (BlockMissing, BlockCorrupt):
            return False
        record = opened.record
        self._verified[key] = opened.fd
        try:
            with opened.disk.guard():
                verify_on_disk(
                    opened.disk.calls, opened.fd, record.length_bytes, record.checksums, f"block {key}", pace
                )
            return True
        except BlockCorrupt as error:
            with self._locks.holding(key):
                found = self.catalog.find(key)
                if found is not None and found[1].inode == record.inode:  # else it was deleted and brought here anew
                    self.catalog.lose(found[0], key, found[1], str(error))
            return False
        finally:
            with self._locks.holding(key):
                self._verified.pop(key, None)
                opened.close()

    def tell(self, key: BlockKey) -> None:
        """The master is to hear again whether the block is here."""
        with self._locks.holding(key):
            self.catalog.tell(key)

    def in_use(self, keys: Iterable[BlockKey]) -> list[BlockKey]:
        """Those that somebody has open: on this node by descriptor, elsewhere by a lease. (Whoever verifies one at its
        leisure does not count.)"""
        used = []
        for key in keys:
            with self._locks.holding(key):
                found = self.catalog.find(key)
                if found is not None and found[0].is_held(key, but_by=self._verified.get(key)):
                    used.append(key)
        return used

    @property
    def available_bytes(self) -> int:
        """What writers can still get, on all disks together."""
        return sum(max(0, self.catalog.space_of(disk).available_bytes) for disk in self.disks)

    # ------------------------------------------------------------ writing

    def create(self, key: BlockKey) -> WorkingFile:
        """Makes an empty working block, or finds the one that is there.

        Raises:
            Exists: it is committed already.
            NoSpace: no disk takes new blocks.
            Busy, BlockMissing (somebody deleted its file), Unavailable.
        """
        with self._locks.holding(key):
            disk, fd = self._open_or_make(key)
            return self._working_file(disk, key, fd)

    def _open_or_make(self, key: BlockKey) -> tuple[Disk, int]:
        known = self._working.get(key)
        if known is not None:
            return known, self._open_known(known, key)
        self._check_new(key)
        disk = self.catalog.choose_disk()
        fd = disk.open_working(key, create=True)
        self._add_working(disk, key, fd)
        return disk, fd

    def _open_known(self, disk: Disk, key: BlockKey) -> int:
        try:
            return disk.open_working(key)
        except FileNotFoundError:
            self._drop_working(disk, key)
            raise BlockMissing(f"working block {key}: its file was deleted by somebody else") from None

    def _check_new(self, key: BlockKey) -> None:
        if self.catalog.find(key) is not None:
            raise Exists(f"block {key} is committed: its bytes do not change any more")
        if key in self._filling:
            raise Busy(f"block {key} is being fetched")

    def _add_working(self, disk: Disk, key: BlockKey, fd: int) -> None:
        with self._guard:
            self._working[key] = disk
        disk.count_loose(key, real_bytes(os.fstat(fd)))

    def _drop_working(self, disk: Disk, key: BlockKey) -> None:
        with self._guard:
            self._working.pop(key, None)
        disk.count_loose(key, None)

    @staticmethod
    def _working_file(disk: Disk, key: BlockKey, fd: int) -> WorkingFile:
        try:
            with disk.guard():
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
            NotFound, BlockMissing, BlockCorrupt, NoSpace, InvalidArgument, Exists, Busy, Unavailable.
        """
        if key in self._working:
            return self.create(key)
        opened = self.open_read(source)
        try:
            length = opened.record.length_bytes
            wanted = copy_bytes or length
            if wanted > length:
                raise InvalidArgument(f"block {source} has {length} bytes, not the {copy_bytes} to copy")
            with opened.disk.guard():
                verify_file(opened.disk.calls, opened.fd, length, opened.record.checksums, f"block {source}")
            with self._locks.holding(key):
                disk, fd = self._copy(key, opened, wanted)
                return self._working_file(disk, key, fd)
        except BlockCorrupt as error:
            self.mark_bad(source, str(error))
            raise
        finally:
            opened.close()

    def _copy(self, key: BlockKey, opened: OpenBlock, wanted: int) -> tuple[Disk, int]:
        if key in self._working:
            return self._open_or_make(key)
        self._check_new(key)
        disk = self.catalog.choose_disk(wanted, prefer=opened.disk)
        fd = disk.open_working(key, part=True)
        try:
            with disk.guard():
                copy_file(disk.calls, opened.fd, fd, wanted, opened.record.length_bytes)
            disk.part_to_working(key)
        except BaseException:
            os.close(fd)
            disk.remove_working(key, part=True)
            raise
        self._add_working(disk, key, fd)
        return disk, fd

    def write(self, key: BlockKey, offset: int, pieces: Iterable[Buffer], size: int) -> int:
        """Writes ``size`` bytes, which come in ``pieces``, into a working block (made when it does not exist), and
        returns the block's length. If it raises, the range holds nothing of value.

        Raises:
            NoSpace, Exists (committed already), FileTooBig, InvalidArgument (other than ``size`` bytes came), Busy,
            BlockMissing, Unavailable.
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
                with self._locks.holding(key):
                    # A stream that its client gave up may outlive the commit: it must not touch what is committed.
                    if self._working.get(key) is not disk:
                        raise Exists(f"block {key} was committed or discarded meanwhile")
                    self._write_piece(disk, key, fd, piece, offset + done)
                done += len(piece)
            if done != size:
                raise InvalidArgument(f"block {key}: {done} of the {size} bytes announced came")
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    @staticmethod
    def _write_piece(disk: Disk, key: BlockKey, fd: int, piece: Buffer, offset: int) -> None:
        if disk.space().available_bytes < len(piece):
            raise NoSpace(f"disk {disk.path} has no room for {len(piece)} more bytes of block {key}")
        try:
            with disk.guard():
                disk.calls.pwrite("write", fd, piece, offset)
        finally:
            disk.count_loose(key, real_bytes(os.fstat(fd)))

    # ------------------------------------------------------------ committing

    def commit(self, key: BlockKey, length_bytes: int, packed: bytes, *, sync: bool) -> BlockRecord:
        """Makes a working block final. The same commit again succeeds again.

        Args:
            packed: the checksums as computed by the writer; empty: computed here, by reading the file.

        Raises:
            NotFound, InvalidArgument (length or list does not fit), Exists (committed with other bytes), NoSpace,
            BlockMissing, Unavailable.
        """
        if packed and len(packed) != 8 * checksums.chunk_count(length_bytes):
            raise InvalidArgument(f"block {key}: {len(packed)} bytes of checksums do not fit {length_bytes} bytes")
        with self._locks.holding(key):
            disk = self._working.get(key)
            # A file without record: the rename happened, then the crash. The file says what was committed.
            if disk is None or self.catalog.find(key) is not None:
                return self._commit_again(key, length_bytes, packed, sync=sync)
            fd = self._open_known(disk, key)
            try:
                return self._commit_file(disk, key, fd, length_bytes, packed, sync=sync)
            finally:
                os.close(fd)

    def _commit_again(self, key: BlockKey, length_bytes: int, packed: bytes, *, sync: bool) -> BlockRecord:
        opened = self._open_committed(key)
        try:
            record = opened.record
            if record.length_bytes != length_bytes or (packed and record.checksums != packed):
                raise Exists(f"block {key} is committed with other bytes, {record.length_bytes} of them")
            if sync and not record.synced:
                opened.disk.sync_block(key, opened.fd)
                record = msgspec.structs.replace(record, synced=True)
                opened.disk.index.put(key, record)
            return record
        finally:
            opened.close()

    def _open_committed(self, key: BlockKey) -> OpenBlock:
        try:
            return self.catalog.open(key)
        except Stale:  # the mount that wrote it holds the file still
            found = self.catalog.find(key)
            if found is None:
                raise
            disk, record = found
            return OpenBlock(disk, disk.open_held_block(key), record)

    def _commit_file(
        self, disk: Disk, key: BlockKey, fd: int, length_bytes: int, packed: bytes, *, sync: bool, part: bool = False
    ) -> BlockRecord:
        with disk.guard():
            status = disk.calls.fstat("stat-working", fd)
        if status.st_size != length_bytes:
            raise InvalidArgument(f"block {key}: its file has {status.st_size} bytes, the commit says {length_bytes}")
        disk.count_loose(key, real_bytes(status))
        beyond = -disk.space().available_bytes
        if beyond > 0:
            raise NoSpace(f"disk {disk.path} is {beyond} bytes beyond its limit: block {key} cannot stay")
        with disk.guard():
            packed = packed or checksums.of_file(fd, length_bytes)
        disk.publish(key, fd, sync=sync, part=part)
        self._drop_working(disk, key)
        # The rename changed ctime, so the record takes it from now.
        record = self.catalog.make_record(os.fstat(fd), packed, sync)
        self.catalog.remember(disk, key, record)
        return record

    def fill(self, key: BlockKey, length_bytes: int, write_all: Callable[[Pwrite], bytes]) -> BlockRecord:
        """Makes a committed block of bytes that ``write_all(pwrite)`` writes and whose checksums it returns. Whatever
        goes wrong, nothing of it stays. A block that is here already is returned instead.

        Raises:
            NoSpace, Busy, Unavailable, and whatever ``write_all`` raises.
        """
        with self._locks.holding(key):
            if self.catalog.find(key) is not None:
                return self._record_of(key)
            if key in self._working or key in self._filling:
                raise Busy(f"block {key} is being written here")
            disk = self.catalog.choose_disk(length_bytes)
            fd = disk.open_working(key, part=True)
            self._filling.add(key)

        def pwrite(data: Buffer, offset: int) -> None:
            with disk.guard():
                disk.calls.pwrite("fill", fd, data, offset)

        try:
            packed = write_all(pwrite)
            with self._locks.holding(key):
                return self._commit_file(disk, key, fd, length_bytes, packed, sync=False, part=True)
        except BaseException:
            disk.remove_working(key, part=True)
            disk.count_loose(key, None)
            raise
        finally:
            self._filling.discard(key)
            os.close(fd)

    def _record_of(self, key: BlockKey) -> BlockRecord:
        opened = self.catalog.open(key)
        opened.close()
        return opened.record

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
            elif self.catalog.find(key) is not None:
                raise Exists(f"block {key} is committed: only the master orders its deletion")

    def delete(self, key: BlockKey) -> None:
        """Deletes a block in whatever state, as ordered. Its bytes stay readable for whoever has it open."""
        with self._locks.holding(key):
            disk = self._working.get(key)
            if disk is not None:
                disk.remove_working(key)
                self._drop_working(disk, key)
            self.catalog.delete(key)

    # ------------------------------------------------------------ overview

    def reports(self) -> Iterator[Report]:
        """Every block, in ascending order of key."""
        with self._guard:
            working = sorted(self._working)
        return merge(self.catalog.reports(), (Report(key, 0, 0, working=True) for key in working))

    def refresh_working(self) -> None:
        """Clients write through descriptors of their own: looks how much their files take now."""
        with self._guard:
            working = list(self._working.items())
        for key, disk in working:
            size = disk.working_bytes(key)
            with self._guard:
                if size is not None and self._working.get(key) is disk:
                    disk.count_loose(key, size)

    @property
    def working_blocks(self) -> int:
        return len(self._working)

    def close(self) -> None:
        for disk in self.disks:
            disk.close()
