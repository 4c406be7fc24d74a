"""Whole subtrees."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..common.errors import from_errno
from ..proto import master_pb2 as pb
from . import packed_names, paths
from .paths import Path

if TYPE_CHECKING:
    from .client import Client

UNLINK_BATCH = 1000

Progress = Callable[[int, int], None]


def rmtree(client: Client, top: Path, progress: Progress | None) -> int:
    """Depth first; the names of one directory go in batches of 1,000: one transaction of the master each."""
    pending = [(paths.normalise(top), False)]
    count = _Count(progress)
    while pending:
        path, emptied = pending.pop()
        if not emptied:
            pending.append((path, True))
            _empty(client, path, pending, count)
        elif path != b"/":
            client.rmdir(path)
            count.went(1)
    return count.removed


def evict(client: Client, top: Path, progress: Callable[[int], None] | None) -> tuple[int, int]:
    """(files evicted, files kept because they are not in a cache directory, or pinned). Directories stay."""
    evicted = kept = 0
    pending = [paths.normalise(top)]
    while pending:
        path = pending.pop()
        inode, below, names = _listed(client, path)
        pending += below
        for start in range(0, len(names), UNLINK_BATCH):
            some = names[start : start + UNLINK_BATCH]
            request = pb.MutateRequest(evict_many=pb.EvictMany(directory=inode, names=packed_names.pack(some)))
            reply = client.core.metadata.mutate(request, client.core.deadline())
            evicted += sum(number == 0 for number in reply.errnos)
            kept += sum(number == errno.EPERM for number in reply.errnos)
        if progress is not None:
            progress(evicted)
    return evicted, kept


class _Count:
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.removed = 0
        self.found = 1

    def went(self, names: int) -> None:
        self.removed += names
        if self._progress is not None:
            self._progress(self.removed, max(self.found, self.removed))


def _listed(client: Client, path: bytes) -> tuple[int, list[bytes], list[bytes]]:
    """The directory's inode, the paths of the directories in it, the names of what else is."""
    inode = client.directory(path)
    below, names = [], []
    for entry in client.core.metadata.readdir(
        inode, client.core.settings.page_entries, client.core.deadline, want_entries=False
    ):
        if stat.S_ISDIR(entry.mode):
            below.append(paths.join(path, entry.name))
        else:
            names.append(entry.name)
    return inode, below, names


def _empty(client: Client, path: bytes, pending: list[tuple[bytes, bool]], count: _Count) -> None:
    """Unlinks what is no directory and notes the directories."""
    inode, below, names = _listed(client, path)
    pending += [(each, False) for each in below]
    count.found += len(below) + len(names)
    for start in range(0, len(names), UNLINK_BATCH):
        some = names[start : start + UNLINK_BATCH]
        request = pb.MutateRequest(unlink_many=pb.UnlinkMany(directory=inode, names=packed_names.pack(some)))
        reply = client.core.metadata.mutate(request, client.core.deadline())
        for name, number in zip(some, reply.errnos, strict=True):
            if number not in (0, errno.ENOENT):  # gone already is fine
                raise from_errno(number, f"cannot remove {paths.decode(paths.join(path, name))!r}")
        count.went(sum(number == 0 for number in reply.errnos))
