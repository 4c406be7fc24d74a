"""Who may do what to the namespace: the rules of POSIX for one user, on the tables as they are. Pure.

They hold for callers whose certificate names a user. A mount asks as a node: there the kernel has checked already.

Laws:
- What has no rule here is refused.
- An inode is reached by its names: whoever may not search the directories on the way may not use the inode's number
  either.
- The owner of a file may publish into it whatever its mode says: it made the file for that, perhaps read-only.
- uid 0 may do everything to files, and nothing that is for operators.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ..common.errors import AccessDenied, NotPermitted
from ..common.types import NAME_MAX, ROOT_INODE
from . import commands
from .change import Change
from .commands import User
from .records import Dentry, Inode, Modes
from .view import View

READ, WRITE, SEARCH = 4, 2, 1
DEPTH_MAX = 4096


def allows(inode: Inode | Modes, user: User, wanted: int) -> bool:
    """access(2): owner, else group, else others; the first class that fits decides."""
    if user.uid == 0:
        return True
    if inode.uid == user.uid:
        granted = inode.mode >> 6
    elif inode.gid == user.gid:
        granted = inode.mode >> 3
    else:
        granted = inode.mode
    return granted & wanted == wanted


def need(inode: Inode, user: User, wanted: int, what: str) -> None:
    """Raises: AccessDenied."""
    if not allows(inode, user, wanted):
        raise AccessDenied(
            f"uid {user.uid} may not {what} (mode {inode.mode & 0o7777:04o}, owner {inode.uid}:{inode.gid})"
        )


def need_owner(inode: Inode, user: User, what: str) -> None:
    """Raises: NotPermitted."""
    if user.uid not in (0, inode.uid):
        raise NotPermitted(f"uid {user.uid} may not {what}: it belongs to uid {inode.uid}")


# ------------------------------------------------------------------ the way to an inode


def reach_directory(view: View, user: User, directory: int) -> Inode:
    """The directory, which may be searched, as may all above it. Raises: AccessDenied, Stale, NotADirectory."""
    inode = view.directory(directory)
    if user.uid == 0:
        return inode
    at, current = directory, inode
    for _ in range(DEPTH_MAX):
        need(current, user, SEARCH, f"search directory {at}")
        if at == ROOT_INODE or not current.links:
            return inode
        at = current.links[0][0]
        current = view.directory(at)
    raise AccessDenied(f"directory {directory} lies too deep")


def reach(view: View, user: User, number: int) -> Inode:
    """The inode, by one of its names at least. Raises: AccessDenied, Stale."""
    inode = view.inode(number)
    if user.uid == 0 or number == ROOT_INODE:
        return inode
    refused: AccessDenied | None = None
    for parent in dict.fromkeys(inode.parents):
        try:
            reach_directory(view, user, parent)
            return inode
        except AccessDenied as error:
            refused = error
    if refused is not None:
        raise refused
    return inode


def check_walk(view: View, user: User, directories: Iterable[int]) -> None:
    """Of a path that was resolved, or that failed: each directory on the way. Raises: AccessDenied."""
    for number in directories:
        inode = view.find_inode(number)
        if inode is not None and inode.is_directory:
            need(inode, user, SEARCH, f"search directory {number}")


# ------------------------------------------------------------------ changes


def as_user(command: commands.AnyCommand, user: User) -> commands.AnyCommand:
    """What the user makes belongs to the user, whatever the request says."""
    if isinstance(
        command,
        commands.Create | commands.CreateMany | commands.Mkdir | commands.Mknod | commands.Symlink | commands.PutMany,
    ):
        return msgspec.structs.replace(command, uid=user.uid, gid=user.gid)
    return command


def permitted(view: View, user: User, command: commands.AnyCommand) -> commands.AnyCommand:
    """What is to be applied, if the user may. Of a batch, one item that is not allowed fails all.

    Raises:
        AccessDenied (a mode forbids it), NotPermitted (only the owner or an operator may), Stale, NotADirectory.
    """
    rule = _RULES.get(type(command))
    if rule is None:
        raise NotPermitted(f"{type(command).__name__} is for operators")
    rule(view, user, command)
    if isinstance(command, commands.Setattr) and command.mode is not None and user.uid:
        inode = view.inode(command.inode)
        group = inode.gid if command.gid is None else command.gid
        if user.gid != group:  # chmod(2): not an error, but nobody hands out groups that are not the user's
            return msgspec.structs.replace(command, mode=command.mode & ~stat.S_ISGID)
    return command


def drop_special_bits(change: Change, user: User, command: commands.AnyCommand) -> None:
    """Ahead of a command that writes or gives away a file for a user: it is not setuid or setgid any longer."""
    for number in _written(change, user, command):
        inode = change.find_inode(number)
        if inode is None or not inode.is_regular:
            continue
        special = inode.mode & stat.S_ISUID
        if inode.mode & stat.S_IXGRP or (user.uid and user.gid != inode.gid):
            special |= inode.mode & stat.S_ISGID
        if special:
            change.put_inode(number, msgspec.structs.replace(inode, mode=inode.mode & ~special))
            change.touch_inode(number, inode.parents)


def _written(view: View, user: User, command: commands.AnyCommand) -> Iterable[int]:
    """Files whose bits go. Of uid 0 only those that it gives away."""
    if isinstance(command, commands.Setattr) and (command.uid is not None or command.gid is not None):
        return (command.inode,) if command.mode is None else ()
    if not user.uid:
        return ()
    if isinstance(command, commands.Publish):
        return (command.item.inode,)
    if isinstance(command, commands.PublishMany):
        return {item.inode for item in command.items}
    if isinstance(command, commands.PutMany):
        found = (_dentry(view, command.parent, name) for name in command.names)
        return {dentry.inode for dentry in found if dentry is not None}
    if isinstance(command, commands.Setattr) and command.size_bytes is not None and command.mode is None:
        return (command.inode,)
    return ()


def _writable(view: View, user: User, directory: int) -> Inode:
    inode = reach_directory(view, user, directory)
    need(inode, user, WRITE, f"write into directory {directory}")
    return inode


def _new_names(view: View, user: User, directory: int, names: Iterable[bytes]) -> None:
    """Names that exist say so themselves, as open(2) and mkdir(2) do."""
    reach_directory(view, user, directory)
    if any(_dentry(view, directory, name) is None for name in names):
        _writable(view, user, directory)


def _dentry(view: View, directory: int, name: bytes) -> Dentry | None:
    """None also for what is no name: the command's rule says so."""
    return view.find_dentry(directory, name) if 0 < len(name) <= NAME_MAX else None


