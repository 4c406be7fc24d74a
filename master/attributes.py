"""Attributes and extended attributes of inodes."""

from __future__ import annotations

import stat
from typing import Any

import msgspec

from ..common.errors import (
    Exists,
    FileTooBig,
    InvalidArgument,
    IsADirectory,
    NameTooLong,
    NoAttribute,
    NoSpace,
    TooBig,
)
from ..common.types import FILE_MAX_BYTES, XATTR_NAME_MAX, XATTR_VALUE_MAX_BYTES
from . import blocks, directory_policy, quotas
from .change import Change
from .commands import XATTR_CREATE, XATTR_REPLACE, RemoveXattr, Setattr, SetXattr
from .directory_policy import policy_of
from .namespace import PERMISSIONS
from .records import Inode, Reply
from .tables import named

XATTRS_MAX = 128
XATTRS_MAX_BYTES = 1 << 20
TIME_MAX_NS = (1 << 63) - 1


def setattr_(change: Change, command: Setattr) -> Reply:
    """chmod, chown, utimens and truncate in one.

    Raises:
        Stale, IsADirectory, InvalidArgument, FileTooBig.
    """
    inode = change.inode(command.inode)
    new: dict[str, Any] = {"ctime_ns": change.now_ns}
    if command.mode is not None:
        new["mode"] = stat.S_IFMT(inode.mode) | command.mode & PERMISSIONS
    for field in ("uid", "gid", "atime_ns", "mtime_ns"):
        value = getattr(command, field)
        if value is not None:
            new[field] = value
    if command.size_bytes is not None:
        new = _truncated(change, command.inode, inode, command.size_bytes) | new
    changed = msgspec.structs.replace(inode, **new)
    change.put_inode(command.inode, changed)
    change.touch_inode(command.inode, changed.parents, content=command.size_bytes is not None)
    return Reply(inode=command.inode, attributes=changed)


def _truncated(change: Change, number: int, inode: Inode, size_bytes: int) -> dict[str, Any]:
    """Only numbers change: what lies beyond ``valid_bytes`` reads as zeros. A block without valid bytes is freed."""
    if inode.is_directory:
        raise IsADirectory(f"inode {number} is a directory; it has no size to set")
    if not inode.is_regular:
        raise InvalidArgument(f"inode {number} is not a regular file; it has no size to set")
    if size_bytes > FILE_MAX_BYTES:
        raise FileTooBig(f"a file of {size_bytes} bytes; the limit is {FILE_MAX_BYTES}")
    extents = inode.extents
    if extents and not size_bytes:
        blocks.free_extents(change, inode)
        extents = ()
    elif extents:
        valid = min(extents[0].valid_bytes, size_bytes)
        extents = (msgspec.structs.replace(extents[0], valid_bytes=valid),)
    return {
        "size_bytes": size_bytes,
        "extents": extents,
        "version": inode.version + 1,
        "mtime_ns": change.now_ns,
    }


def set_xattr(change: Change, command: SetXattr) -> Reply:
    """setxattr(2). Names are UTF-8, because they cross the wire as text.

    Raises:
        Exists (CREATE), NoAttribute (REPLACE), NoSpace (too many, too much), TooBig (one value), NameTooLong,
        InvalidArgument, Stale.
    """
    inode, name = change.inode(command.inode), directory_policy.canonical(command.name)
    _check_xattr(name, command.value, command.flags)
    directory_policy.check(name, command.value, is_directory=inode.is_directory)
    present = change.xattrs(command.inode)
    if name in present and command.flags == XATTR_CREATE:
        raise Exists(f"inode {command.inode} has the attribute {name!r}")
    if name not in present and command.flags == XATTR_REPLACE:
        raise NoAttribute(f"inode {command.inode} has no attribute {name!r}")
    present[name] = command.value
    if len(present) > XATTRS_MAX or sum(map(len, present.values())) > XATTRS_MAX_BYTES:
        raise NoSpace(f"inode {command.inode}: at most {XATTRS_MAX} attributes, {XATTRS_MAX_BYTES} bytes together")
    change.txn.put("xattrs", named(command.inode, name), command.value)
    if name == directory_policy.QUOTA:
        inode = quotas.limit(change, command.inode, inode, policy_of(present).quota_bytes)
    return _changed(change, command.inode, inode)


def remove_xattr(change: Change, command: RemoveXattr) -> Reply:
    """Raises: NoAttribute, Stale, NameTooLong, InvalidArgument."""
    inode, name = change.inode(command.inode), directory_policy.canonical(command.name)
    _check_xattr(name, b"", 0)
    if not change.delete("xattrs", named(command.inode, name)):
        raise NoAttribute(f"inode {command.inode} has no attribute {name!r}")
    if name == directory_policy.QUOTA:
        inode = quotas.limit(change, command.inode, inode, 0)
    return _changed(change, command.inode, inode)


def _check_xattr(name: bytes, value: bytes, flags: int) -> None:
    if len(name) > XATTR_NAME_MAX:
        raise NameTooLong(f"attribute name of {len(name)} bytes; the limit is {XATTR_NAME_MAX}")
    if len(value) > XATTR_VALUE_MAX_BYTES:
        raise TooBig(f"attribute value of {len(value)} bytes; the limit is {XATTR_VALUE_MAX_BYTES}")
    if flags not in (0, XATTR_CREATE, XATTR_REPLACE):
        raise InvalidArgument(f"setxattr flags {flags} are not supported")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text:
        raise InvalidArgument(f"{name!r} is not an attribute name: UTF-8 without NUL")


def _changed(change: Change, number: int, inode: Inode) -> Reply:
    new = msgspec.structs.replace(inode, ctime_ns=change.now_ns)
    change.put_inode(number, new)
    change.touch_inode(number, new.parents)
    return Reply(inode=number, attributes=new)
