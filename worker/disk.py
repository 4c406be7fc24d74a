"""One disk: a directory with block files, and what it can still take.

Layout::

    hearth-disk.json            schema, cluster id, worker id
    scrub                       how far the scrubber has come
    blocks/<2 hex>/<block>.<g>  committed, mode 0444; they never change
    working/<block>.<g>         being written by a client
    working/<block>.<g>.part    being filled by this process; swept at start
    bad/                        the last few files that failed their check, for whoever wants to look
    index/                      see index.py

All names are made from numbers, and opened relative to directory descriptors without following links.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..common.errors import Busy, Conflict, HearthError, InvalidArgument, NoSpace, SettingsError, Stale, Unavailable
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from . import identity
from .index import BlockRecord, Index, check_format
from .os_calls import OsCalls
from .settings import Floor

INDEX = "index"
BAD_FILES_KEPT = 8
BAD_BYTES_KEPT = 1 << 30
UNKNOWN_BYTES = 1 << 60
"""Stands for the size of a filesystem that reports none (report R097)."""

_NAME = re.compile(r"([0-9a-f]{16})\.(\d{1,10})")

log = get_logger("hearthfs.worker.disk")


@dataclass(frozen=True)
class OpenBlock:
    """An open, committed block. Whoever has it closes it."""

    disk: Disk
    fd: int
    record: BlockRecord

    def pread(self, size: int, offset: int) -> bytes:
        """Exactly ``size`` bytes, or fewer where the file ends.

        Raises:
            Unavailable: the disk failed.
        """
        with self.disk.guard():
            return self.disk.calls.pread("read", self.fd, size, offset)

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Fills ``view``, or less where the file ends; returns how much.

        Raises:
            Unavailable: the disk failed.
        """
        with self.disk.guard():
            return self.disk.calls.pread_into("read", self.fd, view, offset)

    def dup(self) -> OpenBlock:
        return OpenBlock(self.disk, os.dup(self.fd), self.record)

    def close(self) -> None:
        os.close(self.fd)


class Space(NamedTuple):
    capacity_bytes: int
    used_bytes: int
    available_bytes: int


def file_name(key: BlockKey) -> str:
    return str(key)


def parse_name(name: str) -> BlockKey | None:
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) >= 1 << 32:
        return None
    return BlockKey(int(match[1], 16), int(match[2]))


def real_bytes(status: os.stat_result) -> int:
    """What a file takes from its disk: blocks, not length (reservations and holes do not count)."""
    return status.st_blocks * 512


