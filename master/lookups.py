"""Reading the namespace: one name, one path, one listing, thousands of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from stat import S_IFREG, S_ISLNK

import msgspec

from ..common.errors import InvalidArgument, NameTooLong, NotADirectory, NotFound, SymlinkLoop
from ..common.types import NAME_MAX, PATH_MAX, ROOT_INODE, SYMLINKS_MAX
from .namespace import check_name
from .readable_names import ReadableNames
from .records import Dentry, Extent, Inode, Layout, Ordered
from .tables import pack_u64 as pack
from .tables import u64
from .view import View

LISTING_MAX = 4096
S_IFMT = 0o170000
COOKIE_END = (1 << 64) - 1
LISTING_MAX_BYTES = 2 << 20

_dentry = msgspec.msgpack.Decoder(Dentry).decode
_layout = msgspec.msgpack.Decoder(Layout).decode


def lookup(view: View, parent: int, name: bytes) -> tuple[int, Inode]:
    """One name of a directory; "." and ".." are understood, the root is its own parent.

    Raises:
        NotFound, Stale, NotADirectory, NameTooLong, InvalidArgument.
    """
    directory = view.directory(parent)
    if name == b".":
        return parent, directory
    if name == b"..":
        above = directory.links[0][0] if directory.links else parent
        return above, view.inode(above)
    check_name(name)
    dentry = view.dentry(parent, name)
    return dentry.inode, view.named_inode(dentry.inode, parent, name)


@dataclass
class Walk:
    """Where a path led, and all inodes and directories that were asked on the way."""

    inode: int = ROOT_INODE
    attributes: Inode | None = None
    visited: set[int] = field(default_factory=set)


def resolve(view: View, path: bytes, no_follow: bool, walk: Walk) -> Inode:
    """Walks an absolute path from the root and fills ``walk``, also when it fails.

    Raises:
        NotFound, NotADirectory, SymlinkLoop, NameTooLong, InvalidArgument.
    """
    if len(path) > PATH_MAX:
        raise NameTooLong(f"path of {len(path)} bytes; the limit is {PATH_MAX}")
    if not path.startswith(b"/") or b"\0" in path:
        raise InvalidArgument(f"{path[:80]!r} is not an absolute path")
    left = [part for part in reversed(path.split(b"/")) if part and part != b"."]
    must_be_directory = path.endswith((b"/", b"/.", b"/.."))
    walk.inode, walk.attributes = ROOT_INODE, view.inode(ROOT_INODE)
    walk.visited.add(ROOT_INODE)
    links = 0
    while left:
        name = left.pop()
        parent = walk.inode
        walk.visited.add(parent)
        number, inode = lookup(view, parent, name)
        if S_ISLNK(inode.mode) and (left or must_be_directory or not no_follow):
            links += 1
            if links > SYMLINKS_MAX:
                raise SymlinkLoop(f"{path[:80]!r}: more than {SYMLINKS_MAX} symlinks")
            if inode.target.startswith(b"/"):
                walk.inode = ROOT_INODE
            left += [part for part in reversed(inode.target.split(b"/")) if part and part != b"."]
            walk.attributes = view.inode(walk.inode)
            continue
        walk.inode, walk.attributes = number, inode
        walk.visited.add(number)
    assert walk.attributes is not None
    if must_be_directory and not walk.attributes.is_directory:
        raise NotADirectory(f"{path[:80]!r} is not a directory")
    return walk.attributes


def readdir(
    view: View, directory: int, after_cookie: int, limit: int, want_inodes: bool
) -> tuple[list[tuple[int, Ordered, Inode | None]], bool]:
    """(cookie, entry, inode if wanted) after the cookie, as many as fit one message; and whether that was the end.

    Raises:
        Stale, NotADirectory.
    """
    view.directory(directory)
    limit = min(limit or LISTING_MAX, LISTING_MAX)
    page = view.listing(directory, after_cookie, limit)
    result: list[tuple[int, Ordered, Inode | None]] = []
    size_bytes = 0
    for cookie, entry in page:
        inode = view.named_inode(entry.inode, directory, entry.name) if want_inodes else None
        size_bytes += 48 + len(entry.name) + (300 + len(inode.target) if inode else 0)
        if size_bytes > LISTING_MAX_BYTES and result:
            return result, False
        result.append((cookie, entry, inode))
    return result, len(page) < limit


def all_names(view: View, directory: int, limit: int) -> dict[bytes, int] | None:
    """Every name in a directory and its inode; None when there are more than ``limit``."""
    limit = min(limit, LISTING_MAX)
    page = view.listing(directory, 0, limit + 1)
    return None if len(page) > limit else {entry.name: entry.inode for _, entry in page}


class Replicas:
    """Which replicas a reader should use, by the workers that are alive and the node it is on."""

    def __init__(self, live_nodes: dict[str, str], prefer_node: str) -> None:
        self.live_nodes = live_nodes
        """Worker id -> node id."""
        self._prefer_node = prefer_node
        self.workers: list[str] = []
        """The workers that were chosen, in the order of their indexes."""
        self.choices: dict[tuple[str, ...], list[int]] = {}
        """Workers of a block -> indexes of those to use, any of them: on the reader's node if any, else alive."""

    def choose(self, workers: tuple[str, ...]) -> list[int]:
        live = [worker for worker in workers if worker in self.live_nodes]
        near = [worker for worker in live if self.live_nodes[worker] == self._prefer_node]
        for worker in near or live:
            if worker not in self.workers:
                self.workers.append(worker)
        chosen = self.choices[workers] = [self.workers.index(worker) for worker in near or live]
        return chosen


