"""``.hearth/cluster.json``: programs that were given a path below a mount learn from it which cluster it is, and how to
reach this node's worker without the mount. Looked up, never listed; nothing of it is at the master."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Mapping

import pyfuse3

from ..common.types import CLUSTER_FILE, ROOT_INODE

DIRECTORY_NODE = (1 << 63) - 1
FILE_NODE = (1 << 63) - 2
HANDLE = (1 << 63) - 1
_DIRECTORY_NAME, _, _FILE_NAME = CLUSTER_FILE.encode().partition(b"/")


class ClusterFile:
    """``describe`` gives the document, asked at each open and stat."""

    def __init__(self, describe: Callable[[], Mapping[str, object]]) -> None:
        self._describe = describe
        self._made_ns = time.time_ns()

    def content(self) -> bytes:
        return (json.dumps(self._describe(), indent=2) + "\n").encode()

    def find(self, parent: int, name: bytes) -> int | None:
        """The node of a virtual name, None for every other name.

        >>> f = ClusterFile(dict)
        >>> f.find(1, b".hearth") == DIRECTORY_NODE, f.find(DIRECTORY_NODE, b"cluster.json") == FILE_NODE
        (True, True)
        """
        if parent == ROOT_INODE and name == _DIRECTORY_NAME:
            return DIRECTORY_NODE
        if parent == DIRECTORY_NODE:
            return {_FILE_NAME: FILE_NODE, b".": DIRECTORY_NODE, b"..": ROOT_INODE}.get(name, 0)
        return None

    @staticmethod
    def owns(nodeid: int) -> bool:
        return nodeid in (DIRECTORY_NODE, FILE_NODE)

    def attributes(self, nodeid: int) -> pyfuse3.EntryAttributes:
        out = pyfuse3.EntryAttributes()
        out.st_ino = nodeid
        directory = nodeid == DIRECTORY_NODE
        out.st_mode = stat.S_IFDIR | 0o555 if directory else stat.S_IFREG | 0o444
        out.st_nlink = 2 if directory else 1
        out.st_size = 0 if directory else len(self.content())
        out.st_atime_ns = out.st_mtime_ns = out.st_ctime_ns = self._made_ns
        out.entry_timeout = out.attr_timeout = 0
        return out
