"""Makes what was written here the file's version for everybody: commit on the worker, then publish at the master.

Laws: one publish of a content at one time (its lock), no write during it (``hold``). Commit and publish are idempotent,
so a failure at any point leaves the content dirty and the next attempt goes on. A block that worker or master lost
while the file was open is written again from our own descriptor. A file that has no name left is published to nobody,
nor is one whose last write failed: others keep the whole version before it.
"""

from __future__ import annotations

from ..common.errors import NotFound, Stale
from ..common.telemetry import get_logger
from ..proto import master_pb2 as pb
from .blocks import Blocks
from .content import Committed, Content
from .private_file import PrivateFile
from .sealed_block import SealedBlock
from .tree import FileNode, Tree

log = get_logger(__name__)

TRIES = 3


class Publisher:
    def __init__(self, tree: Tree, blocks: Blocks) -> None:
        self._tree = tree
        self._blocks = blocks
        self.published = 0

    async def publish(self, node: FileNode, *, sync: bool) -> None:
        """Raises HearthError: not published; it is remembered for the next fsync too."""
        content = node.content
        if content is None:
            return
        if isinstance(content.working, PrivateFile) and not content.dirty:
            await self._look(content, content.working)
        if not (content.dirty or sync):
            return
        async with content.lock:
            if content.dirty:
                try:
                    async with content.hold():
                        if content.incomplete is not None:
                            raise content.incomplete
                        await self._publish(node, content, sync=sync)
                except OSError as error:
                    content.error = error
                    raise
            if sync and content.sealed is not None and not content.sealed.synced:
                await self._sync(node, content.sealed)

    async def _sync(self, node: FileNode, sealed: SealedBlock) -> None:
        """Raises NotFound: the worker lost it. That of a version which was replaced or deleted is nobody's loss."""
        try:
            await self._blocks.sync(sealed, sealed.length_bytes)
        except (NotFound, Stale):
            if not (node.detached or await self._is_gone(node)):
                raise

    async def _look(self, content: Content, working: PrivateFile) -> None:
        """A shared mapping changes a file that the kernel has without telling us."""
        if await self._blocks.fingerprint(working) != working.digest and content.working is working:
            content.changed(working.mtime_ns)

    async def _publish(self, node: FileNode, content: Content, *, sync: bool) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                await self._commit(content, sync=sync)
                if node.orphan:
                    content.dirty = False
                    return
                token = self._tree.cache.token()
                reply = await self._tree.link.mutate(pb.MutateRequest(publish=_request(node.inode, content)))
            except (NotFound, Stale) as error:
                if await self._is_gone(node):
                    self._tree.table.orphaned(node)
                    content.dirty = False
                    return
                if attempt == TRIES:
                    raise
                log.warning("block-written-again", inode=node.inode, reason=str(error))
                await self._write_again(content)
                continue
            self._published(token, node, content, reply)
            if node.detached and self._tree.cache.undisturbed(token, node.inode):
                await self._reattach(node)
            return

    async def _commit(self, content: Content, *, sync: bool) -> None:
        working = content.working
        if working is None or not working.length_bytes:
            return  # nothing but zeros: no block is needed
        if isinstance(working, PrivateFile):
            await self._commit_copy(content, working, sync=sync)
            return
        packed, digest = await self._blocks.commit(working, sync=sync)
        content.committed = Committed(working.key, working.length_bytes, digest, working.worker_id)
        content.sealed = self._blocks.seal(working, packed, digest, synced=sync)
        content.valid = working.length_bytes
        content.working = None

    async def _commit_copy(self, content: Content, working: PrivateFile, *, sync: bool) -> None:
        if content.committed is not None:
            self._blocks.forget(content.committed.key)  # a copy that was never published
            content.committed = None
        copy = await self._blocks.duplicate(working)
        try:
            _, digest = await self._blocks.commit(copy, sync=sync)
        except BaseException:
            self._blocks.drop(copy)
            raise
        copy.close()
        content.committed = Committed(copy.key, copy.length_bytes, digest, copy.worker_id)
        working.digest = digest

    async def _write_again(self, content: Content) -> None:
        if isinstance(content.working, PrivateFile):
            content.committed = None  # the next commit makes another copy
            return
        if content.working is not None:
            fresh = await self._blocks.duplicate(content.working)
            content.working.close()
            content.working = fresh
        elif content.sealed is not None:
            content.working = await self._blocks.copy(content.sealed, content.valid)
            content.sealed.close()
            content.sealed = None
        content.committed = None

    async def _is_gone(self, node: FileNode) -> bool:
        try:
            await self._tree.link.read("Getattr", pb.GetattrRequest(inode=node.inode))
        except (NotFound, Stale):
            return True
        return False

    def _published(self, token: int, node: FileNode, content: Content, reply: pb.MutateReply) -> None:
        entry = reply.entry
        self.published += 1
        content.version = entry.attributes.version
        content.dirty = False
        content.committed = None
        content.error = None
        node.entry = entry
        node.told_version = content.version  # the length is what the kernel wrote itself
        if node.kernel_version is not None:
            node.kernel_version = content.version  # the kernel's pages went through us
        self._tree.cache.modified(token, entry)

    async def _reattach(self, node: FileNode) -> None:
        """The old version's writer published last: its node is what the name leads to, here as elsewhere."""
        other = self._tree.table.current(node.inode)
        self._tree.table.reattach(node)
        if other is not None and not other.opens and other.content is not None:
            other.content.close()
            other.content = None
        await self._tree.renew(node, names=True)


def _request(inode: int, content: Content) -> pb.Publish:
    request = pb.Publish(inode=inode, size_bytes=content.size, mtime_ns=content.mtime_ns, sealed=True)
    committed = content.committed
    if committed is not None:
        request.block, request.generation = committed.key
        request.length_bytes = committed.length_bytes
        request.digest = committed.digest
        request.worker_id = committed.worker_id
    return request
