"""Which inodes the kernel knows under which nodeid, and what is open. Pure.

Laws:

- A node lives while the kernel has looked it up (count > 0) or a handle of it is open.
- ``current[inode]`` is the node that a lookup of that inode gives. Its nodeid is the inode's number, unless a detached
  node still has that number: then it is one of a private range (highest bit set), never used twice.
- *Detached*: another mount published over an inode that is open here. The old handles keep the node and its content; a
  lookup makes a fresh node. When the last handle of a detached node closes it becomes the current one again if nobody
  looked the inode up since; else it stays a name for nothing, and opening it is ESTALE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ..common.types import ROOT_INODE
from ..proto import common_pb2 as common

PRIVATE = 1 << 63

C = TypeVar("C")


class Node(Generic[C]):
    __slots__ = (
        "content",
        "detached",
        "entry",
        "inode",
        "kernel_version",
        "lookups",
        "nodeid",
        "opens",
        "orphan",
        "told_version",
    )

    def __init__(self, nodeid: int, inode: int) -> None:
        self.nodeid = nodeid
        self.inode = inode
        self.lookups = 0
        self.opens = 0
        self.detached = False
        self.orphan = False  # no name leads here any more: the master has forgotten it
        self.entry: common.Entry | None = None  # as last seen; kept for what the master cannot tell any more
        self.content: C | None = None  # of the open file, or of one closed not long ago
        self.kernel_version: int | None = None  # the content version that the kernel's cached pages belong to
        self.told_version: int | None = None  # the one whose length the kernel was told last


class InodeTable(Generic[C]):
    def __init__(self) -> None:
        self._nodes: dict[int, Node[C]] = {}
        self._current: dict[int, Node[C]] = {}
        self._next_private = PRIVATE
        root: Node[C] = Node(ROOT_INODE, ROOT_INODE)
        root.lookups = 1  # the kernel never forgets it
        self._nodes[ROOT_INODE] = self._current[ROOT_INODE] = root

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node[C]]:
        return iter(list(self._nodes.values()))

    def get(self, nodeid: int) -> Node[C] | None:
        return self._nodes.get(nodeid)

    def current(self, inode: int) -> Node[C] | None:
        return self._current.get(inode)

    def attach(self, inode: int) -> Node[C]:
        """The node of an inode, made when there is none. It stays only once it is looked up or opened."""
        node = self._current.get(inode)
        if node is None:
            nodeid = inode
            if nodeid in self._nodes:
                nodeid = self._next_private
                self._next_private += 1
            node = Node(nodeid, inode)
            self._nodes[nodeid] = self._current[inode] = node
        return node

    def looked_up(self, node: Node[C]) -> None:
        """A reply told the kernel of it once more."""
        node.lookups += 1

    def forget(self, nodeid: int, count: int) -> Node[C] | None:
        """The kernel dropped ``count`` of its references. Returns the node if it ended."""
        node = self._nodes.get(nodeid)
        if node is None or nodeid == ROOT_INODE:
            return None
        node.lookups = max(0, node.lookups - count)
        return self._drop_unused(node)

    def opened(self, node: Node[C]) -> None:
        node.opens += 1

    def closed(self, node: Node[C]) -> Node[C] | None:
        """Returns the node if it ended."""
        assert node.opens > 0
        node.opens -= 1
        if node.opens == 0 and node.detached and not node.orphan and node.inode not in self._current:
            node.detached = False
            node.kernel_version = None
            self._current[node.inode] = node
        return self._drop_unused(node)

    def detach(self, inode: int) -> Node[C] | None:
        """Another client changed the content of this inode. Returns the node if it was open and is detached now."""
        node = self._current.get(inode)
        if node is None or not node.opens:
            return None
        node.detached = True
        del self._current[inode]
        return node

    def reattach(self, node: Node[C]) -> None:
        """What this detached node shows was published: it is the current one again. The one that was is detached."""
        other = self._current.pop(node.inode, None)
        if other is not None:
            other.detached = True
        node.detached = False
        self._current[node.inode] = node

    def orphaned(self, node: Node[C]) -> None:
        """The inode has no name left anywhere; whoever has it open keeps it."""
        node.orphan = True
        if self._current.get(node.inode) is node:
            del self._current[node.inode]

    def unlooked(self, node: Node[C]) -> Node[C] | None:
        """For a node that was attached for a reply which then was not given."""
        return self._drop_unused(node)

    def _drop_unused(self, node: Node[C]) -> Node[C] | None:
        if node.lookups or node.opens or node.nodeid == ROOT_INODE:
            return None
        self._nodes.pop(node.nodeid, None)
        if self._current.get(node.inode) is node:
            del self._current[node.inode]
        return node
