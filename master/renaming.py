"""rename(2): the one operation that touches two directories and up to two inodes at once."""

from __future__ import annotations

import stat

import msgspec

from ..common.errors import InvalidArgument, IsADirectory, NotADirectory, NotFound, Stale
from ..common.types import ROOT_INODE
from . import quotas
from .change import Change
from .commands import RENAME_EXCHANGE, RENAME_NOREPLACE, Rename
from .namespace import check_name, drop_link, exists, put_dentry, remove_empty, touch_directory
from .records import Dentry, Inode, Reply


def rename(change: Change, command: Rename) -> Reply:
    """rename(2) with RENAME_NOREPLACE and RENAME_EXCHANGE.

    Raises:
        NotFound, Exists (NOREPLACE), NotEmpty, IsADirectory, NotADirectory, Stale.
        CrossDevice, QuotaExceeded: into another quota; see ``quotas``.
        InvalidArgument: flags, names, or a directory into its own subtree.
    """
    if command.flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        raise InvalidArgument(f"rename flags {command.flags} are not supported")
    check_name(command.name)
    check_name(command.new_name)
    change.directory(command.parent)
    change.directory(command.new_parent)
    source = change.dentry(command.parent, command.name)
    target = change.find_dentry(command.new_parent, command.new_name)
    inode = change.named_inode(source.inode, command.parent, command.name)
    if target is not None and command.flags == RENAME_NOREPLACE:
        raise exists(command.new_parent, command.new_name)
    if target is None and command.flags == RENAME_EXCHANGE:
        raise NotFound(f"{command.new_name!r} does not exist in directory {command.new_parent}; nothing to exchange")
    if target is not None and target.inode == source.inode:
        return Reply(inode=source.inode, attributes=inode)
    if inode.is_directory:
        _refuse_own_subtree(change, source.inode, command.new_parent)
    if target is not None and command.flags == RENAME_EXCHANGE:
        return _exchange(change, command, source, inode, target)
    if target is not None:
        _replace_target(change, command, inode, target)
    return _move(change, command, source, inode, target)


def _refuse_own_subtree(change: Change, directory: int, into: int) -> None:
    """Raises: InvalidArgument: ``into`` is the directory or lies below it."""
    at = into
    while at != ROOT_INODE:
        if at == directory:
            raise InvalidArgument(f"directory {directory} cannot move into its own subtree")
        links = change.inode(at).links
        if not links:
            raise Stale(f"directory {at} is not part of the tree (any more)")
        at = links[0][0]


def _replace_target(change: Change, command: Rename, inode: Inode, target: Dentry) -> None:
    """Removes what the new name stood for."""
    old = change.named_inode(target.inode, command.new_parent, command.new_name)
    if old.is_directory and not inode.is_directory:
        raise IsADirectory(f"{command.new_name!r} in directory {command.new_parent} is a directory, the source is not")
    if inode.is_directory and not old.is_directory:
        raise NotADirectory(f"{command.new_name!r} in directory {command.new_parent} is not a directory, the source is")
    if old.is_directory:
        remove_empty(change, target.inode, old)
        parent = change.inode(command.new_parent)
        touch_directory(change, command.new_parent, parent, subdirectories=-1)
    else:
        drop_link(change, target.inode, old, (command.new_parent, command.new_name))


def _move(change: Change, command: Rename, source: Dentry, inode: Inode, target: Dentry | None) -> Reply:
    quotas.move(change, source.inode, inode, change.directory(command.new_parent))
    change.delete_dentry(command.parent, command.name, source.cookie)
    cookie = target.cookie if target is not None else change.next_cookie()
    put_dentry(change, command.new_parent, command.new_name, source.inode, stat.S_IFMT(inode.mode), cookie)
    new = _relink(change, source.inode, (command.parent, command.name), (command.new_parent, command.new_name))
    moved = 1 if inode.is_directory and command.parent != command.new_parent else 0
    touch_directory(change, command.parent, change.inode(command.parent), subdirectories=-moved)
    if command.parent != command.new_parent:
        touch_directory(change, command.new_parent, change.inode(command.new_parent), subdirectories=moved)
    change.touch_name(command.parent, command.name)
    change.touch_name(command.new_parent, command.new_name)
    return Reply(inode=source.inode, attributes=new)


def _exchange(change: Change, command: Rename, source: Dentry, inode: Inode, target: Dentry) -> Reply:
    """Both names keep their cookies and swap their inodes."""
    other = change.named_inode(target.inode, command.new_parent, command.new_name)
    if other.is_directory:
        _refuse_own_subtree(change, target.inode, command.parent)
    quotas.move(change, source.inode, inode, change.directory(command.new_parent))
    quotas.move(change, target.inode, other, change.directory(command.parent))
    put_dentry(change, command.new_parent, command.new_name, source.inode, stat.S_IFMT(inode.mode), target.cookie)
    put_dentry(change, command.parent, command.name, target.inode, stat.S_IFMT(other.mode), source.cookie)
    here, there = (command.parent, command.name), (command.new_parent, command.new_name)
    new = _relink(change, source.inode, here, there)
    _relink(change, target.inode, there, here)
    gained = int(other.is_directory) - int(inode.is_directory) if command.parent != command.new_parent else 0
    touch_directory(change, command.parent, change.inode(command.parent), subdirectories=gained)
    if command.parent != command.new_parent:
        touch_directory(change, command.new_parent, change.inode(command.new_parent), subdirectories=-gained)
    change.touch_name(command.parent, command.name)
    change.touch_name(command.new_parent, command.new_name)
    return Reply(inode=source.inode, attributes=new)


def _relink(change: Change, number: int, old: tuple[int, bytes], new: tuple[int, bytes]) -> Inode:
    inode = change.inode(number)
    links = tuple(new if link == old else link for link in inode.links)
    moved = msgspec.structs.replace(inode, links=links, ctime_ns=change.now_ns)
    change.put_inode(number, moved)
    for extent in moved.extents if old[0] != new[0] else ():  # it may be in a cache directory now
        change.stored(moved, extent, extent.workers, quotas.chain(change, moved.quota))
    change.touch_inode(number, {parent for parent, _ in (*inode.links, *links)})
    return moved
