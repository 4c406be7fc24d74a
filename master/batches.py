"""Batch writing: many files become whole in one command."""

from __future__ import annotations

import stat

import msgspec

from ..common.errors import Exists, HearthError, InvalidArgument, IsADirectory
from . import blocks, quotas
from .change import Change, item_errno
from .commands import PublishMany, PutMany
from .namespace import PERMISSIONS, check_name, make, touch_directory
from .records import Inode, Reply


def publish_many(change: Change, command: PublishMany) -> Reply:
    """One errno for each item."""
    errnos = []
    for item in command.items:
        try:
            blocks.publish(change, item)
            errnos.append(0)
        except HearthError as error:
            errnos.append(item_errno(error))
    return Reply(errnos=tuple(errnos), inodes=tuple(item.inode for item in command.items))


def put_many(change: Change, command: PutMany) -> Reply:
    """Name i becomes a whole file with block i, or nothing changes for it; one errno and one inode for each.

    A name that exists keeps its inode and gets a new version.

    Raises:
        InvalidArgument: columns of different lengths, an unknown worker.
        Stale, NotADirectory: the directory.
    """
    columns: tuple[tuple[int, ...], ...] = (
        command.blocks,
        command.generations,
        command.lengths_bytes,
        command.digests,
    )
    if command.depths:
        columns = (*columns, command.depths)
    if any(len(column) != len(command.names) for column in columns):
        raise InvalidArgument(
            f"put of {len(command.names)} names with columns of {[len(column) for column in columns]}"
        )
    parent = change.directory(command.parent)
    blocks.check_worker(change, command.worker_id)
    errnos, numbers, before = [], [], change.count.inodes
    for index, name in enumerate(command.names):
        number = 0
        try:
            number = _put(change, command, parent, index, name)
            errnos.append(0)
        except HearthError as error:
            errnos.append(item_errno(error))
        numbers.append(number)
    if change.count.inodes != before:
        touch_directory(change, command.parent, parent)
    return Reply(errnos=tuple(errnos), inodes=tuple(numbers))


def _put(change: Change, command: PutMany, parent: Inode, index: int, name: bytes) -> int:
    """All rules first, then all writes: an item that raises has changed nothing."""
    check_name(name)
    block, length_bytes = command.blocks[index], command.lengths_bytes[index]
    blocks.check_sizes(length_bytes, length_bytes)
    dentry = change.find_dentry(command.parent, name)
    old = None if dentry is None else change.named_inode(dentry.inode, command.parent, name)
    if dentry is not None and old is not None:
        same = old.extents and (old.extents[0].block, old.extents[0].generation) == (block, command.generations[index])
        if same:
            return dentry.inode
    working = blocks.take_working(change, block, command.generations[index]) if block or length_bytes else None
    if old is not None and old.is_directory:
        raise IsADirectory(f"{name!r} is a directory")
    if old is not None and not old.is_regular:
        raise Exists(f"{name!r} is not a regular file")
    if dentry is not None and old is not None and command.keep_existing and is_readable(old, command.live_workers):
        if working is not None:
            blocks.drop_working(change, block, working)
        return dentry.inode
    quota, old_bytes = (parent.quota, 0) if old is None else (old.quota, blocks.length_of(old))
    quotas.check_room(change, quota, length_bytes - old_bytes)
    depth = command.depths[index] if command.depths else 0
    if dentry is not None and old is not None:
        number, inode = dentry.inode, old
        if depth:
            inode = msgspec.structs.replace(inode, depth=depth)
        change.touch_inode(number, old.parents, content=True)
    else:
        mode = stat.S_IFREG | command.mode & PERMISSIONS
        number, inode = make(change, command.parent, parent, name, mode, command.uid, command.gid, depth=depth)
    blocks.replace_content(
        change,
        number,
        inode,
        working,
        block=block,
        length_bytes=length_bytes,
        size_bytes=length_bytes,
        digest=command.digests[index],
        sealed=True,
        worker_id=command.worker_id,
        mtime_ns=change.now_ns,
    )
    return number


def is_readable(inode: Inode, live_workers: tuple[str, ...]) -> bool:
    """Whether all its bytes can be had now."""
    return all(any(worker in live_workers for worker in extent.workers) for extent in inode.extents)
