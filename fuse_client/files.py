"""Open files: opening, writing, cutting, publishing.

Laws:

- All handles of one node share one ``Content``: POSIX within the mount.
- Nothing of a change is seen elsewhere before close, fsync or the last release published it; O_TRUNC included. The one
  exception is a change of length of a file that nobody here is writing: that is the master's own operation.
- A reader keeps the version it opened. If another mount publishes over it the node is detached.
- A write that failed leaves a version incomplete: it is not published before another write, or a cut, has succeeded.
- After a publish the block is immutable; a writer that goes on through a dup'd descriptor gets a new one by copy.
"""

from __future__ import annotations

import errno
import itertools
import os
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pyfuse3
import trio

from ..common.clock import Clock
from ..common.errors import FileTooBig, HearthError, Stale
from ..common.telemetry import get_logger
from ..common.types import FILE_MAX_BYTES
from ..proto import common_pb2 as common
from .blocks import Blocks
from .content import Content
from .kernel_file import KernelFile
from .passing import Passing
from .publisher import Publisher
from .take_over import TakeOver
from .tree import FileNode, Tree

log = get_logger(__name__)

SETTLE_S = 1.0
"""So long after an open that makes the kernel drop its pages, further opens ask for it too: nobody tells us when the
kernel has seen the first one's reply."""
OPEN_TRIES = 5
TAKE_TRIES = 10
TAKE_PAUSE_S = 0.1
"""A writer that joins passthrough readers tries so often to take their file over, and waits so long in between for
others to let it go, or for the readers to end."""


class Handle(NamedTuple):
    node: FileNode
    writes: bool


