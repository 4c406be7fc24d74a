"""The namespace as this mount sees it: nodes of the kernel, entries of the master, the cache between them.

Law of timeouts: the kernel may keep exactly what our own cache keeps, no longer than the lease; the decision is taken
after the last ``await`` before the reply, on the thread that also applies invalidations. So an invalidation either
comes before, and the timeout is 0, or after, and its notification finds what the kernel kept.
"""

from __future__ import annotations

import stat

import pyfuse3
import trio

from ..common.errors import DeadlineExceeded, HearthError, NotADirectory, NotFound, Stale, Unavailable
from ..common.telemetry import get_logger
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from .cache import NEGATIVE, MetadataCache
from .content import Content
from .inode_table import PRIVATE, InodeTable, Node
from .master_link import MasterLink
from .notifier import Notifier

log = get_logger(__name__)

BLOCK_SIZE_BYTES = 256 << 10
"""What programs are told to read and write at one time."""

NAMES_WITH_DIRECTORY = 64
"""A directory that has no more names comes with them: a name that it has not costs no call."""
MISSES_TO_LIST = 16
MISSES_KEPT = 1000
SMALL_DIRECTORY = 4000

FileNode = Node[Content]


class Tree:
    def __init__(self, link: MasterLink, cache: MetadataCache, notifier: Notifier) -> None:
        self.link = link
        self.cache = cache
        self.notifier = notifier
        self.table: InodeTable[Content] = InodeTable()
        self._misses: dict[int, int] = {}

    # -- nodes and their entries

    def node(self, nodeid: int) -> FileNode:
        """Raises Stale: the kernel's number is not one that we gave, or of before a restart."""
        node = self.table.get(nodeid)
        if node is None:
            if nodeid >= PRIVATE:
                raise Stale(f"node {nodeid:x} is gone")
            node = self.table.attach(nodeid)
        return node

    def inode(self, nodeid: int) -> int:
        return self.node(nodeid).inode

    async def entry(self, node: FileNode) -> common.Entry:
        """What is known of a node, asked of the master if need be; of a detached or nameless one as it was last seen.

        Raises:
            Stale, NotFound: it is gone and not open here. HearthError: no answer.
        """
        if (node.detached or node.orphan) and node.entry is not None:
            return node.entry
        known = self.cache.entry(node.inode)
        if known is not None:
            return known
        token = self.cache.token()
        try:
            entry: common.Entry = await self.link.read("Getattr", pb.GetattrRequest(inode=node.inode))
        except (NotFound, Stale):
            if node.opens and node.entry is not None:
                self.table.orphaned(node)
                return node.entry
            raise
        self.cache.read_entry(token, entry)
        if not node.detached:
            node.entry = entry
        return entry

    async def last_seen(self, node: FileNode) -> common.Entry:
        """The same, but an open file is as it was last seen when the master does not answer: each read may ask for its
        length. Looking at a path gets nothing old by this, for it begins with a lookup, which fails then.

        Raises: as ``entry``.
        """
        seen = node.entry if node.opens and node.content is not None else None
        if seen is not None and self.link.away and self.cache.peek(node.inode) is None:
            return seen
        try:
            return await self.entry(node)
        except (Unavailable, DeadlineExceeded):
            if seen is None:
                raise
            return seen

    def node_for(self, entry: common.Entry) -> FileNode:
        """The node that a lookup gives. An open one whose content another client replaced is detached first; that its
        event is not here yet does not matter."""
        inode = entry.attributes.inode
        node = self.table.attach(inode)
        content = node.content
        settled = node.opens and content is not None and not content.lock.locked()
        if settled and content is not None and content.version < entry.attributes.version:
            self.table.detach(inode)
            node = self.table.attach(inode)
        node.entry = entry
        return node

    async def lookup(self, parent: FileNode, name: bytes) -> FileNode | None:
        """The node of a name, None when it does not exist.

        Raises:
            NotADirectory; HearthError: no answer.
        """
        directory = parent.inode
        inode = self.cache.find(directory, name)
        if inode == NEGATIVE:
            return None
        entry = self.cache.entry(inode) if inode else None
        if entry is None:
            token = self.cache.token()
            try:
                request = pb.LookupRequest(parent=directory, name=name, names_max=NAMES_WITH_DIRECTORY)
                entry = await self.link.read("Lookup", request)
            except NotFound:
                self.cache.read_name(token, directory, name, NEGATIVE)
                await self._missed(directory)
                return None
            assert entry is not None
            if entry.HasField("names"):
                known = zip(entry.names.names, entry.names.inodes, strict=True)
                self.cache.read_all_names(token, entry.attributes.inode, dict(known))
                entry.ClearField("names")
            self.cache.read_name(token, directory, name, entry.attributes.inode)
            self.cache.read_entry(token, entry, directory)
        return self.node_for(entry)

    async def _missed(self, directory: int) -> None:
        """After some names that did not exist a small directory is read as a whole: the next ones cost no call."""
        misses = self._misses.pop(directory, 0) + 1
        self._misses[directory] = misses
        while len(self._misses) > MISSES_KEPT:
            del self._misses[next(iter(self._misses))]
        if misses % MISSES_TO_LIST:
            return
        token = self.cache.token()
        request = pb.ReaddirRequest(inode=directory, limit=SMALL_DIRECTORY)
        try:
            reply = await self.link.read("Readdir", request)
        except HearthError:
            return
        if reply.end:
            self.cache.read_all_names(token, directory, {item.name: item.inode for item in reply.entries})
        else:
            self._misses[directory] = 1 - MISSES_TO_LIST * 1000  # big: not again soon

    # -- replies; no await between these and the reply

    def reply(self, node: FileNode, *, directory: int = 0, name: bytes = b"") -> pyfuse3.EntryAttributes:
        """Attributes of a node, as the kernel gets them now, with the timeouts it may keep them and the name."""
        entry = self.cache.peek(node.inode) if not (node.detached or node.orphan) else None
        kept = entry is not None
        if entry is None:
            entry = node.entry
        assert entry is not None
        timeout_s = self.cache.timeout_s()
        shown = node.content if node.opens else None
        if shown is not None:
            shown.look()
        out = attributes(node, entry)
        node.told_version = entry.attributes.version if shown is None else shown.version
        dirty = node.opens and node.content is not None and node.content.dirty
        out.attr_timeout = timeout_s if kept and not dirty else 0
        known = directory and self.cache.find(directory, name) == node.inode
        out.entry_timeout = timeout_s if known and self.notifier.supports_epoch and not node.detached else 0
        return out

    def negative(self, directory: int, name: bytes) -> pyfuse3.EntryAttributes:
        """Raises FUSEError(ENOENT) when the kernel must not remember that the name does not exist."""
        if self.cache.find(directory, name) != NEGATIVE or not self.notifier.supports_epoch:
            raise NotFound(name.decode(errors="replace"))
        out = pyfuse3.EntryAttributes()
        out.st_ino = 0
        out.entry_timeout = self.cache.timeout_s()
        return out

    def looked_up(self, node: FileNode, *, directory: int, name: bytes) -> pyfuse3.EntryAttributes:
        """The reply that tells the kernel of a node once more."""
        out = self.reply(node, directory=directory, name=name)
        self.table.looked_up(node)
        return out

    # -- what we changed

    async def renew(self, node: FileNode, *, names: bool = False) -> None:
        """What we changed through another node of the same inode: returns when the kernel has dropped this one's
        attributes and, if asked to, all names."""
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self.notifier.submit(names=names, nodeids=[node.nodeid], done=lambda: token.run_sync_soon(done.set))
        await done.wait()

    def made(self, token: int, parent: FileNode, name: bytes, entry: common.Entry, *, new: bool = True) -> FileNode:
        """A mutation of ours made this name."""
        self.cache.made(token, parent.inode, name, entry, new=new)
        return self.node_for(entry)

    async def target(self, parent: FileNode, name: bytes) -> int:
        """The inode that a mutation is about to take the name from; 0 when there is none. Asked of the master when it
        is not known: what else we know of that inode changes with it."""
        found = self.cache.find(parent.inode, name)
        if found is None:
            node = await self.lookup(parent, name)
            found = NEGATIVE if node is None else node.inode
            if node is not None:
                self.table.unlooked(node)
        return found

    async def removed(self, token: int, parent: FileNode, name: bytes, inode: int, reply: pb.MutateReply) -> None:
        """A mutation of ours took this name from ``inode``."""
        now = reply.entry if reply.HasField("entry") else None
        self.cache.unmade(token, parent.inode, name, inode, now=now)
        await self.lost_name(inode)

    async def lost_name(self, inode: int) -> None:
        """One that is open and has no name left becomes private to those who have it open."""
        node = self.table.current(inode)
        if node is None:
            return
        if node.opens:
            try:
                await self.entry(node)
            except HearthError as error:
                log.warning("unlinked-file-not-checked", inode=inode, reason=str(error))
        elif node.content is not None:
            node.content.close()
            node.content = None

    async def directory(self, node: FileNode) -> common.Entry:
        """Raises NotADirectory."""
        entry = await self.entry(node)
        if not stat.S_ISDIR(entry.attributes.mode):
            raise NotADirectory(f"inode {node.inode} is not a directory")
        return entry


def attributes(node: FileNode, entry: common.Entry) -> pyfuse3.EntryAttributes:
    """Without timeouts. An open file has the length of what it shows, whatever the master has by now."""
    known = entry.attributes
    size, mtime_ns, ctime_ns = known.size_bytes, known.mtime_ns, known.ctime_ns
    content = node.content if node.opens else None
    if content is not None:
        size = content.size
        if content.dirty:
            mtime_ns = content.mtime_ns
            ctime_ns = max(ctime_ns, mtime_ns)
    out = pyfuse3.EntryAttributes()
    out.st_ino = node.nodeid
    out.st_mode = known.mode
    out.st_nlink = 0 if node.orphan else known.nlink
    out.st_uid = known.uid
    out.st_gid = known.gid
    out.st_rdev = known.rdev
    out.st_size = size
    out.st_blksize = BLOCK_SIZE_BYTES
    out.st_blocks = -(-size // 512)
    out.st_atime_ns = known.atime_ns
    out.st_mtime_ns = mtime_ns
    out.st_ctime_ns = ctime_ns
    return out
