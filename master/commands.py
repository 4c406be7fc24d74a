"""Every mutation as a frozen record: all that applying it may depend on stands in the record or in the tables.

What the outside world decides is stamped in before a command is queued: the time (``Request.now_ns``), random session
ids, the worker that placement chose, which workers were alive. So a journal replayed on another day gives the same
tables.
"""

from __future__ import annotations

import msgspec

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
XATTR_CREATE = 1
XATTR_REPLACE = 2


class Command(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base: the tag of a record is its class's name."""


# ------------------------------------------------------------------ the cluster


class BeginEpoch(Command, frozen=True):
    """A master starts on this data; the first one names the cluster."""

    cluster_id: str


class Restored(Command, frozen=True):
    """These tables were made from a backup: what was committed after it is lost, but not forgotten by all."""

    epochs: int
    numbers: int


class RegisterSession(Command, frozen=True):
    session_id: int
    client_id: int
    node_id: str
    kind: str
    name: str
    holds_grants: bool


class EndSessions(Command, frozen=True):
    session_ids: tuple[int, ...]


class ForgetClients(Command, frozen=True):
    """Clients that have no session any more: their results go."""

    client_ids: tuple[int, ...]


class DropWorking(Command, frozen=True):
    """Working blocks of clients that have no session any more."""

    blocks: tuple[int, ...]


class RegisterWorker(Command, frozen=True):
    worker_id: str
    node_id: str
    address: str
    incarnation: int
    disks: tuple[str, ...]


class DrainWorker(Command, frozen=True):
    worker_id: str
    draining: bool


class ForgetWorker(Command, frozen=True):
    """It is gone for good and no file counts on it."""

    worker_id: str


class Rebalance(Command, frozen=True):
    percent: int  # 0: no more


class HeldBlock(msgspec.Struct, frozen=True):
    block: int
    generation: int
    length_bytes: int
    digest: int


class UpdateReplicas(Command, frozen=True):
    """What a worker has got and lost since it last said so; pairs in ``removed`` are (block, generation)."""

    worker_id: str
    added: tuple[HeldBlock, ...] = ()
    removed: tuple[tuple[int, int], ...] = ()


# ------------------------------------------------------------------ the namespace


class Create(Command, frozen=True):
    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int
    exclusive: bool = False
    worker_id: str = ""  # also allocate a working block, there


class CreateMany(Command, frozen=True):
    parent: int
    names: tuple[bytes, ...]
    mode: int
    uid: int
    gid: int
    exclusive: bool = False


class Mkdir(Command, frozen=True):
    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int


class Mknod(Command, frozen=True):
    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int
    rdev: int = 0


class Symlink(Command, frozen=True):
    parent: int
    name: bytes
    target: bytes
    uid: int
    gid: int


class Link(Command, frozen=True):
    inode: int
    parent: int
    name: bytes


class Unlink(Command, frozen=True):
    parent: int
    name: bytes


class UnlinkMany(Command, frozen=True):
    parent: int
    names: tuple[bytes, ...]


class Rmdir(Command, frozen=True):
    parent: int
    name: bytes


class Rename(Command, frozen=True):
    parent: int
    name: bytes
    new_parent: int
    new_name: bytes
    flags: int = 0


class Setattr(Command, frozen=True):
    inode: int
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size_bytes: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class SetXattr(Command, frozen=True):
    inode: int
    name: bytes
    value: bytes
    flags: int = 0


class RemoveXattr(Command, frozen=True):
    inode: int
    name: bytes


# ------------------------------------------------------------------ blocks


class Allocate(Command, frozen=True):
    worker_ids: tuple[str, ...]  # one per block


class Discard(Command, frozen=True):
    blocks: tuple[int, ...]


class Victim(msgspec.Struct, frozen=True):
    inode: int
    block: int
    generation: int


class Evict(Command, frozen=True):
    """Files that were chosen to make room: each goes only if it still is what was chosen."""

    victims: tuple[Victim, ...]


class EvictMany(Command, frozen=True):
    """Files that somebody asked to be evicted."""

    parent: int
    names: tuple[bytes, ...]


class Expire(Command, frozen=True):
    """Those of the files whose directory's time was over at ``as_of_ns``."""

    inodes: tuple[int, ...]
    as_of_ns: int


class SettleQuota(Command, frozen=True):
    """Lets each of the inodes count where its directory says: those above come first."""

    inodes: tuple[int, ...]


class FinishQuota(Command, frozen=True):
    """All below the quota's directory was settled."""

    quota: int


class Publication(msgspec.Struct, frozen=True):
    inode: int
    block: int
    generation: int
    length_bytes: int
    digest: int
    sealed: bool
    worker_id: str
    size_bytes: int
    mtime_ns: int = 0
    if_version: int = 0


class Publish(Command, frozen=True):
    item: Publication


class PublishMany(Command, frozen=True):
    items: tuple[Publication, ...]


class PutMany(Command, frozen=True):
    parent: int
    names: tuple[bytes, ...]
    mode: int
    uid: int
    gid: int
    blocks: tuple[int, ...]
    generations: tuple[int, ...]
    lengths_bytes: tuple[int, ...]
    digests: tuple[int, ...]
    worker_id: str
    keep_existing: bool = False
    live_workers: tuple[str, ...] = ()  # decides, with keep_existing, which files are readable
    depths: tuple[int, ...] = ()


class ReportBadReplica(Command, frozen=True):
    block: int
    generation: int
    worker_id: str


class DropReplicas(Command, frozen=True):
    """Replicas leave a worker: each (block, generation, others) if at least so many of ``live_workers`` have it too."""

    worker_id: str
    blocks: tuple[tuple[int, int, int], ...]
    live_workers: tuple[str, ...]


AnyCommand = (
    BeginEpoch
    | Restored
    | RegisterSession
    | EndSessions
    | ForgetClients
    | DropWorking
    | RegisterWorker
    | DrainWorker
    | ForgetWorker
    | Rebalance
    | UpdateReplicas
    | Create
    | CreateMany
    | Mkdir
    | Mknod
    | Symlink
    | Link
    | Unlink
    | UnlinkMany
    | Rmdir
    | Rename
    | Setattr
    | SetXattr
    | RemoveXattr
    | Allocate
    | Discard
    | Publish
    | PublishMany
    | PutMany
    | ReportBadReplica
    | DropReplicas
    | Evict
    | EvictMany
    | Expire
    | SettleQuota
    | FinishQuota
)

GROWING: tuple[type[Command], ...] = (
    Create,
    CreateMany,
    Mkdir,
    Mknod,
    Symlink,
    Link,
    SetXattr,
    Allocate,
    PutMany,
)
"""Refused with NoSpace while the store has no room; everything else goes on, so that room can be made."""


class User(msgspec.Struct, frozen=True):
    """For whom a command is, where that decides whether it may be."""

    uid: int
    gid: int


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command with what makes it exactly-once. ``client_id`` 0: the master's own, not remembered."""

    command: AnyCommand
    now_ns: int
    client_id: int = 0
    request_id: int = 0
    acked_below: int = 0
    session_id: int = 0
    user: User | None = None
    """None: whoever asks may do everything."""
