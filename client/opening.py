"""From a path and a mode to a file object."""

from __future__ import annotations

import os
import stat
from typing import IO, Any

from ..common.errors import Exists, InvalidArgument, IsADirectory, NotFound, SymlinkLoop
from ..common.types import ROOT_INODE, SYMLINKS_MAX
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from . import paths
from .core import Core, process_umask
from .deadline import Deadline
from .draft_file import DraftFile, Place
from .file import HearthFile, wrap
from .layout import version_of
from .open_version import OpenVersion
from .paths import Path


def open_file(
    core: Core,
    path: Path,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    permissions: int,
    timeout_s: float | None,
) -> IO[Any]:
    """
    Raises:
        NotFound, Exists (mode x), IsADirectory, InvalidArgument (mode, or not a regular file), Unavailable.
    """
    kind, plus, text = _parse(mode)
    if not text and (encoding is not None or errors is not None or newline is not None):
        raise InvalidArgument(f"encoding, errors and newline are for text; mode {mode!r} is binary")
    deadline = core.deadline(timeout_s)
    normal = paths.normalise(path)
    shown = paths.decode(normal)
    if kind == "r" and not plus:
        version = _open_version(core, core.metadata.resolve(normal, deadline, access=os.R_OK), shown, deadline)
        raw = HearthFile(core, shown, mode, version=version, timeout_s=timeout_s)
    else:
        draft = _open_draft(core, normal, kind, permissions, deadline, random_access=plus or kind in "ra")
        raw = HearthFile(core, shown, mode, draft=draft, readable=plus, append=kind == "a", timeout_s=timeout_s)
    try:
        return wrap(raw, mode, buffering, encoding, errors, newline)
    except BaseException:
        raw.abort()
        raw.close()
        raise


def _parse(mode: str) -> tuple[str, bool, bool]:
    """(kind, plus, text).

    >>> _parse("r+b")
    ('r', True, False)
    """
    flags = set(mode)
    kinds = flags & set("rwax")
    if len(flags) != len(mode) or flags - set("rwaxbt+") or len(kinds) != 1 or {"b", "t"} <= flags:
        raise InvalidArgument(f"mode {mode!r}: use one of r, w, a, x, then + or not, then b or t")
    return kinds.pop(), "+" in flags, "b" not in flags


def _open_version(core: Core, entry: common.Entry, shown: str, deadline: Deadline) -> OpenVersion:
    _need_file(entry, shown)
    version = version_of(entry)
    return core.open_version(version, deadline)


def _need_file(entry: common.Entry, shown: str) -> None:
    if stat.S_ISDIR(entry.attributes.mode):
        raise IsADirectory(f"{shown!r} is a directory")
    if not stat.S_ISREG(entry.attributes.mode):
        raise InvalidArgument(f"{shown!r} is not a regular file")


def _open_draft(
    core: Core, path: bytes, kind: str, permissions: int, deadline: Deadline, *, random_access: bool
) -> DraftFile:
    shown = paths.decode(path)
    needed = os.W_OK | (os.R_OK if kind in "ra" else 0)
    if kind == "x":
        if _find(core, path, deadline, needed) is not None:
            raise Exists(f"{shown!r} exists")
        place = _place(core, path, permissions, deadline)
        made = _create(core, place, deadline)
        return DraftFile(core, made.attributes.inode, place, None, random_access=random_access, made_now=True)
    path, entry = _follow(core, path, deadline, needed)
    if kind == "r" and entry is None:
        raise NotFound(f"{shown!r} does not exist")
    if entry is not None:
        _need_file(entry, shown)
        inode = entry.attributes.inode
        if kind in "ra":
            base = _open_version(core, entry, shown, deadline)
            return DraftFile(core, inode, None, base, random_access=True)
        return DraftFile(core, inode, _place(core, path, permissions, deadline), None, random_access=random_access)
    return DraftFile(core, 0, _place(core, path, permissions, deadline), None, random_access=random_access)


def _follow(core: Core, path: bytes, deadline: Deadline, access: int) -> tuple[bytes, common.Entry | None]:
    """Where the symlinks at the end of a path lead, and what is there: a file made through one gets its target's name.

    Raises: SymlinkLoop.
    """
    for _ in range(SYMLINKS_MAX + 1):
        entry = _find(core, path, deadline, access)
        if entry is None or not stat.S_ISLNK(entry.attributes.mode):
            return path, entry
        directory, _name = paths.split(path)
        path = paths.normalise(os.path.join(directory, entry.symlink_target))
    raise SymlinkLoop(f"{paths.decode(path)!r}: more than {SYMLINKS_MAX} symlinks")


def _find(core: Core, path: bytes, deadline: Deadline, access: int) -> common.Entry | None:
    """What has the name, be it a symlink."""
    try:
        return core.metadata.resolve(path, deadline, follow=False, access=access)
    except NotFound:
        return None


def _place(core: Core, path: bytes, permissions: int, deadline: Deadline) -> Place:
    parent_path, name = paths.split(path)
    parent = ROOT_INODE if parent_path == b"/" else core.metadata.resolve(parent_path, deadline).attributes.inode
    return Place(parent, name, permissions & ~process_umask(), os.geteuid(), os.getegid())


def _create(core: Core, place: Place, deadline: Deadline) -> common.Entry:
    made = pb.Create(
        parent=place.parent, name=place.name, mode=place.mode, uid=place.uid, gid=place.gid, exclusive=True
    )
    return core.metadata.mutate(pb.MutateRequest(create=made), deadline).entry
