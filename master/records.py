"""What the tables hold: one record type per table, and the two envelopes of the journal and the results.

Every value is a msgpack map with the field names inside, so a reader that is older skips what it does not know and a
newer one fills what is missing with the defaults below. (The store puts a checksum before each value.)
"""

from __future__ import annotations

import stat

import msgspec

SCHEMA_VERSION = 1
WORKER_ID_MAX = 128
"""Bytes; keys have it in front."""


class Schema(msgspec.Struct, frozen=True):
    """``meta`` / ``schema``. Readable by every version: a newer one makes older masters refuse the data."""

    version: int


class Cluster(msgspec.Struct, frozen=True):
    """``meta`` / ``cluster``."""

    cluster_id: str
    created_ns: int


class Epoch(msgspec.Struct, frozen=True):
    """``meta`` / ``epoch``: grows by one with every start of a master on this data."""

    epoch: int
    started_ns: int


class Counters(msgspec.Struct):
    """``meta`` / ``counters``. The ``next_*`` ids are never given twice; the others count rows."""

    next_inode: int = 2
    next_cookie: int = 1
    next_block: int = 1
    inodes: int = 0
    blocks: int = 0  # of files; working blocks are not counted
    without_replica: int = 0  # files whose extent names no worker at all


class Extent(msgspec.Struct, frozen=True, gc=False):
    """The one block of a file. Bytes ``[valid_bytes, size of the file)`` read as zeros."""

    block: int
    generation: int
    length_bytes: int
    valid_bytes: int  # 0 < valid <= length
    digest: int
    sealed: bool
    workers: tuple[str, ...]  # ids of those that hold a replica


class Inode(msgspec.Struct, frozen=True, omit_defaults=True):
    """``inodes`` / inode u64. ``links`` names every dentry of it (the root has none): a directory has one."""

    mode: int
    uid: int
    gid: int
    nlink: int  # len(links), for a directory 2 + its subdirectories
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    size_bytes: int = 0
    rdev: int = 0
    version: int = 0  # of the content: grows with every publish and truncate
    target: bytes = b""  # of a symlink
    links: tuple[tuple[int, bytes], ...] = ()  # (parent, name)
    extents: tuple[Extent, ...] = ()  # none or one; only of regular files with valid bytes
    depth: int = 0  # in its prompt, as whoever put it said: of equally old files the deepest is evicted first
    quota: int = 0  # in which it counts; of a directory: what is made in it

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def parents(self) -> tuple[int, ...]:
        return tuple(parent for parent, _ in self.links)


class Layout(msgspec.Struct, frozen=True, gc=False):
    """The part of an ``Inode`` that a batch lookup needs: decoding less is what makes it fast."""

    mode: int
    size_bytes: int = 0
    extents: tuple[Extent, ...] = ()


class Modes(msgspec.Struct, frozen=True, gc=False):
    """The part of an ``Inode`` that decides who may use it."""

    mode: int
    uid: int
    gid: int


class Dentry(msgspec.Struct, frozen=True, gc=False):
    """``dentries`` / parent u64 + name."""

    inode: int
    cookie: int


class Ordered(msgspec.Struct, frozen=True):
    """``order`` / parent u64 + cookie u64: the directory in the order in which it is listed."""

    name: bytes
    inode: int
    type: int  # S_IFMT bits of the inode, which never change


class Block(msgspec.Struct, frozen=True):
    """``blocks`` / block u64: to which file a published block belongs. Everything else stands in the file's extent."""

    inode: int
    generation: int


class Working(msgspec.Struct, frozen=True):
    """``working`` / block u64: allocated, not part of a file. Its client owns it, through all its sessions."""

    client_id: int
    generation: int
    worker_id: str
    allocated_ns: int


class Held(msgspec.Struct, frozen=True):
    """``worker_blocks`` / worker + NUL + block u64: the extents' ``workers`` the other way round."""

    generation: int
    since_ns: int


class Garbage(msgspec.Struct, frozen=True, omit_defaults=True):
    """``garbage`` / worker + NUL + block u64: to be deleted there; stays until the worker says that it is gone.

    ``doubted``: somebody says that its bytes are wrong; the worker looks, and says that it has it or that it is gone.
    """

    generation: int
    doubted: bool = False


class Session(msgspec.Struct, frozen=True):
    """``sessions`` / session u64."""

    client_id: int
    node_id: str
    kind: str
    name: str
    holds_grants: bool
    epoch: int
    opened_ns: int


class Client(msgspec.Struct, frozen=True):
    """``clients`` / client u64. ``session_id`` is 0 between two sessions, since ``seen_ns``."""

    session_id: int
    seen_ns: int
    acked_below: int = 1


class Worker(msgspec.Struct, frozen=True, omit_defaults=True):
    """``workers`` / worker id."""

    node_id: str
    address: str
    incarnation: int
    disks: tuple[str, ...]
    registered_ns: int
    draining: bool = False  # it gets no new blocks, and what it has goes to others


class Rebalancing(msgspec.Struct, frozen=True):
    """``meta`` / ``rebalancing``, if blocks are to move until no worker is so many percent above the mean."""

    percent: int


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """``quotas`` / quota u64. How much all below a directory has and may have; see ``quotas``."""

    directory: int
    limit_bytes: int  # 0: no limit
    used_bytes: int = 0
    above: int = 0  # the quota that this one counts in
    settled: bool = False  # all below the directory counts where it should
    ended: bool = False


class WorkingBlock(msgspec.Struct, frozen=True):
    """A working block in a reply."""

    block: int
    generation: int
    worker_id: str


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a mutation answers, as stored: worker ids become addresses when it is sent."""

    inode: int = 0
    attributes: Inode | None = None
    blocks: tuple[WorkingBlock, ...] = ()
    errnos: tuple[int, ...] = ()
    inodes: tuple[int, ...] = ()
    existed: bool = False


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """``results`` / client u64 + request u64: the answer, for as long as the client may ask again.

    ``error`` is the name of the error's kind, empty for success: a failure is an answer too.
    """

    operation: str
    error: str = ""
    message: str = ""
    reply: Reply = Reply()
