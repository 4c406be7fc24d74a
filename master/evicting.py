"""Removing files that give way: eviction and expiry. What is chosen, and when, is decided elsewhere.

Laws:
- Only regular files go all of whose names are in cache directories, neither they nor those pinned; all names go at
  once.
- A file goes as what it was when it was chosen: one that was written since stays.
- A file that was never published does not expire: somebody may be writing it.
"""

from __future__ import annotations

from ..common.errors import HearthError, IsADirectory, NotFound, NotPermitted, Stale
from . import blocks
from .change import Change, item_errno
from .commands import Evict, EvictMany, Expire
from .directory_policy import PIN
from .namespace import check_name, touch_directory
from .records import Inode, Reply
from .tables import named
from .view import View

SECOND_NS = 1_000_000_000


def may_go(view: View, number: int, inode: Inode) -> bool:
    """Whether the file may be evicted now."""
    if not inode.is_regular or not inode.links:
        return False
    policies = [view.policy(parent) for parent in inode.parents]
    if not all(policy.cache and not policy.pinned for policy in policies):
        return False
    return view.reader.get("xattrs", named(number, PIN)) in (None, b"0")


def evict(change: Change, command: Evict) -> Reply:
    """One errno for each victim."""
    going: dict[int, Inode] = {}
    errnos = []
    for victim in command.victims:
        inode = change.find_inode(victim.inode)
        extent = inode.extents[0] if inode is not None and inode.extents else None
        if inode is None or extent is None or (extent.block, extent.generation) != (victim.block, victim.generation):
            errnos.append(Stale.number)
        elif not may_go(change, victim.inode, inode):
            errnos.append(NotPermitted.number)
        else:
            going[victim.inode] = inode
            errnos.append(0)
    _remove(change, going)
    return Reply(errnos=tuple(errnos))


def evict_many(change: Change, command: EvictMany) -> Reply:
    """One errno for each name. Raises: Stale, NotADirectory."""
    change.directory(command.parent)
    going: dict[int, Inode] = {}
    errnos = []
    for name in command.names:
        try:
            check_name(name)
            dentry = change.find_dentry(command.parent, name)
            if dentry is None:
                raise NotFound(f"{name!r} does not exist in directory {command.parent}")
            inode = change.named_inode(dentry.inode, command.parent, name)
            if inode.is_directory:
                raise IsADirectory(f"{name!r} is a directory")
            if not may_go(change, dentry.inode, inode):
                raise NotPermitted(f"{name!r} is not in a cache directory, or pinned")
            going[dentry.inode] = inode
            errnos.append(0)
        except HearthError as error:
            errnos.append(item_errno(error))
    _remove(change, going)
    return Reply(errnos=tuple(errnos))


def expire(change: Change, command: Expire) -> Reply:
    """Those that went."""
    going = {}
    for number in command.inodes:
        inode = change.find_inode(number)
        if inode is not None and is_over(change, number, inode, command.as_of_ns):
            going[number] = inode
    _remove(change, going)
    return Reply(inodes=tuple(going))


def is_over(view: View, number: int, inode: Inode, as_of_ns: int) -> bool:
    """Whether the file's time is over: since its last change (of content, name or attributes) its directory's time to
    live has passed. With several names, that of all of them."""
    if not inode.version or not may_go(view, number, inode):
        return False
    lives_s = [view.policy(parent).ttl_s for parent in inode.parents]
    return all(lives_s) and inode.ctime_ns + max(lives_s) * SECOND_NS <= as_of_ns


def _remove(change: Change, going: dict[int, Inode]) -> None:
    parents = set()
    for number, inode in going.items():
        for parent, name in inode.links:
            dentry = change.dentry(parent, name)
            change.delete_dentry(parent, name, dentry.cookie)
            change.touch_name(parent, name)
            parents.add(parent)
        change.touch_inode(number, inode.parents)
        blocks.free_extents(change, inode)
        change.delete_inode(number)
    for parent in sorted(parents):
        touch_directory(change, parent, change.directory(parent))