def _named(view: View, directory: int, name: bytes) -> Inode | None:
    dentry = _dentry(view, directory, name)
    return view.find_inode(dentry.inode) if dentry is not None else None


def _removable(view: View, user: User, directory: int, name: bytes) -> None:
    """A name may go: the directory is writable, and where it is sticky, it or the file is the user's."""
    parent = _writable(view, user, directory)
    target = _named(view, directory, name)
    if target is None or not parent.mode & stat.S_ISVTX or user.uid in (0, parent.uid, target.uid):
        return
    raise NotPermitted(f"directory {directory} is sticky and neither it nor {name!r} belongs to uid {user.uid}")


def _create(view: View, user: User, command: commands.Create) -> None:
    _new_names(view, user, command.parent, (command.name,))
    existing = _named(view, command.parent, command.name)
    if existing is not None and command.worker_id and not command.exclusive:
        _may_publish(existing, user)


def _mknod(view: View, user: User, command: commands.Mknod) -> None:
    if stat.S_IFMT(command.mode) in (stat.S_IFCHR, stat.S_IFBLK) and user.uid != 0:
        raise NotPermitted("only uid 0 makes device nodes")
    _new_names(view, user, command.parent, (command.name,))


def _link(view: View, user: User, command: commands.Link) -> None:
    """As with protected_hardlinks of Linux: somebody else's file gets another name only from who may write it."""
    inode = reach(view, user, command.inode)
    _new_names(view, user, command.parent, (command.name,))
    if user.uid not in (0, inode.uid) and not (
        inode.is_regular and not inode.mode & stat.S_ISUID and allows(inode, user, READ | WRITE)
    ):
        raise NotPermitted(f"inode {command.inode} belongs to uid {inode.uid}; uid {user.uid} may not link it")