class Disk:
    """Opens with ``inspect`` (changes nothing), then ``prepare``. Thread-safe after that.

    Attributes:
        failed: it answered EIO: no new blocks go here, what can be read is still served.
        counted: ``used_bytes`` covers all files; False while a lost index is being made anew.
        bad_files_kept, bad_bytes_kept: bounds of what is kept of files that failed their check; the last one always is.
    """

    def __init__(self, path: Path, limit_bytes: int | None, floor: Floor, calls: OsCalls | None = None) -> None:
        self.path = path
        self.calls = calls or OsCalls()
        self.failed = False
        self.counted = True
        self.bad_files_kept = BAD_FILES_KEPT
        self.bad_bytes_kept = BAD_BYTES_KEPT
        self.identity: identity.Identity | None = None
        self.index: Index
        self._limit_bytes = limit_bytes
        self._floor = floor
        self._root_fd = -1
        self._working_fd = -1
        self._bad_fd = -1
        self._bad_seen = (0, 0)  # when the directory changed last, and what its files took then
        self._shards: dict[str, int] = {}
        self._shards_fd = -1
        self._lock = threading.Lock()
        self._block_bytes = 0
        self._blocks = 0
        self._loose_bytes: dict[BlockKey, int] = {}
        self._made = False

    def inspect(self, worker_id: str, cluster_id: str) -> None:
        """Checks that the disk is usable and ours, and locks it. Nothing on it changes, but that a missing directory
        is made (``close`` removes it again while it is empty).

        Raises:
            SettingsError, Conflict, WrongCluster, NewerFormat.
        """
        try:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
                self.path.chmod(0o755)  # whatever the umask: the socket in it is for the group
                self._made = True
            self._root_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SettingsError(f"disk {self.path}: {error.strerror}: give a directory that exists") from None
        status = os.fstat(self._root_fd)
        others_write = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or others_write:
            raise SettingsError(
                f"disk {self.path} (mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}) could be changed by "
                f"others: it must belong to uid {os.geteuid()} or root and not be writable by everybody"
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise SettingsError(f"disk {self.path} is not writable for uid {os.geteuid()}: mend its mode or mount")
        try:
            fcntl.flock(self._root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"disk {self.path} is in use by another worker: stop it or name another disk") from None
        self.identity = identity.read(self.path)
        if self.identity is not None:
            identity.check(self.path, self.identity, worker_id, cluster_id)
        check_format(self.path / INDEX)

    def prepare(self, owner: identity.Identity, boot_id: str) -> None:
        """Makes what is missing of the layout, opens the index, and reads how much it says is used.

        Raises:
            OSError.
        """
        # First, for a directory with blocks and without an owner is refused.
        if owner != self.identity:
            identity.write(self.calls, self._root_fd, owner)
            self.identity = owner
        for name in ("blocks", "working", "bad"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._root_fd)
        self.calls.fsync("sync-layout", self._root_fd)
        self._shards_fd = self._open_directory("blocks", self._root_fd)
        self._working_fd = self._open_directory("working", self._root_fd)
        self._bad_fd = self._open_directory("bad", self._root_fd)
        self.index = Index(self.path / INDEX, boot_id)
        self.counted = not self.index.rebuilt or not os.listdir(self._shards_fd)
        self._blocks, self._block_bytes = self.index.blocks, self.index.disk_bytes

    def _open_directory(self, name: str, dir_fd: int) -> int:
        return self.calls.open("open-directory", name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)

    def close(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
        for fd in (self._working_fd, self._bad_fd, self._shards_fd, *self._shards.values(), self._root_fd):
            if fd >= 0:
                os.close(fd)
        self._root_fd = self._working_fd = self._bad_fd = self._shards_fd = -1
        self._shards.clear()
        if self._made and self.identity is None:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    # ------------------------------------------------------------ files

    def _shard(self, key: BlockKey) -> int:
        """The directory of a block: by its low byte, so that ids in sequence spread over all 256."""
        name = f"{key.block & 0xFF:02x}"
        with self._lock:
            fd = self._shards.get(name)
            if fd is None:
                self._make_shards(name)
                fd = self._shards[name] = self._open_directory(name, self._shards_fd)
            return fd

    def _make_shards(self, wanted: str) -> None:
        """All of them when one is missing: the first blocks of a new disk would else wait for an fsync each."""
        try:
            os.mkdir(wanted, 0o700, dir_fd=self._shards_fd)
        except FileExistsError:
            return
        for number in range(256):
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{number:02x}", 0o700, dir_fd=self._shards_fd)
        self.calls.fsync("sync-shards", self._shards_fd)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turns what the system says inside into the error family, and marks the disk failed when it says EIO.
        A missing file is not an error of the disk: ``FileNotFoundError`` passes."""
        try:
            yield
        except (FileNotFoundError, HearthError):
            raise
        except OSError as error:
            if error.errno in (errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV) and not self.failed:
                self.failed = True
                log.error("disk-failed", path=str(self.path), error=str(error))
            raise self._translated(error) from error

    def _translated(self, error: OSError) -> HearthError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(f"disk {self.path} is full")
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return Busy(f"disk {self.path}: {error.strerror}: try again")
        return Unavailable(f"disk {self.path}: {error.strerror}")

    def open_block(self, key: BlockKey) -> int:
        """Read-only, with a shared lock that goes where the descriptor goes: a mount that makes a replaced block's file
        its own again sees by it that others still read the file. A mount whose programs may write into the file has an
        exclusive one.

        Raises:
            FileNotFoundError, InvalidArgument (not a regular file), Stale (a mount holds it), OSError.
        """
        with self.guard():
            fd = self.calls.open("open-block", file_name(key), os.O_RDONLY, dir_fd=self._shard(key))
        try:
            self.calls.flock("hold-block", fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Stale(f"block {key}: a mount writes into its file") from None
        except OSError as error:
            log.debug("disk-without-locks", path=str(self.path), error=str(error))
        return self._regular(fd, key)

    def open_held_block(self, key: BlockKey) -> int:
        """Read-only, of a block whose file a mount has locked for itself.

        Raises:
            FileNotFoundError, InvalidArgument, OSError.
        """
        with self.guard():
            fd = self.calls.open("open-block", file_name(key), os.O_RDONLY, dir_fd=self._shard(key))
        return self._regular(fd, key)

    def is_held(self, key: BlockKey, but_by: int | None = None) -> bool:
        """Whether anybody has the block's file open by a descriptor that ``open_block`` gave, other than ``but_by``:
        the shared locks go where the descriptors go. The caller keeps others from opening it meanwhile. (A disk without
        locks: False.)"""
        try:
            fd = but_by or self.calls.open("probe-block", file_name(key), os.O_RDONLY, dir_fd=self._shard(key))
        except OSError:
            return False
        try:
            self.calls.flock("probe-block", fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            log.debug("disk-without-locks", path=str(self.path), error=str(error))
        finally:
            if but_by is None:
                os.close(fd)
            else:
                with contextlib.suppress(OSError):  # the one that it had, and lost if it could not be raised
                    self.calls.flock("hold-block", but_by, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False

    def open_working(self, key: BlockKey, *, create: bool = False, part: bool = False) -> int:
        """Read-write; ``part`` opens the file that only this process fills, empty.

        Raises:
            FileNotFoundError, InvalidArgument, OSError.
        """
        flags = os.O_RDWR | (os.O_CREAT if create or part else 0) | (os.O_TRUNC if part else 0)
        with self.guard():
            fd = self.calls.open("open-working", self._working_name(key, part), flags, dir_fd=self._working_fd)
        return self._regular(fd, key)

    def _regular(self, fd: int, key: BlockKey) -> int:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidArgument(f"block {key} on {self.path} is not a regular file: somebody put it there")
        return fd

    @staticmethod
    def _working_name(key: BlockKey, part: bool) -> str:
        return file_name(key) + (".part" if part else "")

    def part_to_working(self, key: BlockKey) -> None:
        with self.guard():
            self.calls.rename(
                "part-done", self._working_name(key, True), self._working_fd, file_name(key), self._working_fd
            )

    def publish(self, key: BlockKey, fd: int, *, sync: bool, part: bool = False) -> None:
        """Moves a working file, open as ``fd``, into place: after the rename it is the block."""
        shard = self._shard(key)
        with self.guard():
            if sync:
                self.calls.fsync("sync-block", fd)
            self.calls.rename("publish", self._working_name(key, part), self._working_fd, file_name(key), shard)
            with contextlib.suppress(OSError):  # only a reminder for people: it must not undo what the rename did
                self.calls.fchmod("seal-block", fd, 0o444)
            if sync:
                self.calls.fsync("sync-shard", shard)

    def sync_block(self, key: BlockKey, fd: int) -> None:
        with self.guard():
            self.calls.fsync("sync-block", fd)
            self.calls.fsync("sync-shard", self._shard(key))

    def remove_block(self, key: BlockKey) -> None:
        with self.guard(), contextlib.suppress(FileNotFoundError):
            self.calls.unlink("delete", file_name(key), self._shard(key))

    def remove_working(self, key: BlockKey, *, part: bool = False) -> None:
        with self.guard(), contextlib.suppress(FileNotFoundError):
            self.calls.unlink("discard", self._working_name(key, part), self._working_fd)

    def working_bytes(self, key: BlockKey) -> int | None:
        """What a working file takes now; None: it is gone."""
        try:
            return real_bytes(os.stat(file_name(key), dir_fd=self._working_fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def has_block(self, key: BlockKey) -> bool:
        try:
            os.stat(file_name(key), dir_fd=self._shard(key), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def move_aside(self, key: BlockKey) -> None:
        """Keeps a bad file for whoever wants to look, and drops the oldest of those beyond the bounds."""
        with self.guard(), contextlib.suppress(FileNotFoundError):
            self.calls.rename("move-aside", file_name(key), self._shard(key), file_name(key), self._bad_fd)
        names = os.listdir(self._bad_fd)
        found = [(os.stat(name, dir_fd=self._bad_fd, follow_symlinks=False), name) for name in names]
        kept_bytes = 0
        for number, (status, name) in enumerate(sorted(found, key=lambda item: -item[0].st_ctime_ns), 1):
            kept_bytes += real_bytes(status)
            if number > 1 and (number > self.bad_files_kept or kept_bytes > self.bad_bytes_kept):
                self.calls.unlink("drop-bad", name, self._bad_fd)
        self._bad_seen = (0, 0)

    @property
    def bad_files(self) -> int:
        return len(os.listdir(self._bad_fd))

    def drop_bad_files(self) -> None:
        """They give way before a writer is told that there is no room."""
        for name in os.listdir(self._bad_fd):
            self.calls.unlink("drop-bad", name, self._bad_fd)
        self._bad_seen = (0, 0)

    def read_note(self, name: str) -> str:
        """A few words that were kept on the disk; empty when there are none, or they cannot be read."""
        try:
            fd = self.calls.open("read-note", name, os.O_RDONLY, dir_fd=self._root_fd)
        except OSError:
            return ""
        try:
            return self.calls.pread("read-note", fd, 4096, 0).decode(errors="replace")
        finally:
            os.close(fd)

    def write_note(self, name: str, text: str) -> None:
        """Whole or not at all; not synced. Raises: OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = self.calls.open("write-note", f"{name}.new", flags, dir_fd=self._root_fd)
        try:
            self.calls.pwrite("write-note", fd, text.encode(), 0)
        finally:
            os.close(fd)
        self.calls.rename("write-note", f"{name}.new", self._root_fd, name, self._root_fd)

    def sweep_parts(self) -> list[tuple[BlockKey, os.stat_result]]:
        """Deletes what this process was filling when it ended, and lists the working files of clients."""
        found = []
        with os.scandir(self._working_fd) as entries:
            for entry in entries:
                key = parse_name(entry.name)
                if key is not None and entry.is_file(follow_symlinks=False):
                    found.append((key, entry.stat(follow_symlinks=False)))
                elif entry.name.endswith(".part") and parse_name(entry.name.removesuffix(".part")):
                    self.calls.unlink("sweep", entry.name, self._working_fd)
        return found

    def scan(self) -> Iterator[tuple[BlockKey, os.stat_result]]:
        """All committed block files, shard by shard; files with other names are none of ours."""
        for shard in sorted(os.listdir(self._shards_fd)):
            if not re.fullmatch("[0-9a-f]{2}", shard):
                continue
            fd = self._open_directory(shard, self._shards_fd)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        key = parse_name(entry.name)
                        if key is None or f"{key.block & 0xFF:02x}" != shard:
                            continue
                        with contextlib.suppress(FileNotFoundError):
                            yield key, entry.stat(follow_symlinks=False)
            finally:
                os.close(fd)

    # ------------------------------------------------------------ space

    def count_block(self, disk_bytes: int, blocks: int) -> None:
        """Adds (or, negative, takes away) committed files."""
        with self._lock:
            self._block_bytes += disk_bytes
            self._blocks += blocks

    def count_loose(self, key: BlockKey, disk_bytes: int | None) -> None:
        """What a file without record (working, or not indexed yet) takes now; None: it is gone or has a record."""
        with self._lock:
            if disk_bytes is None:
                self._loose_bytes.pop(key, None)
            else:
                self._loose_bytes[key] = disk_bytes

    @property
    def loose_files(self) -> int:
        return len(self._loose_bytes)

    @property
    def blocks(self) -> int:
        return self._blocks

    @property
    def block_bytes(self) -> int:
        """Of committed files."""
        return self._block_bytes

    def space(self) -> Space:
        """From real bytes: block and working files by ``st_blocks``, the filesystem by ``statvfs``. The tighter of
        setting and filesystem wins.

        Raises:
            OSError: the disk does not answer.
        """
        with self._lock:
            used = self._block_bytes + sum(self._loose_bytes.values())
        with self.guard():
            filesystem = self.calls.statvfs("statvfs", self._root_fd)
        used += self._bad_bytes()
        free = UNKNOWN_BYTES
        if filesystem.f_blocks:
            free = filesystem.f_bavail * filesystem.f_frsize - self._floor.of(filesystem.f_blocks * filesystem.f_frsize)
            if filesystem.f_files and not filesystem.f_favail:
                free = 0
        limit = used + max(0, free)
        if self._limit_bytes is not None:
            limit = min(limit, self._limit_bytes)
        available = min(free, limit - used)
        if self.failed or not self.counted:
            available = 0
        return Space(limit, used, available)

    def _bad_bytes(self) -> int:
        changed_ns = os.fstat(self._bad_fd).st_mtime_ns
        if changed_ns != self._bad_seen[0]:
            names = os.listdir(self._bad_fd)
            total = sum(real_bytes(os.stat(name, dir_fd=self._bad_fd, follow_symlinks=False)) for name in names)
            self._bad_seen = changed_ns, total
        return self._bad_seen[1]
