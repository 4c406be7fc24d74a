"""A writer joins readers that the kernel serves by passthrough. They must see what it writes, and the kernel cannot be
told to read another file; so the file that it reads becomes the writer's, and the published bytes move to a copy.

Order: the copy is published first, under the condition that the content is still the version that is being read; then
the old block is nobody's content, and its file may be ours if no one else has it open.
"""

from __future__ import annotations

from ..common.errors import Busy, Stale
from ..proto import master_pb2 as pb
from .blocks import Blocks
from .content import Content
from .private_file import PrivateFile
from .sealed_block import SealedBlock
from .tree import FileNode, Tree
from .working_file import WorkingFile


class TakeOver:
    def __init__(self, tree: Tree, blocks: Blocks) -> None:
        self._tree = tree
        self._blocks = blocks

    async def take(self, node: FileNode, content: Content) -> None:
        """Makes the content one that is written in place. May be tried again.

        Raises:
            Busy: the file cannot be ours; readers see what they saw. HearthError, OSError: no copy could be made.
        """
        async with content.lock, content.hold():
            if content.working is not None:
                return
            sealed = content.sealed
            assert sealed is not None, "what passes is sealed or private"
            if node.detached:
                raise Busy(f"inode {node.inode}: its block may still be in use elsewhere")
            if not node.orphan and _is_published(node, sealed):
                await self._publish_copy(node, content, sealed)
            working = PrivateFile(sealed)
            await working.checksums()
            content.working, content.sealed = working, None

    async def _publish_copy(self, node: FileNode, content: Content, sealed: SealedBlock) -> None:
        token = self._tree.cache.token()
        copy = await self._blocks.copy(sealed, sealed.length_bytes)
        try:
            _, digest = await self._blocks.commit(copy, sync=True)
            request = self._request(node, content, copy, digest)
            reply = await self._tree.link.mutate(pb.MutateRequest(publish=request))
        except Stale as error:
            self._blocks.drop(copy)
            raise Busy(f"inode {node.inode}: {error}") from None
        except BaseException:
            self._blocks.drop(copy)
            raise
        copy.close()
        sealed.synced = True  # what is published now is
        entry = reply.entry
        if node.told_version == content.version:
            node.told_version = entry.attributes.version  # the length is the same
        content.version = node.kernel_version = entry.attributes.version  # the kernel has no pages of what passes
        node.entry = entry
        self._tree.cache.modified(token, entry)

    @staticmethod
    def _request(node: FileNode, content: Content, copy: WorkingFile, digest: int) -> pb.Publish:
        assert node.entry is not None
        return pb.Publish(
            inode=node.inode,
            size_bytes=content.size,
            mtime_ns=node.entry.attributes.mtime_ns,
            sealed=True,
            block=copy.key.block,
            generation=copy.key.generation,
            length_bytes=copy.length_bytes,
            digest=digest,
            worker_id=copy.worker_id,
            if_version=content.version,
        )


def _is_published(node: FileNode, sealed: SealedBlock) -> bool:
    """As far as this mount knows; the master has the last word."""
    return node.entry is None or not node.entry.extents or node.entry.extents[0].block == sealed.key.block
