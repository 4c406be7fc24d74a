"""The namespace: names, inodes, and the rules of POSIX for changing them.

Laws:
- ``inode.links`` has one (parent, name) for each dentry of the inode; ``nlink`` is their number, for a directory
  2 + its subdirectories. A directory has one link, the root none.
- ``order`` has one row for each dentry, under its cookie. A name keeps its cookie as long as it exists; cookies are
  never given twice, so a listing that goes on after a cookie misses and repeats nothing that existed all along.
- A new directory has a copy of what its parent asks for the files in it (``directory_policy``).
- The last unlink removes the inode at once and frees its block: who has it open keeps the bytes on the worker.
- A command that fails has changed nothing (the store's step is undone), so rules may be checked and applied in turns.
"""

from __future__ import annotations

import stat

import msgspec

from ..common.errors import (
    Exists,
    HearthError,
    InvalidArgument,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotEmpty,
    NotPermitted,
    TooManyLinks,
)
from ..common.types import NAME_MAX, ROOT_INODE, SYMLINK_MAX
from . import blocks, directory_policy, quotas
from .change import Change, item_errno
from .commands import (
    Create,
    CreateMany,
    Link,
    Mkdir,
    Mknod,
    Rmdir,
    Symlink,
    Unlink,
    UnlinkMany,
)
from .records import Dentry, Inode, Ordered, Reply
from .tables import named, pair

LINK_MAX = 1000
PERMISSIONS = 0o7777
_NODE_TYPES = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)
_replace = msgspec.structs.replace


def check_name(name: bytes) -> None:
    """Raises: NameTooLong, InvalidArgument."""
    if len(name) > NAME_MAX:
        raise NameTooLong(f"name of {len(name)} bytes ({name[:40]!r}…); the limit is {NAME_MAX}")
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise InvalidArgument(f"{name!r} is not a name: 1 to {NAME_MAX} bytes without '/' and NUL, not '.' or '..'")


def make_root(change: Change) -> None:
    now = change.now_ns
    change.put_inode(ROOT_INODE, Inode(stat.S_IFDIR | 0o755, 0, 0, 2, now, now, now))
    change.count.inodes += 1


# ------------------------------------------------------------------ making


def create(change: Change, command: Create) -> Reply:
    """Raises: Exists, IsADirectory, Stale, NotADirectory, QuotaExceeded, and what ``check_name`` raises."""
    check_name(command.name)
    parent = change.directory(command.parent)
    dentry = change.find_dentry(command.parent, command.name)
    if dentry is not None:
        if command.exclusive:
            raise exists(command.parent, command.name)
        number, inode = dentry.inode, change.named_inode(dentry.inode, command.parent, command.name)
        if inode.is_directory:
            raise IsADirectory(f"{command.name!r} in directory {command.parent} is a directory")
    else:
        mode = stat.S_IFREG | command.mode & PERMISSIONS
        quotas.check_room(change, parent.quota, 1)
        number, inode = make(change, command.parent, parent, command.name, mode, command.uid, command.gid)
        touch_directory(change, command.parent, parent)
    working = (blocks.allocate_one(change, command.worker_id),) if command.worker_id else ()
    return Reply(inode=number, attributes=inode, blocks=working, existed=dentry is not None)


def create_many(change: Change, command: CreateMany) -> Reply:
    """One errno and one inode for each name. Raises: Stale, NotADirectory."""
    parent = change.directory(command.parent)
    mode = stat.S_IFREG | command.mode & PERMISSIONS
    errnos, numbers, made = [], [], False
    for name in command.names:
        number = 0
        try:
            check_name(name)
            dentry = change.find_dentry(command.parent, name)
            if dentry is None:
                quotas.check_room(change, parent.quota, 1)
                number, _ = make(change, command.parent, parent, name, mode, command.uid, command.gid)
                made = True
            elif command.exclusive:
                raise exists(command.parent, name)
            elif change.named_inode(dentry.inode, command.parent, name).is_directory:
                raise IsADirectory(f"{name!r} is a directory")
            else:
                number = dentry.inode
            errnos.append(0)
        except HearthError as error:
            errnos.append(item_errno(error))
        numbers.append(number)
    if made:
        touch_directory(change, command.parent, parent)
    return Reply(errnos=tuple(errnos), inodes=tuple(numbers))