class Files:
    def __init__(
        self,
        tree: Tree,
        blocks: Blocks,
        publisher: Publisher,
        clock: Clock,
        warm_limit: int,
        passing: Passing | None = None,
    ) -> None:
        self.tree = tree
        self.blocks = blocks
        self._publisher = publisher
        self._clock = clock
        self._warm_limit = warm_limit
        self._passing = passing
        self._take_over = TakeOver(tree, blocks)
        self._warm: OrderedDict[int, FileNode] = OrderedDict()  # closed nodes that still have content, by nodeid
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)
        self._opening: weakref.WeakValueDictionary[int, trio.Lock] = weakref.WeakValueDictionary()
        self._dropped_pages: dict[int, float] = {}
        self.bytes_read = 0
        self.bytes_written = 0

    def node(self, number: int) -> FileNode:
        """The node of an open handle."""
        return self._handles[number].node

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def passthrough_opens(self) -> int:
        return 0 if self._passing is None else self._passing.opens

    @property
    def published(self) -> int:
        return self._publisher.published

    # -- open and close

    async def open(self, node: FileNode, flags: int) -> pyfuse3.FileInfo:
        """Raises Stale: the node stands for a version that is gone; the kernel looks the name up again."""
        self.tree.table.opened(node)
        try:
            if node.detached and node.content is None:
                raise Stale(f"inode {node.inode}: another version took this one's place")
            self._wake(node)
            truncate = bool(flags & os.O_TRUNC)
            async with self._in_turn(node):
                content = await self._content(node, truncate)
                passes = self._passing is not None and await self._passing.prepare(node.nodeid, content, flags)
                if truncate or flags & os.O_ACCMODE != os.O_RDONLY:
                    await self._let_write(node, content)
                if flags & os.O_APPEND and not truncate and node.told_version != content.version:
                    # The kernel appends at the length that it was told; it asks again and finds this version's.
                    raise Stale(f"inode {node.inode}: another version was published while it was opened")
                if content.kernel_file is not None:
                    await self._join(node, content.kernel_file, flags & os.O_ACCMODE)
                if truncate:
                    await self._publisher.part(node)
                    async with content.lock, content.hold():
                        content.empty(self._clock.wall_ns())
                    passes = passes or await self._to_kernel(node, content, flags)
                return self._opened(node, content, flags, passes=passes)
        except BaseException:
            self._close(node)
            raise

    async def _join(self, node: FileNode, file: KernelFile, access: int) -> None:
        """Another descriptor of a file that the kernel writes: one that could write by a mapping, unseen, finds nothing
        in it that is published."""
        file.join(access)
        if file.mappable:
            await self._publisher.part(node)

    def _in_turn(self, node: FileNode) -> trio.Lock:
        """One open of a node at one time."""
        return self._opening.setdefault(node.nodeid, trio.Lock())

    @asynccontextmanager
    async def resizing(self, node: FileNode, *, by_handle: bool) -> AsyncIterator[None]:
        """Inside, the length may change: those who read the file by passthrough see it.

        Raises:
            OSError: ETXTBSY, as ``_let_write``.
        """
        if self._passing is None:
            yield
            return
        async with self._in_turn(node):
            content = node.content
            if content is not None:
                await self._let_write(node, content)
            written = by_handle or content is None or content.dirty
            yield
            if content is not None and not written:
                await self.publish(node)  # where the length is ours to change: as the master would have done it

    async def _let_write(self, node: FileNode, content: Content) -> None:
        """Before somebody may change the bytes, with the opens of the node in turn.

        Raises:
            OSError: ETXTBSY, others read them by passthrough and would not see it.
        """
        reason = ""
        for _ in range(TAKE_TRIES):
            if self._passing is None or not self._passing.passes(node.nodeid):
                return
            try:
                await self._take_over.take(node, content)
                return
            except OSError as error:
                reason = str(error)
            if await self._passing.wait_idle(node.nodeid, TAKE_PAUSE_S):
                return
        log.warning("file-not-taken-over", inode=node.inode, reason=reason)
        raise OSError(errno.ETXTBSY, f"inode {node.inode} is being read by passthrough; replace it by rename instead")

    async def _to_kernel(self, node: FileNode, content: Content, flags: int) -> bool:
        """Gives an empty file that nobody else here has open a working file that the kernel writes by itself, where
        that can be; whether it did."""
        if self._passing is None or not self._passing.may_write(node.nodeid) or flags & os.O_ACCMODE != os.O_WRONLY:
            return False
        async with content.lock:
            try:
                if content.working is None:
                    content.working = await self.blocks.new_file()
                file = self._passing.kernel_file(content.working, cached=not flags & os.O_DIRECT)
            except OSError as error:  # the first write will say so, or find another place
                log.debug("written-through-the-daemon", inode=node.inode, reason=str(error))
                return False
            if file is None:
                return False
            content.working = file
            return True

    def _opened(self, node: FileNode, content: Content, flags: int, *, passes: bool = False) -> pyfuse3.FileInfo:
        number = next(self._numbers)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        content.writing += writes
        self._handles[number] = Handle(node, writes)
        if self._passing is not None:
            self._passing.opened(node.nodeid, number, content, passes=passes)
        now = self._clock.monotonic_s()
        keep = node.kernel_version == content.version or content.dirty
        if not keep:
            node.kernel_version = content.version
            self._dropped_pages = {k: at for k, at in self._dropped_pages.items() if now - at < SETTLE_S}
            self._dropped_pages[node.nodeid] = now
        elif now - self._dropped_pages.get(node.nodeid, -SETTLE_S) < SETTLE_S:
            keep = False
        return pyfuse3.FileInfo(fh=number, keep_cache=keep)

    async def created(self, node: FileNode, entry: common.Entry, flags: int) -> pyfuse3.FileInfo:
        """Of a file that this mount just made: nobody else has it open."""
        self.tree.table.opened(node)
        content = node.content = Content(entry.attributes.version, 0)
        node.kernel_version = node.told_version = entry.attributes.version
        try:
            async with self._in_turn(node):
                passes = await self._to_kernel(node, content, flags)
                return self._opened(node, content, flags, passes=passes)
        except BaseException:
            self._close(node)
            raise

    async def _content(self, node: FileNode, truncate: bool) -> Content:
        """The content that a new handle shares: that of the other handles, the one of a file closed not long ago if
        it is still the current version, else the master's."""
        content = node.content
        others = node.opens > 1 and content is not None
        for attempt in itertools.count(1):
            if others or (node.orphan and content is not None):
                assert content is not None
                return content
            entry = await self.tree.entry(node)
            if content is not None:
                broken = content.sealed is not None and content.sealed.broken
                if content.version == entry.attributes.version and not broken:
                    return content
                self._drop(node)
                content = None
            try:
                node.content = await self._load(entry, truncate)
                return node.content
            except HearthError:
                # Its block may be gone because somebody published over it while we were on our way.
                if node.detached:
                    raise Stale(f"inode {node.inode}: another version took this one's place") from None
                if attempt >= OPEN_TRIES or self.tree.cache.peek(node.inode) is entry:
                    raise
        raise AssertionError("unreachable")

    async def _load(self, entry: common.Entry, truncate: bool) -> Content:
        known = entry.attributes
        sealed = None if truncate else self.blocks.sealed(entry)
        if sealed is not None:
            try:
                await sealed.prepare()
            except BaseException:
                sealed.close()
                raise
        valid = entry.extents[0].valid_bytes if sealed is not None else 0
        return Content(known.version, known.size_bytes, valid, sealed)

    async def release(self, number: int) -> None:
        """The last descriptor of a handle is closed, and every mapping of it is gone."""
        node, writes = self._handles.pop(number)
        content = node.content
        try:
            await self.publish(node)
        except HearthError as error:
            log.error("release-not-published", inode=node.inode, reason=str(error))
        finally:
            if content is not None and writes:
                content.writing -= 1
                self._end_writing(content)
            if self._passing is not None:
                self._passing.closed(node.nodeid)
            self._close(node)

    def _end_writing(self, content: Content) -> None:
        """The kernel has no writer of the file left: what was published as it is stays so."""
        file = content.kernel_file
        if file is None or content.writing or content.dirty or content.lock.locked():
            return
        if file.mappable or not file.published:
            return
        content.working = None
        content.sealed = self.blocks.seal_kernel_file(file)
        content.valid = file.seen.length_bytes

    def _close(self, node: FileNode) -> None:
        stale = node.detached or node.orphan
        ended = self.tree.table.closed(node)
        if node.opens or node.content is None:
            return
        working = node.content.working
        if stale or ended is not None or node.content.dirty or (working is not None and working.by_kernel):
            self._drop(node)
            return
        self._warm[node.nodeid] = node
        if node.content.sealed is not None:
            node.content.sealed.rest()
        while len(self._warm) > self._warm_limit:
            self.cool(self._warm.popitem(last=False)[1])

    def _wake(self, node: FileNode) -> None:
        """What was kept of a closed file serves the next open, if it still can."""
        warm = self._warm.pop(node.nodeid, None)
        sealed = node.content.sealed if warm is not None and node.content is not None else None
        if sealed is not None and not sealed.wake():
            self._drop(node)

    def cool(self, node: FileNode) -> None:
        """Lets go of what a closed file still holds."""
        self._warm.pop(node.nodeid, None)
        if not node.opens:
            self._drop(node)

    def _drop(self, node: FileNode) -> None:
        content, node.content = node.content, None
        if content is not None:
            if content.dirty:
                # The kernel has pages and a length of what was never published.
                node.kernel_version = None
                self.tree.notifier.submit(names=False, nodeids=[node.nodeid], done=lambda: None)
            working, content.working = content.working, None
            content.close()
            if working is not None:
                self.blocks.drop(working)

    def replaced(self, inode: int) -> bool:
        """Another client changed the content. Whether the file is open here: then lookups give another node now."""
        node = self.tree.table.current(inode)
        if node is None:
            return False
        if node.opens:
            self.tree.table.detach(inode)
            return True
        self.cool(node)
        return False

    # -- bytes

    async def read(self, number: int, offset: int, size: int) -> bytes | memoryview:
        content = self._handles[number].node.content
        assert content is not None
        data = await content.read(offset, size)
        self.bytes_read += len(data)
        return data

    async def write(self, number: int, offset: int, data: bytes) -> int:
        """Raises NoSpace, FileTooBig; HearthError: no working block was to be had."""
        content = self._handles[number].node.content
        assert content is not None
        try:
            written = await self._write(content, offset, data)
        except FileTooBig:
            raise
        except OSError as error:
            content.incomplete = error
            raise
        content.incomplete = None
        self.bytes_written += written
        return written

    async def _write(self, content: Content, offset: int, data: bytes) -> int:
        while True:
            working = content.working
            if working is None:
                await self._make_working(content)
                continue
            await content.begin_write()
            try:
                if content.working is not working:
                    continue  # published meanwhile
                end = offset + len(data)
                if end > FILE_MAX_BYTES:
                    raise FileTooBig(f"a file has at most {FILE_MAX_BYTES} bytes")
                if working.limit_bytes and end > working.limit_bytes:
                    await self.blocks.ensure_room(working, end)
                # The hole between the block's end and `offset` is a hole in its file too.
                await working.write(offset, data)
                content.wrote(offset, len(data), self._clock.wall_ns())
            finally:
                content.end_write()
            return len(data)

    async def _make_working(self, content: Content) -> None:
        async with content.lock:
            if content.working is not None:
                return
            if content.sealed is None:
                content.working = await self.blocks.new_file()
                return
            await self._to_working(content)

    async def truncate(self, node: FileNode, size: int, *, by_handle: bool) -> bool:
        """A new length. False when nobody here writes the file: it is the master's to do, then ``resized``."""
        if size > FILE_MAX_BYTES:
            raise FileTooBig(f"a file has at most {FILE_MAX_BYTES} bytes")
        content = node.content
        if not node.opens or content is None:
            return False
        await self._publisher.part(node)
        async with content.lock, content.hold():
            now_ns = self._clock.wall_ns()
            if content.sealed is None and (content.dirty or content.working is not None or by_handle):
                content.resize(size, now_ns)
                return True
            if size == 0 and by_handle:
                content.empty(now_ns)
                return True
            if content.dirty or node.detached or node.orphan:
                await self._to_working(content)
                content.resize(size, now_ns)
                return True
        return False

    async def _to_working(self, content: Content) -> None:
        """With the lock: a sealed block's bytes become a working file's."""
        sealed = content.sealed
        if sealed is not None:
            content.working = await self.blocks.copy(sealed, content.valid)
            content.sealed = content.committed = None
            sealed.close()

    def resized(self, node: FileNode, entry: common.Entry) -> None:
        """The master cut or extended the file for us."""
        known, content = entry.attributes, node.content
        if content is None:
            return
        if node.kernel_version == content.version:
            node.kernel_version = known.version  # the kernel cut its pages itself
        node.told_version = known.version
        if not content.dirty:
            content.published_size(known.size_bytes, known.version)

    # -- publishing

    async def publish(self, node: FileNode, *, sync: bool = False) -> None:
        """close, fsync, release: what was written here becomes the file's version for everybody.

        Raises:
            HearthError: it did not; it is kept, and the next close or fsync tries again.
        """
        await self._publisher.publish(node, sync=sync)

    async def fsync(self, node: FileNode) -> None:
        content = node.content
        assert content is not None
        await self._publisher.publish(node, sync=True)
        error, content.error = content.error, None
        if error is not None:
            raise error
