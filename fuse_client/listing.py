"""One open directory being listed, in pages, with the attributes of every entry.

Cookies are the master's, moved up by two for "." and "..": an entry that exists all along is listed exactly once,
whatever else comes and goes. A page is kept for the next call only; memory does not grow with the directory.
"""

from __future__ import annotations

import stat

import pyfuse3

from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from .tree import FileNode, Tree, attributes

PAGE_ENTRIES = 512
DOTS = 2


class Listing:
    def __init__(self, tree: Tree, node: FileNode) -> None:
        self._tree = tree
        self._node = node
        self._page: list[pb.DirectoryEntry] = []
        self._after = -1  # the master's cookie that the page begins behind
        self._end = False
        self._token = 0

    async def fill(self, start: int, token: pyfuse3.ReaddirToken) -> None:
        """Answers one readdir; listing from the start sees the directory as it is now."""
        if start < DOTS and not await self._dots(start, token):
            return
        after = max(0, start - DOTS)
        if not start:
            self._after = -1
        while True:
            page = self._rest(after)
            if page is None:
                await self._load(after)
                page = self._page
            for item in page:
                if not self._add(token, item):
                    return
                after = item.cookie
            if self._end:
                return

    def _rest(self, after: int) -> list[pb.DirectoryEntry] | None:
        """What of the kept page lies behind that cookie; None when the page is another one or used up."""
        if after == self._after:
            return self._page
        for at, item in enumerate(self._page):
            if item.cookie == after and self._after >= 0:
                rest = self._page[at + 1 :]
                return rest if rest or self._end else None
        return None

    async def _load(self, after: int) -> None:
        self._token = self._tree.cache.token()
        request = pb.ReaddirRequest(inode=self._node.inode, after_cookie=after, limit=PAGE_ENTRIES, want_entries=True)
        reply = await self._tree.link.read("Readdir", request)
        self._page, self._after, self._end = list(reply.entries), after, reply.end or not reply.entries

    def _add(self, token: pyfuse3.ReaddirToken, item: pb.DirectoryEntry) -> bool:
        """False: the kernel's buffer is full, and the entry was not given."""
        tree, directory = self._tree, self._node.inode
        if not item.HasField("entry"):
            return True
        entry: common.Entry = item.entry
        if tree.cache.peek(item.inode) is None or not tree.cache.fresh(self._token, item.inode):
            tree.cache.read_name(self._token, directory, item.name, item.inode)
            tree.cache.read_entry(self._token, entry, directory)
        node = tree.node_for(tree.cache.peek(item.inode) or entry)
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