def mkdir(change: Change, command: Mkdir) -> Reply:
    parent = _free_name(change, command.parent, command.name)
    mode = stat.S_IFDIR | command.mode & PERMISSIONS | parent.mode & stat.S_ISGID
    number, inode = make(change, command.parent, parent, command.name, mode, command.uid, command.gid)
    for name, value in directory_policy.inherited(change.xattrs(command.parent)).items():
        change.txn.put("xattrs", named(number, name), value)
    touch_directory(change, command.parent, parent, subdirectories=1)
    return Reply(inode=number, attributes=inode)


def mknod(change: Change, command: Mknod) -> Reply:
    parent = _free_name(change, command.parent, command.name)
    kind = stat.S_IFMT(command.mode) or stat.S_IFREG
    if kind not in _NODE_TYPES:
        raise InvalidArgument(f"mknod cannot make a node of mode {command.mode:o}")
    mode = kind | command.mode & PERMISSIONS
    rdev = command.rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
    number, inode = make(change, command.parent, parent, command.name, mode, command.uid, command.gid, rdev=rdev)
    touch_directory(change, command.parent, parent)
    return Reply(inode=number, attributes=inode)


def symlink(change: Change, command: Symlink) -> Reply:
    parent = _free_name(change, command.parent, command.name)
    if len(command.target) > SYMLINK_MAX:
        raise NameTooLong(f"symlink target of {len(command.target)} bytes; the limit is {SYMLINK_MAX}")
    if not command.target or b"\0" in command.target:
        raise InvalidArgument("a symlink's target is empty or has a NUL")
    mode = stat.S_IFLNK | 0o777
    number, inode = make(
        change, command.parent, parent, command.name, mode, command.uid, command.gid, target=command.target
    )
    touch_directory(change, command.parent, parent)
    return Reply(inode=number, attributes=inode)


def _free_name(change: Change, directory: int, name: bytes) -> Inode:
    """The directory's inode. Raises: Exists, and what a bad name or directory raises."""
    check_name(name)
    parent = change.directory(directory)
    if change.find_dentry(directory, name) is not None:
        raise exists(directory, name)
    return parent


def exists(directory: int, name: bytes) -> Exists:
    return Exists(f"{name!r} exists in directory {directory}")


def make(
    change: Change,
    directory: int,
    parent: Inode,
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    *,
    rdev: int = 0,
    target: bytes = b"",
    depth: int = 0,
) -> tuple[int, Inode]:
    """A new inode under a free name; the caller touches the directory. In a setgid directory the group is inherited."""
    number, now = change.next_inode(), change.now_ns
    inode = Inode(
        mode=mode,
        uid=uid,
        gid=parent.gid if parent.mode & stat.S_ISGID else gid,
        nlink=2 if stat.S_ISDIR(mode) else 1,
        atime_ns=now,
        mtime_ns=now,
        ctime_ns=now,
        size_bytes=len(target),
        rdev=rdev,
        target=target,
        links=((directory, name),),
        depth=depth,
        quota=parent.quota,
    )
    change.put_inode(number, inode)
    change.count.inodes += 1
    put_dentry(change, directory, name, number, stat.S_IFMT(mode), change.next_cookie())
    change.touch_name(directory, name)
    return number, inode


def put_dentry(change: Change, directory: int, name: bytes, number: int, kind: int, cookie: int) -> None:
    change.put("dentries", named(directory, name), Dentry(number, cookie))
    change.put("order", pair(directory, cookie), Ordered(name, number, kind))


def touch_directory(change: Change, number: int, inode: Inode, subdirectories: int = 0) -> Inode:
    """A name came or went in it: times, and ``nlink`` by the subdirectories gained or lost. What it is now."""
    nlink = inode.nlink + subdirectories
    touched = _replace(inode, mtime_ns=change.now_ns, ctime_ns=change.now_ns, nlink=nlink)
    change.put_inode(number, touched)
    change.touch_inode(number, inode.parents)
    return touched


