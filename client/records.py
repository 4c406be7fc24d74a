"""What the SDK answers: attributes of a file in the names that ``os`` uses, one directory entry, the space there is."""

from __future__ import annotations

import stat
from dataclasses import dataclass

from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from . import paths

BLOCK_SIZE_BYTES = 1 << 20
"""Reads and writes of this size and alignment cost least: one checksum chunk."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Like ``os.stat_result``, and ``version``: of the content, grows with every publish and truncate."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_rdev: int
    version: int
    st_dev: int = 0
    st_blksize: int = BLOCK_SIZE_BYTES

    @property
    def st_atime(self) -> float:
        return self.st_atime_ns / 1e9

    @property
    def st_mtime(self) -> float:
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        return self.st_ctime_ns / 1e9

    @property
    def st_blocks(self) -> int:
        """Units of 512 bytes, as in ``os``."""
        return -(-self.st_size // 512)


def stat_of(attributes: common.Attributes) -> Stat:
    return Stat(
        attributes.mode,
        attributes.inode,
        attributes.nlink,
        attributes.uid,
        attributes.gid,
        attributes.size_bytes,
        attributes.atime_ns,
        attributes.mtime_ns,
        attributes.ctime_ns,
        attributes.rdev,
        attributes.version,
    )


@dataclass(frozen=True, slots=True)
class DirEntry:
    """Like ``os.DirEntry``; ``stat`` needs no further call."""

    name: str
    path: str
    stat: Stat

    def inode(self) -> int:
        return self.stat.st_ino

    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.stat.st_mode)


def entry_of(directory: bytes, entry: pb.DirectoryEntry) -> DirEntry:
    path = paths.decode(paths.join(directory, entry.name))
    return DirEntry(paths.decode(entry.name), path, stat_of(entry.entry.attributes))


@dataclass(frozen=True, slots=True)
class Space:
    total_bytes: int
    available_bytes: int
    used_bytes: int
    inodes: int
    blocks: int
