"""Operations on paths: every one a call or two to the master, no bytes of files."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from ..common.errors import Exists, InvalidArgument, NoAttribute, NotADirectory, NotFound, SymlinkLoop
from ..common.types import ROOT_INODE, XATTR_VALUE_MAX_BYTES
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from . import paths
from .core import Core, process_umask
from .layout import Replica, version_of
from .paths import Name, Path
from .records import DirEntry, Space, Stat, entry_of, stat_of

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def own_attribute(name: str) -> str:
    """What HearthFS keeps an attribute under: its own can be said as one of users, for tools that know no others.

    >>> own_attribute("user.hearth.cache"), own_attribute("user.colour")
    ('hearth.cache', 'user.colour')
    """
    return name.removeprefix("user.") if name.startswith("user.hearth.") else name


class Names:
    """The part of the client that is about names and attributes. Thread-safe.

    Each method raises what its namesake in ``os`` would, from the family in ``common.errors``, and
    Unavailable or DeadlineExceeded when the master could not be reached within the client's timeout.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    # -- looking

    def entry(self, path: Path, *, follow: bool = True) -> common.Entry:
        """What the master has about a path."""
        return self._core.metadata.resolve(paths.normalise(path), self._core.deadline(), follow=follow)

    def stat(self, path: Path) -> Stat:
        return stat_of(self.entry(path).attributes)

    def lstat(self, path: Path) -> Stat:
        return stat_of(self.entry(path, follow=False).attributes)

    def locate(self, path: Path) -> tuple[Replica, ...]:
        """The workers that have the file's bytes; none for an empty file, or when it is unavailable."""
        return version_of(self.entry(path)).replicas

    def exists(self, path: Path) -> bool:
        return self._kind(path) is not None

    def isdir(self, path: Path) -> bool:
        return self._kind(path) == stat.S_IFDIR

    def isfile(self, path: Path) -> bool:
        return self._kind(path) == stat.S_IFREG

    def _kind(self, path: Path) -> int | None:
        try:
            return stat.S_IFMT(self.stat(path).st_mode)
        except (NotFound, NotADirectory, SymlinkLoop):
            return None

    def statvfs(self, path: Path | None = None) -> Space:
        """Of the cluster, or what it is for somebody who writes at ``path``, where a quota may hold."""
        inode = 0 if path is None else self.entry(path).attributes.inode
        reply = self._core.metadata.statfs(self._core.deadline(), inode)
        return Space(reply.total_bytes, reply.available_bytes, reply.used_bytes, reply.inodes, reply.blocks)

    # -- listing

    def scandir(self, path: Path) -> Iterator[DirEntry]:
        """Entries with their attributes, without ``.`` and ``..``, fetched page by page while they are consumed. An
        entry that is there all along comes exactly once.

        Raises:
            NotADirectory, NotFound: at the first entry.
        """
        directory = paths.normalise(path)
        for entry in self._list(directory, want_entries=True):
            yield entry_of(directory, entry)

    def listdir(self, path: Path) -> list[str]:
        return [paths.decode(entry.name) for entry in self._list(paths.normalise(path), want_entries=False)]

    def _list(self, directory: bytes, *, want_entries: bool) -> Iterator[pb.DirectoryEntry]:
        core = self._core
        inode = self.directory(directory)
        return core.metadata.readdir(inode, core.settings.page_entries, core.deadline, want_entries=want_entries)

    def walk(self, top: Path) -> Iterator[tuple[str, list[DirEntry], list[DirEntry]]]:
        """(path, directories, others) from the top down; symlinks are not followed. The caller may remove items of
        the list of directories to leave them out."""
        pending = [paths.decode(paths.normalise(top))]
        while pending:
            path = pending.pop()
            entries = list(self.scandir(path))
            directories = [entry for entry in entries if entry.is_dir()]
            yield path, directories, [entry for entry in entries if not entry.is_dir()]
            pending.extend(entry.path for entry in reversed(directories))

    # -- making and removing names

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        parent, name = self._parent(path)
        self._mkdir(parent, name, mode)

    def _mkdir(self, parent: int, name: bytes, mode: int) -> common.Entry:
        mode &= ~process_umask()
        made = pb.Mkdir(parent=parent, name=name, mode=mode, uid=os.geteuid(), gid=os.getegid())
        return self._mutate(pb.MutateRequest(mkdir=made)).entry

    def makedirs(self, path: Path, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """Raises: Exists: the directory is there and ``exist_ok`` is false, or something else is."""
        if not self._directory(path, mode) and not exist_ok:
            raise Exists(f"{paths.decode(paths.normalise(path))!r} exists")

    def _directory(self, path: Path, mode: int = 0o777) -> bool:
        """Makes what is missing; True: the last directory was made now."""
        normal = paths.normalise(path)
        try:
            self._need_directory(self.entry(normal), normal)
            return False
        except NotFound:
            pass
        parent_path, name = paths.split(normal)
        self._directory(parent_path)
        try:
            self._mkdir(self.entry(parent_path).attributes.inode, name, mode)
        except Exists:  # somebody else was faster
            self._need_directory(self.entry(normal), normal)
            return False
        return True

    @staticmethod
    def _need_directory(entry: common.Entry, path: bytes) -> None:
        if not stat.S_ISDIR(entry.attributes.mode):
            raise Exists(f"{paths.decode(path)!r} exists and is not a directory")

    def directory(self, path: Path) -> int:
        """The inode of an existing directory. Raises: NotFound, NotADirectory."""
        normal = paths.normalise(path)
        if normal == b"/":
            return ROOT_INODE
        attributes = self.entry(normal).attributes
        if not stat.S_ISDIR(attributes.mode):
            raise NotADirectory(f"{paths.decode(normal)!r} is not a directory")
        return attributes.inode

    def need_directory(self, path: Path) -> int:
        """The same, made with its parents when it is missing."""
        try:
            return self.directory(path)
        except NotFound:
            self.makedirs(path, exist_ok=True)
            return self.directory(path)

    def rmdir(self, path: Path) -> None:
        parent, name = self._parent(path)
        self._mutate(pb.MutateRequest(rmdir=pb.Rmdir(parent=parent, name=name)))

    def remove(self, path: Path) -> None:
        parent, name = self._parent(path)
        self._mutate(pb.MutateRequest(unlink=pb.Unlink(parent=parent, name=name)))

    unlink = remove

    def rename(self, source: Path, target: Path, flags: int = 0) -> None:
        """In one step; an existing target is replaced unless ``flags`` (RENAME_NOREPLACE, RENAME_EXCHANGE) say
        otherwise."""
        parent, name = self._parent(source)
        new_parent, new_name = self._parent(target)
        self._mutate(
            pb.MutateRequest(
                rename=pb.Rename(parent=parent, name=name, new_parent=new_parent, new_name=new_name, flags=flags)
            )
        )

    replace = rename

    def link(self, source: Path, target: Path) -> None:
        inode = self.entry(source, follow=False).attributes.inode
        parent, name = self._parent(target)
        self._mutate(pb.MutateRequest(link=pb.Link(inode=inode, parent=parent, name=name)))

    def symlink(self, text: Name, path: Path) -> None:
        """``path`` becomes a symlink that says ``text``."""
        parent, name = self._parent(path)
        made = pb.Symlink(parent=parent, name=name, target=paths.encode(text), uid=os.geteuid(), gid=os.getegid())
        self._mutate(pb.MutateRequest(symlink=made))

    def readlink(self, path: Path) -> str:
        entry = self.entry(path, follow=False)
        if not stat.S_ISLNK(entry.attributes.mode):
            raise InvalidArgument(f"{paths.decode(paths.normalise(path))!r} is not a symlink")
        return paths.decode(entry.symlink_target)

    # -- changing attributes

    def chmod(self, path: Path, mode: int) -> None:
        self._setattr(path, pb.Setattr(mode=stat.S_IMODE(mode)))

    def chown(self, path: Path, uid: int, gid: int) -> None:
        """-1: unchanged."""
        self._setattr(path, pb.Setattr(uid=uid if uid >= 0 else None, gid=gid if gid >= 0 else None))

    def utime(self, path: Path, times: tuple[float, float] | None = None, *, ns: tuple[int, int] | None = None) -> None:
        """Access and modification time, in seconds or in ``ns``; neither: now."""
        if ns is None:
            ns = (int(times[0] * 1e9), int(times[1] * 1e9)) if times else (time.time_ns(),) * 2
        self._setattr(path, pb.Setattr(atime_ns=ns[0], mtime_ns=ns[1]))

    def truncate(self, path: Path, size_bytes: int) -> None:
        if size_bytes < 0:
            raise InvalidArgument(f"cannot truncate to {size_bytes} bytes")
        self._setattr(path, pb.Setattr(size_bytes=size_bytes))

    def _setattr(self, path: Path, change: pb.Setattr) -> None:
        change.inode = self.entry(path).attributes.inode
        self._mutate(pb.MutateRequest(setattr=change))

    # -- extended attributes

    def listxattr(self, path: Path) -> list[str]:
        return sorted(self._xattrs(path))

    def getxattr(self, path: Path, name: Name) -> bytes:
        """Raises: NoAttribute."""
        wanted = own_attribute(paths.decode(paths.encode(name)))
        try:
            return self._xattrs(path)[wanted]
        except KeyError:
            raise NoAttribute(f"{paths.decode(paths.normalise(path))!r} has no attribute {wanted!r}") from None

    def _xattrs(self, path: Path) -> dict[str, bytes]:
        inode = self.entry(path).attributes.inode
        return self._core.metadata.xattrs(inode, self._core.deadline())

    def setxattr(self, path: Path, name: Name, value: bytes, flags: int = 0) -> None:
        """``flags``: os.XATTR_CREATE, os.XATTR_REPLACE. Raises: Exists, NoAttribute, TooBig."""
        if len(value) > XATTR_VALUE_MAX_BYTES:
            raise InvalidArgument(f"value of {len(value)} bytes for {name!r}; at most {XATTR_VALUE_MAX_BYTES}")
        inode = self.entry(path).attributes.inode
        change = pb.SetXattr(inode=inode, name=paths.encode(name), value=value, flags=flags)
        self._mutate(pb.MutateRequest(set_xattr=change))

    def removexattr(self, path: Path, name: Name) -> None:
        """Raises: NoAttribute."""
        change = pb.RemoveXattr(inode=self.entry(path).attributes.inode, name=paths.encode(name))
        self._mutate(pb.MutateRequest(remove_xattr=change))

    # -- how

    def _parent(self, path: Path) -> tuple[int, bytes]:
        """The parent directory's inode, and the name in it."""
        parent, name = paths.split(path)
        return (ROOT_INODE if parent == b"/" else self.entry(parent).attributes.inode), name

    def _mutate(self, request: pb.MutateRequest) -> pb.MutateReply:
        return self._core.metadata.mutate(request, self._core.deadline())
