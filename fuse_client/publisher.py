"""Makes what was written here the file's version for everybody: commit on the worker, then publish at the master.

Laws: one publish of a content at one time (its lock), no write during it (``hold``). Commit and publish are idempotent,
so a failure at any point leaves the content dirty and the next attempt goes on. A block that worker or master lost
while the file was open is written again from our own descriptor. A file that has no name left is published to nobody,
nor is one whose last write failed: others keep the whole version before it.

What the kernel writes by itself is published as it is, the first time, for the program that closes it is nearly always
done with it. The few that go on, through a duplicated descriptor or a mapping, leave the published block a copy: as
soon as we see that the file stays open (``PART_S``), or when somebody elsewhere asks for the block before (the worker
sees our lock on the file).
"""

from __future__ import annotations

import trio

from ..common.errors import HearthError, InvalidArgument, NotFound, Stale
from ..common.telemetry import get_logger
from ..proto import master_pb2 as pb
from .blocks import Blocks
from .content import Committed, Content
from .kernel_file import KernelFile
from .tree import FileNode, Tree

log = get_logger(__name__)

TRIES = 3
PART_S = 0.02
"""A program that has a file open so long after a close has another descriptor of it."""
COPIED_BYTES = 1 << 20
"""Up to here fsync makes a copy at once: databases begin small, and write into what they made durable."""


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
        await self._look(content)
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
            if sync:
                await self._sync(node, content)

    async def _sync(self, node: FileNode, content: Content) -> None:
        """Raises NotFound: the worker lost it. That of a version which was replaced or deleted is nobody's loss."""
        sealed, file = content.sealed, content.kernel_file
        try:
            if sealed is not None and not sealed.synced:
                await self._blocks.sync(sealed, sealed.length_bytes)
            elif file is not None and file.published and not file.synced:
                await self._blocks.commit_local(file, file.seen.length_bytes, b"", sync=True)
                file.synced = True
        except (NotFound, Stale):
            if not (node.detached or await self._is_gone(node)):
                raise

    async def _look(self, content: Content) -> None:
        """A shared mapping changes a file that the kernel has, and its time does not tell."""
        content.look()
        file = content.kernel_file
        if file is None or content.dirty or file.tells:
            return
        if not await file.same_bytes() and content.working is file:
            content.changed(file.look().mtime_ns)

    async def part(self, node: FileNode) -> None:
        """Before programs here change what was published: the block gets a file of its own."""
        content = node.content
        file = content.kernel_file if content is not None else None
        if content is None or file is None or not file.published or file.parted:
            return
        try:
            await self._blocks.part(file.key)
            file.parted = True
        except Stale:  # too late: what they wrote is another version
            content.look()
            await self.publish(node, sync=False)

    async def _part_later(self, node: FileNode, content: Content) -> None:
        await trio.sleep(PART_S)
        if node.content is not content or not content.writing:
            return
        try:
            await self.part(node)
        except HearthError as error:
            log.warning("block-not-parted", inode=node.inode, reason=str(error))

    async def _publish(self, node: FileNode, content: Content, *, sync: bool) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                if node.orphan and content.kernel_file is not None:
                    content.kernel_file.seen = content.kernel_file.look()
                else:
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
            if node.detached and not self._tree.cache.replaced(token, node.inode):
                await self._reattach(node)
            return

    async def _commit(self, content: Content, *, sync: bool) -> None:
        working = content.working
        if isinstance(working, KernelFile):
            await self._commit_kernel_file(content, working, sync=sync)
            return
        if working is None or not working.length_bytes:
            return  # nothing but zeros: no block is needed
        packed, digest = await self._blocks.commit(working, sync=sync)
        content.committed = Committed(working.key, working.length_bytes, digest, working.worker_id)
        content.sealed = self._blocks.seal(working, packed, digest, synced=sync)
        content.valid = working.length_bytes
        content.working = None

    async def _commit_kernel_file(self, content: Content, file: KernelFile, *, sync: bool) -> None:
        """Sets the content's length to what was committed: more may have been written since."""
        if content.committed is not None:
            if not (file.changed or sync):
                return
            self._blocks.forget(content.committed.key)  # never published
            content.committed = None
        if not file.length_bytes:
            file.seen, file.digest, content.size = file.look(), 0, 0
        elif file.private or file.published or (sync and file.length_bytes <= COPIED_BYTES):
            await self._commit_copy(content, file, sync=sync)
        else:
            await self._commit_as_it_is(content, file, sync=sync)

    async def _commit_as_it_is(self, content: Content, file: KernelFile, *, sync: bool) -> None:
        for _ in range(TRIES):
            packed, digest = await file.checksums()
            if file.changed:
                continue  # while we read it
            # What follows is a copy, also when nobody learns of this one.
            file.private = file.committed = True
            try:
                await self._blocks.commit_local(file, file.seen.length_bytes, packed, sync=sync)
            except InvalidArgument:
                continue  # it has another length by now
            file.synced = sync
            content.committed = Committed(file.key, file.seen.length_bytes, digest, file.worker_id)
            content.size = file.seen.length_bytes
            return
        await self._commit_copy(content, file, sync=sync)

    async def _commit_copy(self, content: Content, file: KernelFile, *, sync: bool) -> None:
        seen = file.look()
        copy = await self._blocks.duplicate(file)
        try:
            _, digest = await self._blocks.commit(copy, sync=sync)
        except BaseException:
            self._blocks.drop(copy)
            raise
        copy.close()
        content.committed = Committed(copy.key, copy.length_bytes, digest, copy.worker_id)
        content.size = copy.length_bytes
        file.seen, file.digest, file.private = seen, digest, True

    async def _write_again(self, content: Content) -> None:
        if content.kernel_file is not None:
            content.kernel_file.private = True
            content.committed = None  # the next commit makes a copy
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
        self._note_published(node, content)
        content.committed = None
        content.error = None
        node.entry = entry
        node.told_version = content.version  # the length is what the kernel wrote itself
        if node.kernel_version is not None:
            node.kernel_version = content.version  # the kernel's pages went through us
        self._tree.cache.modified(token, entry)

    def _note_published(self, node: FileNode, content: Content) -> None:
        file = content.kernel_file
        if file is None:
            return
        file.published = content.committed is not None and content.committed.key == file.key
        if file.published:
            self._blocks.start(self._part_later, node, content)

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
