"""Names: looking up, making, removing, renaming, listing."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Sequence

import pyfuse3

from ..common.errors import NotPermitted
from ..common.types import NAME_MAX
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from . import background
from .cluster_file import ClusterFile
from .files import Files
from .handler import handler
from .listing import Listing
from .tree import FileNode, Tree


class NamespaceOperations(pyfuse3.Operations):  # type: ignore[misc]  # pyfuse3 is not checked
    tree: Tree
    files: Files
    cluster_file: ClusterFile
    node_id: str

    def __init__(self) -> None:
        super().__init__()
        self._listings: dict[int, Listing] = {}
        self._listing_numbers = itertools.count(1)

    # -- looking up

    @handler
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        virtual = self.cluster_file.find(parent_inode, name)
        if virtual is not None:
            if virtual and self.cluster_file.owns(virtual):
                return self.cluster_file.attributes(virtual)
            if not virtual:
                raise pyfuse3.FUSEError(errno.ENOENT)
            return self.tree.reply(self.tree.node(virtual))
        if len(name) > NAME_MAX:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        parent = self.tree.node(parent_inode)
        node = await self.tree.lookup(parent, name)
        if node is None:
            return self.tree.negative(parent.inode, name)
        return self.tree.looked_up(node, directory=parent.inode, name=name)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """There is nobody to tell of an error, and raising one would end the mount."""
        background.call(lambda: self._forget(inode_list))

    def _forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for nodeid, count in inode_list:
            node = self.tree.table.forget(nodeid, count)
            if node is not None:
                self.files.cool(node)

    # -- making

    async def _owner(self, parent: FileNode, ctx: pyfuse3.RequestContext) -> tuple[int, int, int]:
        """uid, gid and extra mode bits of a new directory: a set-group-id directory passes its group on."""
        entry = await self.tree.directory(parent)
        if entry.attributes.mode & stat.S_ISGID:
            return ctx.uid, entry.attributes.gid, stat.S_ISGID
        return ctx.uid, ctx.gid, 0

    def _refuse_virtual(self, parent: int, name: bytes) -> None:
        if self.cluster_file.owns(parent) or self.cluster_file.find(parent, name):
            raise NotPermitted(".hearth belongs to the mount itself")

    async def _make(self, parent_inode: int, name: bytes, request: pb.MutateRequest) -> pyfuse3.EntryAttributes:
        parent = self.tree.node(parent_inode)
        token = self.tree.cache.token()
        reply = await self.tree.link.mutate(request)
        node = self.tree.made(token, parent, name, reply.entry)
        return self.tree.looked_up(node, directory=parent.inode, name=name)

    @handler
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._refuse_virtual(parent_inode, name)
        uid, gid, _ = await self._owner(self.tree.node(parent_inode), ctx)
        parent = self.tree.inode(parent_inode)
        mknod = pb.Mknod(parent=parent, name=name, mode=mode, uid=uid, gid=gid, rdev=rdev)
        return await self._make(parent_inode, name, pb.MutateRequest(mknod=mknod))

    @handler
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._refuse_virtual(parent_inode, name)
        uid, gid, extra = await self._owner(self.tree.node(parent_inode), ctx)
        parent = self.tree.inode(parent_inode)
        mkdir = pb.Mkdir(parent=parent, name=name, mode=stat.S_IMODE(mode) | extra, uid=uid, gid=gid)
        return await self._make(parent_inode, name, pb.MutateRequest(mkdir=mkdir))

    @handler
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._refuse_virtual(parent_inode, name)
        uid, gid, _ = await self._owner(self.tree.node(parent_inode), ctx)
        parent = self.tree.inode(parent_inode)
        symlink = pb.Symlink(parent=parent, name=name, target=target, uid=uid, gid=gid)
        return await self._make(parent_inode, name, pb.MutateRequest(symlink=symlink))

    @handler
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._refuse_virtual(new_parent_inode, new_name)
        node, parent = self.tree.node(inode), self.tree.node(new_parent_inode)
        token = self.tree.cache.token()
        link = pb.Link(inode=node.inode, parent=parent.inode, name=new_name)
        reply = await self.tree.link.mutate(pb.MutateRequest(link=link))
        self.tree.made(token, parent, new_name, reply.entry, new=False)
        return self.tree.looked_up(node, directory=parent.inode, name=new_name)

    @handler
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        self._refuse_virtual(parent_inode, name)
        parent = self.tree.node(parent_inode)
        uid, gid, _ = await self._owner(parent, ctx)
        token = self.tree.cache.token()
        request = pb.Create(
            parent=parent.inode,
            name=name,
            mode=stat.S_IMODE(mode),
            uid=uid,
            gid=gid,
            exclusive=bool(flags & os.O_EXCL),
            allocate=self.files.blocks.wants_block(),
            prefer_node=self.node_id,
        )
        reply = await self.tree.link.mutate(pb.MutateRequest(create=request))
        self.files.blocks.keep(list(reply.blocks))
        node = self.tree.made(token, parent, name, reply.entry, new=not reply.existed)
        if reply.existed:
            # Somebody elsewhere made it meanwhile: this is an open of a file that exists.
            node.told_version = reply.entry.attributes.version
            opened = await self.files.open(node, flags)
        else:
            opened = await self.files.created(node, reply.entry, flags)
        return opened, self.tree.looked_up(node, directory=parent.inode, name=name)

    # -- removing and renaming

    @handler
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._refuse_virtual(parent_inode, name)
        parent = self.tree.node(parent_inode)
        inode = await self.tree.target(parent, name)
        token = self.tree.cache.token()
        reply = await self.tree.link.mutate(pb.MutateRequest(unlink=pb.Unlink(parent=parent.inode, name=name)))
        await self.tree.removed(token, parent, name, inode, reply)

    @handler
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._refuse_virtual(parent_inode, name)
        parent = self.tree.node(parent_inode)
        inode = await self.tree.target(parent, name)
        token = self.tree.cache.token()
        reply = await self.tree.link.mutate(pb.MutateRequest(rmdir=pb.Rmdir(parent=parent.inode, name=name)))
        await self.tree.removed(token, parent, name, inode, reply)

    @handler
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        self._refuse_virtual(parent_inode_old, name_old)
        self._refuse_virtual(parent_inode_new, name_new)
        old, new = self.tree.node(parent_inode_old), self.tree.node(parent_inode_new)
        replaced = await self.tree.target(new, name_new)
        token = self.tree.cache.token()
        rename = pb.Rename(parent=old.inode, name=name_old, new_parent=new.inode, new_name=name_new, flags=flags)
        reply = await self.tree.link.mutate(pb.MutateRequest(rename=rename))
        self._renamed(token, old, name_old, new, name_new, flags, replaced, reply.entry)
        if replaced and replaced != reply.entry.attributes.inode and not flags & pyfuse3.RENAME_EXCHANGE:
            await self.tree.lost_name(replaced)

    def _renamed(
        self,
        token: int,
        old: FileNode,
        name_old: bytes,
        new: FileNode,
        name_new: bytes,
        flags: int,
        replaced: int,
        entry: common.Entry,
    ) -> None:
        cache = self.tree.cache
        if replaced:
            cache.changed(replaced)
        if flags & pyfuse3.RENAME_EXCHANGE:
            cache.forget_name(old.inode, name_old)
            cache.forget_name(new.inode, name_new)
            cache.changed(entry.attributes.inode)
            return
        if replaced != entry.attributes.inode:  # two names of one inode: rename does nothing
            cache.unmade(token, old.inode, name_old, entry.attributes.inode, moved=entry)
        cache.made(token, new.inode, name_new, entry)
        node = self.tree.table.current(entry.attributes.inode)
        if node is not None:
            node.entry = entry

    # -- listing

    @handler
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        number = next(self._listing_numbers)
        if self.cluster_file.owns(inode):
            return 0
        self._listings[number] = Listing(self.tree, self.tree.node(inode))
        return number

    @handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if fh:
            await self._listings[fh].fill(start_id, token)

    @handler
    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    @handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Names are durable once the call that made them returned."""