def _unlink_many(view: View, user: User, command: commands.UnlinkMany | commands.EvictMany) -> None:
    for name in command.names:
        _removable(view, user, command.parent, name)


def _rename(view: View, user: User, command: commands.Rename) -> None:
    _removable(view, user, command.parent, command.name)
    _removable(view, user, command.new_parent, command.new_name)
    if command.parent == command.new_parent:
        return
    moved = [_named(view, command.parent, command.name)]
    if command.flags == commands.RENAME_EXCHANGE:
        moved.append(_named(view, command.new_parent, command.new_name))
    for inode in moved:  # its ".." changes
        if inode is not None and inode.is_directory:
            need(inode, user, WRITE, f"move directory {command.name!r}")


def _setattr(view: View, user: User, command: commands.Setattr) -> None:
    inode = reach(view, user, command.inode)
    what = f"change inode {command.inode}"
    if command.uid is not None and user.uid != 0 and not (command.uid == inode.uid == user.uid):
        raise NotPermitted(f"only uid 0 gives files away: inode {command.inode}")
    if command.gid is not None and user.uid != 0 and command.gid not in (inode.gid, user.gid):
        raise NotPermitted(f"uid {user.uid} is not in group {command.gid}")
    if any(each is not None for each in (command.mode, command.gid, command.atime_ns, command.mtime_ns)):
        need_owner(inode, user, what)
    if command.size_bytes is not None:
        need(inode, user, WRITE, f"truncate inode {command.inode}")


def _set_xattr(view: View, user: User, command: commands.SetXattr | commands.RemoveXattr) -> None:
    inode = reach(view, user, command.inode)
    if command.name.startswith(b"user."):
        need(inode, user, WRITE, f"change attributes of inode {command.inode}")
    elif user.uid != 0:  # `trusted.`, `security.`, and our own, by which operators set policy
        raise NotPermitted(f"the attribute {command.name!r} is for operators; users' begin with 'user.'")


def _may_publish(inode: Inode, user: User) -> None:
    if user.uid != inode.uid:
        need(inode, user, WRITE, "write the file")


def _publish(view: View, user: User, item: commands.Publication) -> None:
    _may_publish(reach(view, user, item.inode), user)


def _put_many(view: View, user: User, command: commands.PutMany) -> None:
    _new_names(view, user, command.parent, command.names)
    for name in command.names:
        existing = _named(view, command.parent, name)
        if existing is not None and not command.keep_existing:
            _may_publish(existing, user)


def _report(view: View, user: User, command: commands.ReportBadReplica) -> None:
    """The replica is deleted unseen, so it takes the right to write the file."""
    block = view.find_block(command.block)
    if block is None:
        return
    need(reach(view, user, block.inode), user, WRITE, "have a replica deleted")


def _publish_many(view: View, user: User, command: commands.PublishMany) -> None:
    for item in command.items:
        _publish(view, user, item)


def _nothing(view: View, user: User, command: Any) -> None:
    """Concerns nothing but the client's own blocks."""


_RULES: dict[type[commands.Command], Callable[[View, User, Any], None]] = {
    commands.Create: _create,
    commands.CreateMany: lambda view, user, command: _new_names(view, user, command.parent, command.names),
    commands.Mkdir: lambda view, user, command: _new_names(view, user, command.parent, (command.name,)),
    commands.Mknod: _mknod,
    commands.Symlink: lambda view, user, command: _new_names(view, user, command.parent, (command.name,)),
    commands.Link: _link,
    commands.Unlink: lambda view, user, command: _removable(view, user, command.parent, command.name),
    commands.UnlinkMany: _unlink_many,
    commands.EvictMany: _unlink_many,
    commands.Rmdir: lambda view, user, command: _removable(view, user, command.parent, command.name),
    commands.Rename: _rename,
    commands.Setattr: _setattr,
    commands.SetXattr: _set_xattr,
    commands.RemoveXattr: _set_xattr,
    commands.Allocate: _nothing,
    commands.Discard: _nothing,
    commands.Publish: lambda view, user, command: _publish(view, user, command.item),
    commands.PublishMany: _publish_many,
    commands.PutMany: _put_many,
    commands.ReportBadReplica: _report,
}