Hit = tuple[int, Layout, Extent, int]
"""A name that is a regular file whose bytes can be read now: inode, its layout, its block (``NO_EXTENT`` if it has
none), and an index of the worker to read from, see ``Replicas``. (A plain tuple: thousands are made per call.)"""

NO_EXTENT = Extent(0, 0, 0, 0, 0, True, ())
"""Of a file without a block: all its bytes, if any, are zeros."""


def lookup_many(view: View, directory: int, names: Sequence[bytes], replicas: Replicas) -> tuple[bytes, list[Hit]]:
    """A bitmap of the names that are hits, and the hits in order. A name that cannot exist is a miss."""
    flags, hits = _find(view, directory, names, replicas)
    return _bitmap(flags), hits


def find_many(
    view: View, directory: int, names: Sequence[bytes], replicas: Replicas, readable: ReadableNames
) -> tuple[bytes, int]:
    """A bitmap of the names that are hits, and their number: as ``lookup_many``, without reading what is known to be
    readable."""
    version, live = view.reader.version, frozenset(replicas.live_nodes)
    known = readable.names(directory, version, live)
    flags = bytearray(map(known.__contains__, names))
    hits = flags.count(1)
    if hits == len(names):
        return _bitmap(flags), hits
    asked = [index for index, flag in enumerate(flags) if not flag]
    unknown = [names[index] for index in asked]
    found, more = _find(view, directory, unknown, replicas)
    inodes = iter(more)
    learned = []
    for index, flag in zip(asked, found, strict=True):
        if flag:
            flags[index] = 1
            learned.append((names[index], next(inodes)[0]))
    readable.learn(directory, version, live, learned)
    return _bitmap(flags), hits + len(more)


_DIGITS = bytes.maketrans(b"\0\1", b"01")


def _bitmap(flags: bytearray) -> bytes:
    """One bit for each flag (0 or 1), least significant first.

    >>> _bitmap(bytearray([1, 0, 1, 0, 0, 0, 0, 0, 1]))
    b'\\x05\\x01'
    """
    digits = flags[::-1].translate(_DIGITS)
    return int(digits or b"0", 2).to_bytes(-(-len(flags) // 8), "little")


def _find(view: View, directory: int, names: Sequence[bytes], replicas: Replicas) -> tuple[bytearray, list[Hit]]:
    """1 for each name that is a hit, else 0; and the hits in order."""
    flags = bytearray(len(names))
    prefix = u64(directory)
    # Longer keys than any name's would be refused by the store.
    keys = [prefix + (name if len(name) <= NAME_MAX else b"") for name in names]
    dentries = view.reader.get_many("dentries", keys, _dentry)
    present = [(index, dentry.inode) for index, dentry in enumerate(dentries) if dentry is not None]
    layouts = view.reader.get_many("inodes", [pack(number) for _, number in present], _layout)
    hits: list[Hit] = []
    choices = replicas.choices
    for (index, number), layout in zip(present, layouts, strict=True):
        if layout is None:
            view.named_inode(number, directory, names[index])
            continue
        if layout.mode & S_IFMT != S_IFREG:
            continue
        extent, worker = NO_EXTENT, 0
        if layout.extents:
            extent = layout.extents[0]
            usable = choices.get(extent.workers)
            if usable is None:
                usable = replicas.choose(extent.workers)
            if not usable:
                continue
            worker = usable[extent.block % len(usable)]
        flags[index] = 1
        hits.append((number, layout, extent, worker))
    return flags, hits


def resolve_directory(view: View, path: bytes) -> int:
    """The inode of the directory at a path, 0 if there is none. Raises: NameTooLong, InvalidArgument, SymlinkLoop."""
    walk = Walk()
    try:
        inode = resolve(view, path, False, walk)
    except (NotFound, NotADirectory):
        return 0
    return walk.inode if inode.is_directory else 0