# ------------------------------------------------------------------ linking and unlinking


def link(change: Change, command: Link) -> Reply:
    """Raises: NotPermitted (a directory), TooManyLinks, CrossDevice (another quota), Exists, Stale, NotADirectory."""
    parent = _free_name(change, command.parent, command.name)
    inode = change.inode(command.inode)
    if inode.is_directory:
        raise NotPermitted(f"inode {command.inode} is a directory; only other files have several names")
    if inode.nlink >= LINK_MAX:
        raise TooManyLinks(f"inode {command.inode} has {inode.nlink} names; the limit is {LINK_MAX}")
    quotas.check_link(inode, parent)
    links = (*inode.links, (command.parent, command.name))
    new = _replace(inode, links=links, nlink=len(links), ctime_ns=change.now_ns)
    change.put_inode(command.inode, new)
    put_dentry(change, command.parent, command.name, command.inode, stat.S_IFMT(inode.mode), change.next_cookie())
    change.touch_name(command.parent, command.name)
    change.touch_inode(command.inode, new.parents)
    touch_directory(change, command.parent, parent)
    return Reply(inode=command.inode, attributes=new)


def unlink(change: Change, command: Unlink) -> Reply:
    """Raises: NotFound, IsADirectory, Stale, NotADirectory."""
    parent = change.directory(command.parent)
    _unlink_one(change, command.parent, command.name)
    return Reply(inode=command.parent, attributes=touch_directory(change, command.parent, parent))


def unlink_many(change: Change, command: UnlinkMany) -> Reply:
    """One errno for each name. Raises: Stale, NotADirectory."""
    parent = change.directory(command.parent)
    errnos = []
    for name in command.names:
        try:
            _unlink_one(change, command.parent, name)
            errnos.append(0)
        except HearthError as error:
            errnos.append(item_errno(error))
    if 0 in errnos:
        touch_directory(change, command.parent, parent)
    return Reply(errnos=tuple(errnos))


def _unlink_one(change: Change, directory: int, name: bytes) -> None:
    check_name(name)
    dentry = change.dentry(directory, name)
    inode = change.named_inode(dentry.inode, directory, name)
    if inode.is_directory:
        raise IsADirectory(f"{name!r} in directory {directory} is a directory; rmdir removes it")
    change.delete_dentry(directory, name, dentry.cookie)
    change.touch_name(directory, name)
    drop_link(change, dentry.inode, inode, (directory, name))


def drop_link(change: Change, number: int, inode: Inode, gone: tuple[int, bytes]) -> None:
    """One name of a file less; with the last the inode goes, and its block."""
    change.touch_inode(number, inode.parents)
    links = tuple(link for link in inode.links if link != gone)
    if links:
        left = _replace(inode, links=links, nlink=len(links), ctime_ns=change.now_ns)
        change.put_inode(number, left)
        for extent in left.extents:  # the name that it lost may have been what kept it from being evicted
            change.stored(left, extent, extent.workers, quotas.chain(change, left.quota))
        return
    blocks.free_extents(change, inode)
    change.delete_inode(number)


def rmdir(change: Change, command: Rmdir) -> Reply:
    """Raises: NotFound, NotADirectory, NotEmpty, Stale."""
    check_name(command.name)
    parent = change.directory(command.parent)
    dentry = change.dentry(command.parent, command.name)
    inode = change.named_inode(dentry.inode, command.parent, command.name)
    if not inode.is_directory:
        raise NotADirectory(f"{command.name!r} in directory {command.parent} is not a directory; unlink removes it")
    remove_empty(change, dentry.inode, inode)
    change.delete_dentry(command.parent, command.name, dentry.cookie)
    change.touch_name(command.parent, command.name)
    touched = touch_directory(change, command.parent, parent, subdirectories=-1)
    return Reply(inode=command.parent, attributes=touched)


def remove_empty(change: Change, number: int, inode: Inode) -> None:
    if not change.is_empty(number):
        raise NotEmpty(f"directory {number} is not empty")
    quotas.directory_removed(change, number, inode)
    change.touch_inode(number, inode.parents)
    change.delete_inode(number)
