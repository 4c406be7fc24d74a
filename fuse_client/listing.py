"""One open directory being listed, in pages, with the attributes of every entry.

Cookies are the master's, moved up by two for "." and "..": an entry that exists all along is listed exactly once,
whatever else comes and goes. A page is kept for the next call only, and the next one is asked for meanwhile; memory
does not grow with the directory.
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Awaitable, Callable

import pyfuse3
import trio

from ..common.errors import HearthError
from ..proto import master_pb2 as pb
from . import background
from .tree import FileNode, Tree, attributes

PAGE_ENTRIES = 512
DOTS = 2


_Answer = tuple[int, pb.ReaddirReply]
"""A page, and the cache's token from before it was asked for."""


class _Ahead:
    """The page behind the one that is being given, on its way meanwhile."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._answer: _Answer | None = None
        self._error: HearthError | None = None
        self._done = trio.Event()

    async def run(self, ask: Callable[[int], Awaitable[_Answer]]) -> None:
        try:
            self._answer = await ask(self.after)
        except HearthError as error:
            self._error = error
        finally:
            self._done.set()

    async def wait(self) -> _Answer | None:
        """None: it had failed before anybody needed it, so that it is worth asking again.

        Raises:
            HearthError: it failed just now.
        """
        failed_before = self._error is not None
        await self._done.wait()
        if self._error is not None and not failed_before:
            raise self._error
        return self._answer


class Listing:
    def __init__(self, tree: Tree, node: FileNode) -> None:
        self._tree = tree
        self._node = node
        self._page: list[pb.DirectoryEntry] = []
        self._after = -1  # the master's cookie that the page begins behind
        self._end = False
        self._at = 0  # behind the last entry that was given
        self._ahead: _Ahead | None = None

    async def fill(self, start: int, token: pyfuse3.ReaddirToken) -> None:
        """Answers one readdir; listing from the start sees the directory as it is now."""
        if start < DOTS and not await self._dots(start, token):
            return
        after = max(0, start - DOTS)
        if not start:
            self._after, self._ahead = -1, None
        while True:
            self._at = self._position(after)
            if self._at < 0:
                await self._load(after)
                self._at = 0
            for item in itertools.islice(self._page, self._at, None):
                if not self._add(token, item):
                    return
                self._at += 1
                after = item.cookie
            if self._end:
                return

    def _position(self, after: int) -> int:
        """Where in the kept page the entries behind that cookie begin; -1 when the page is another one or used up."""
        if after == self._after:
            return 0
        page, at = self._page, self._at
        if self._after < 0 or not page:
            return -1
        if not (0 < at <= len(page) and page[at - 1].cookie == after):  # else the kernel goes on where it was
            at = next((index for index, item in enumerate(page, 1) if item.cookie == after), -1)
        return at if at < len(page) or self._end else -1

    async def _load(self, after: int) -> None:
        ahead, self._ahead = self._ahead, None
        answer = await ahead.wait() if ahead is not None and ahead.after == after else None
        token, reply = answer or await self._ask(after)
        self._page, self._after, self._end = list(reply.entries), after, reply.end or not reply.entries
        self._tree.cache.read_page(token, self._node.inode, self._page)
        if not self._end:
            self._ahead = _Ahead(self._page[-1].cookie)
            background.detach(self._ahead.run, self._ask)

    async def _ask(self, after: int) -> _Answer:
        token = self._tree.cache.token()
        request = pb.ReaddirRequest(inode=self._node.inode, after_cookie=after, limit=PAGE_ENTRIES, want_entries=True)
        return token, await self._tree.link.read("Readdir", request)

    def _add(self, token: pyfuse3.ReaddirToken, item: pb.DirectoryEntry) -> bool:
        """False: the kernel's buffer is full, and the entry was not given."""
        tree, directory = self._tree, self._node.inode
        if not item.HasField("entry"):
            return True
        node = tree.node_for(tree.cache.peek(item.inode) or item.entry)
        out = tree.reply(node, directory=directory, name=item.name)
        if not pyfuse3.readdir_reply(token, item.name, out, item.cookie + DOTS):
            tree.table.unlooked(node)
            return False
        tree.table.looked_up(node)
        return True

    async def _dots(self, start: int, token: pyfuse3.ReaddirToken) -> bool:
        entry = await self._tree.directory(self._node)
        out = attributes(self._node, entry)
        if start == 0 and not pyfuse3.readdir_reply(token, b".", out, 1):
            return False
        above = pyfuse3.EntryAttributes()
        above.st_mode = stat.S_IFDIR
        above.st_ino = entry.parents[0] if entry.parents else self._node.inode
        return bool(pyfuse3.readdir_reply(token, b"..", above, DOTS))
