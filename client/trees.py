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


def rmtree(client: Client, top: Path, progress: Callable[[int], None] | None) -> int:
    """Depth first; the names of one directory go in batches of 1,000."""
    removed = 0
    pending = [(paths.normalise(top), False)]
    while pending:
        path, emptied = pending.pop()
        if emptied:
            if path != b"/":
                client.rmdir(path)
                removed += 1
        else:
            pending.append((path, True))
            removed += _empty(client, path, pending)
        if progress is not None:
            progress(removed)
    return removed


def _empty(client: Client, path: bytes, pending: list[tuple[bytes, bool]]) -> int:
    """Unlinks what is no directory and notes the directories."""
    inode = client.directory(path)
    names = []
    for entry in client.core.metadata.readdir(
        inode, client.core.settings.page_entries, client.core.deadline, want_entries=False
    ):
        if stat.S_ISDIR(entry.mode):
            pending.append((paths.join(path, entry.name), False))
        else:
            names.append(entry.name)
    removed = 0
    for start in range(0, len(names), UNLINK_BATCH):
        some = names[start : start + UNLINK_BATCH]
        request = pb.MutateRequest(unlink_many=pb.UnlinkMany(directory=inode, names=packed_names.pack(some)))
        reply = client.core.metadata.mutate(request, client.core.deadline())
        for name, number in zip(some, reply.errnos, strict=True):
            if number not in (0, errno.ENOENT):  # gone already is fine
                raise from_errno(number, f"cannot remove {paths.decode(paths.join(path, name))!r}")
            removed += number == 0
    return removed
