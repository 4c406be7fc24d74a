"""Files: attributes, content, extended attributes."""

from __future__ import annotations

import errno
import stat
import time
from collections.abc import Mapping, Sequence

import pyfuse3

from ..common.errors import IsADirectory, NotFound, Stale
from ..common.types import NAME_MAX
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from . import cluster_file
from .cluster_file import ClusterFile
from .files import Files
from .handler import handler
from .relay import wire
from .tree import FileNode, Tree

STATFS_S = 1.0
STATFS_KEPT = 64
STATFS_BLOCK_BYTES = 4096
FREE_INODES = 1 << 40
_CAPABILITY = b"security.capability"


class FileOperations(pyfuse3.Operations):  # type: ignore[misc]  # pyfuse3 is not checked
    tree: Tree
    files: Files
    cluster_file: ClusterFile

    def __init__(self) -> None:
        super().__init__()
        self._statfs: dict[int, tuple[float, pb.StatfsReply]] = {}

    # -- attributes

    @handler
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        if self.cluster_file.owns(inode):
            return self.cluster_file.attributes(inode)
        node = self.tree.node(inode)
        await self.tree.last_seen(node)
        return self.tree.reply(node)

    @handler
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        if self.cluster_file.owns(inode):
            raise pyfuse3.FUSEError(errno.EPERM)
        node = self.tree.node(inode)
        if fields.update_size:
            async with self.files.resizing(node, by_handle=fh is not None):
                return await self._change(node, attr, fields, fh)
        return await self._change(node, attr, fields, fh)

    async def _change(
        self, node: FileNode, attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields, fh: int | None
    ) -> pyfuse3.EntryAttributes:
        change = pb.Setattr(inode=node.inode)
        if fields.update_size and not await self.files.truncate(node, attr.st_size, by_handle=fh is not None):
            change.size_bytes = attr.st_size
        if fields.update_mode:
            change.mode = stat.S_IMODE(attr.st_mode)
        if fields.update_uid:
            change.uid = attr.st_uid
        if fields.update_gid:
            change.gid = attr.st_gid
        if fields.update_atime:
            change.atime_ns = attr.st_atime_ns
        if fields.update_mtime:
            change.mtime_ns = attr.st_mtime_ns
            content = node.content if node.opens else None
            if content is not None:
                content.set_mtime(attr.st_mtime_ns)
        await self._set(node, change)
        return self.tree.reply(node)

    async def _set(self, node: FileNode, change: pb.Setattr) -> None:
        if change.ByteSize() == pb.Setattr(inode=node.inode).ByteSize():
            await self.tree.entry(node)
            return
        if node.orphan and node.entry is not None:
            _set_privately(node.entry, change)
            return
        token = self.tree.cache.token()
        try:
            reply = await self.tree.link.mutate(pb.MutateRequest(setattr=change))
        except (NotFound, Stale):
            if not node.opens or node.entry is None:
                raise
            self.tree.table.orphaned(node)  # another client took its last name
            if change.HasField("size_bytes"):
                await self.files.truncate(node, change.size_bytes, by_handle=True)
            _set_privately(node.entry, change)
            return
        self.tree.cache.modified(token, reply.entry)
        node.entry = reply.entry
        if change.HasField("size_bytes"):
            self.files.resized(node, reply.entry)
        current = self.tree.table.current(node.inode)
        if current is not None and current is not node:
            await self.tree.renew(current)

    @handler
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        entry = await self.tree.entry(self.tree.node(inode))
        return entry.symlink_target

    @handler
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """The kernel checks permissions itself (default_permissions) and does not ask."""
        return True

    @handler
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        nodeid = wire.inode_asked(ctx.uid, ctx.gid, ctx.pid)
        inode = self.tree.inode(nodeid) if nodeid and not self.cluster_file.owns(nodeid) else 0
        now = time.monotonic()
        known_s, known = self._statfs.get(inode, (float("-inf"), pb.StatfsReply()))
        if now - known_s > STATFS_S:
            known = await self.tree.link.read("Statfs", pb.StatfsRequest(inode=inode))
            if len(self._statfs) >= STATFS_KEPT:
                self._statfs.clear()
            self._statfs[inode] = (now, known)
        out = pyfuse3.StatvfsData()
        out.f_bsize = out.f_frsize = STATFS_BLOCK_BYTES
        out.f_blocks = known.total_bytes // STATFS_BLOCK_BYTES
        out.f_bfree = out.f_bavail = known.available_bytes // STATFS_BLOCK_BYTES
        out.f_files = known.inodes + FREE_INODES
        out.f_ffree = out.f_favail = FREE_INODES
        out.f_namemax = NAME_MAX
        return out

    # -- content

    @handler
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if inode == cluster_file.FILE_NODE:
            return pyfuse3.FileInfo(fh=cluster_file.HANDLE, direct_io=True, keep_cache=False)
        node = self.tree.node(inode)
        entry = node.entry
        if entry is not None and stat.S_ISDIR(entry.attributes.mode):
            raise IsADirectory(f"inode {inode} is a directory")
        return await self.files.open(node, flags)

    @handler
    async def read(self, fh: int, off: int, size: int) -> bytes | memoryview:
        if fh == cluster_file.HANDLE:
            return self.cluster_file.content()[off : off + size]
        return await self.files.read(fh, off, size)

    @handler
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return await self.files.write(fh, off, buf)

    @handler
    async def flush(self, fh: int) -> None:
        if fh != cluster_file.HANDLE:
            await self.files.publish(self.files.node(fh))

    @handler
    async def fsync(self, fh: int, datasync: bool) -> None:
        if fh != cluster_file.HANDLE:
            await self.files.fsync(self.files.node(fh))

    @handler
    async def release(self, fh: int) -> None:
        if fh != cluster_file.HANDLE:
            await self.files.release(fh)

    # -- extended attributes

    async def _xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        if self.cluster_file.owns(inode):
            return {}
        node = self.tree.node(inode)
        known = self.tree.cache.xattrs(node.inode)
        if known is not None:
            return known
        if node.orphan:
            return {}
        token = self.tree.cache.token()
        reply = await self.tree.link.read("GetXattrs", pb.GetXattrsRequest(inode=node.inode))
        xattrs = {name.encode(errors="surrogateescape"): value for name, value in reply.xattrs.items()}
        self.tree.cache.read_xattrs(token, node.inode, xattrs)
        return xattrs

    @handler
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if name == _CAPABILITY:  # asked at each first write into a file
            raise pyfuse3.FUSEError(errno.ENODATA)
        _refuse_system(name)
        known = await self._xattrs(inode)
        value = known.get(name.removeprefix(b"user.") if name.startswith(b"user.hearth.") else name)
        if value is None:
            raise pyfuse3.FUSEError(errno.ENODATA)
        return value

    @handler
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return sorted(await self._xattrs(inode))

    @handler
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        if inode == pyfuse3.ROOT_INODE and name == b"fuse_stacktrace":
            self.stacktrace()
            return
        _refuse_system(name)
        node = self._real(inode)
        change = pb.SetXattr(inode=node.inode, name=name, value=value)
        await self._change_xattr(node, pb.MutateRequest(set_xattr=change))

    @handler
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        _refuse_system(name)
        node = self._real(inode)
        change = pb.RemoveXattr(inode=node.inode, name=name)
        await self._change_xattr(node, pb.MutateRequest(remove_xattr=change))

    def _real(self, inode: int) -> FileNode:
        if self.cluster_file.owns(inode):
            raise pyfuse3.FUSEError(errno.EPERM)
        return self.tree.node(inode)

    async def _change_xattr(self, node: FileNode, request: pb.MutateRequest) -> None:
        token = self.tree.cache.token()
        reply = await self.tree.link.mutate(request)
        self.tree.cache.changed(node.inode)
        if reply.HasField("entry"):
            self.tree.cache.modified(token, reply.entry)


def _refuse_system(name: bytes) -> None:
    """POSIX ACLs and capabilities are not kept: saying so is better than keeping what nobody enforces."""
    if name.startswith(b"system.") or name == _CAPABILITY:
        raise pyfuse3.FUSEError(errno.EOPNOTSUPP)


def _set_privately(entry: common.Entry, change: pb.Setattr) -> None:
    """A file without a name: the master has forgotten it, those who have it open go on."""
    known = entry.attributes
    if change.HasField("mode"):
        known.mode = stat.S_IFMT(known.mode) | change.mode
    if change.HasField("uid"):
        known.uid = change.uid
    if change.HasField("gid"):
        known.gid = change.gid
    if change.HasField("atime_ns"):
        known.atime_ns = change.atime_ns
    if change.HasField("mtime_ns"):
        known.mtime_ns = change.mtime_ns
    known.ctime_ns = time.time_ns()
