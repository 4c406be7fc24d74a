"""Plain records that more than one part speaks of."""

from __future__ import annotations

import mmap
import stat
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview | mmap.mmap

ROOT_INODE = 1
NAME_MAX = 255
PATH_MAX = 4096
SYMLINK_MAX = 4095
SYMLINKS_MAX = 40
"""On the way of one path."""
XATTR_NAME_MAX = 255
XATTR_VALUE_MAX_BYTES = 64 << 10
FILE_MAX_BYTES = 1 << 50
PROTOCOL = 1
"""Version of the wire protocol. A peer that speaks this one or the one before is served."""

DEFAULT_MASTER_PORT = 7070
DEFAULT_WORKER_PORT = 7071
CLUSTER_FILE = ".hearth/cluster.json"
"""Below a mount's root: names the cluster. Looked up, never listed."""


class BlockKey(NamedTuple):
    """A block and its generation: together they name bytes that never change once committed."""

    block: int
    generation: int

    def __str__(self) -> str:
        return f"{self.block:016x}.{self.generation}"


def file_type(mode: int) -> str:
    """A word for people.

    >>> file_type(0o100644)
    'file'
    """
    return {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
    }.get(stat.S_IFMT(mode), "unknown")
