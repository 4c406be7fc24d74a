"""The tables as records: typed reading of one state."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..common.errors import DataDamaged, NotADirectory, NotFound, Stale
from .directory_policy import DirectoryPolicy, policy_of
from .records import (
    WORKER_ID_MAX,
    Block,
    Client,
    Cluster,
    Counters,
    Dentry,
    Epoch,
    Extent,
    Garbage,
    Held,
    Inode,
    Ordered,
    Quota,
    Rebalancing,
    Session,
    Worker,
    Working,
)
from .tables import PAGE_ROWS, Reader, from_u64, named, of_worker, pair, rows, u64

_inode = msgspec.msgpack.Decoder(Inode)
_dentry = msgspec.msgpack.Decoder(Dentry)
_ordered = msgspec.msgpack.Decoder(Ordered)
_block = msgspec.msgpack.Decoder(Block)
_working = msgspec.msgpack.Decoder(Working)
_held = msgspec.msgpack.Decoder(Held)
_garbage = msgspec.msgpack.Decoder(Garbage)
_session = msgspec.msgpack.Decoder(Session)
_client = msgspec.msgpack.Decoder(Client)
_worker = msgspec.msgpack.Decoder(Worker)
_counters = msgspec.msgpack.Decoder(Counters)
_rebalancing = msgspec.msgpack.Decoder(Rebalancing)
_quota = msgspec.msgpack.Decoder(Quota)
_epoch = msgspec.msgpack.Decoder(Epoch)
_cluster = msgspec.msgpack.Decoder(Cluster)


class View:
    """Raises DataDamaged from every method when a stored value is not what was written."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    # ---------------------------------------------------------------- inodes and names

    def find_inode(self, number: int) -> Inode | None:
        value = self.reader.get("inodes", u64(number)) if number else None
        return None if value is None else _inode.decode(value)

    def inode(self, number: int) -> Inode:
        """Raises: Stale: there is no such inode (any more)."""
        found = self.find_inode(number)
        if found is None:
            raise Stale(f"inode {number} does not exist (any more)")
        return found

    def directory(self, number: int) -> Inode:
        """Raises: Stale, NotADirectory."""
        found = self.inode(number)
        if not found.is_directory:
            raise NotADirectory(f"inode {number} is not a directory")
        return found

    def find_dentry(self, parent: int, name: bytes) -> Dentry | None:
        value = self.reader.get("dentries", named(parent, name))
        return None if value is None else _dentry.decode(value)

    def dentry(self, parent: int, name: bytes) -> Dentry:
        """Raises: NotFound."""
        found = self.find_dentry(parent, name)
        if found is None:
            raise NotFound(f"{name!r} does not exist in directory {parent}")
        return found

    def named_inode(self, number: int, parent: int, name: bytes) -> Inode:
        """The inode of a dentry, which must exist. Raises: DataDamaged."""
        found = self.find_inode(number)
        if found is None:
            raise DataDamaged(
                f"{name!r} in directory {parent} names inode {number}, which does not exist; run hearth fsck"
            )
        return found

    def is_empty(self, directory: int) -> bool:
        return not self.reader.scan("dentries", u64(directory), limit=1)

    def listing(self, directory: int, after_cookie: int, limit: int) -> list[tuple[int, Ordered]]:
        """(cookie, entry) in order of cookies, those after ``after_cookie``."""
        page = self.reader.scan("order", u64(directory), pair(directory, after_cookie + 1), limit)
        return [(from_u64(key), _ordered.decode(value)) for key, value in page]

    def xattrs(self, inode: int) -> dict[bytes, bytes]:
        return {key[8:]: value for key, value in rows(self.reader, "xattrs", u64(inode))}

    def has_xattrs(self, inode: int | None = None) -> bool:
        """Whether that inode has extended attributes; without one, whether any has."""
        return bool(self.reader.scan("xattrs", b"" if inode is None else u64(inode), limit=1))

    def policy(self, directory: int) -> DirectoryPolicy:
        """What it asks for the files in it."""
        return policy_of(self.xattrs(directory))

    # ---------------------------------------------------------------- blocks

    def find_block(self, block: int) -> Block | None:
        value = self.reader.get("blocks", u64(block))
        return None if value is None else _block.decode(value)

    def find_working(self, block: int) -> Working | None:
        value = self.reader.get("working", u64(block))
        return None if value is None else _working.decode(value)

    def extent_of(self, block: int, generation: int) -> tuple[int, Inode, Extent] | None:
        """(inode number, inode, extent) of the file that this version of this block belongs to."""
        found = self.find_block(block)
        if found is None or found.generation != generation:
            return None
        inode = self.find_inode(found.inode)
        if inode is None or not inode.extents or inode.extents[0].block != block:
            raise DataDamaged(f"block {block:016x} names inode {found.inode}, which does not have it; run hearth fsck")
        return found.inode, inode, inode.extents[0]

    def published(self, start: int, limit: int = PAGE_ROWS) -> list[tuple[int, Block]]:
        """(block, record) of files' blocks from number ``start`` on, ascending."""
        page = self.reader.scan("blocks", start=u64(start), limit=limit)
        return [(from_u64(key), _block.decode(value)) for key, value in page]

    def held(self, worker_id: str, start: int, limit: int = PAGE_ROWS) -> list[tuple[int, Held]]:
        """(block, record) of the worker's blocks from number ``start`` on, ascending."""
        page = self.reader.scan("worker_blocks", of_worker(worker_id), of_worker(worker_id, start), limit)
        return [(from_u64(key), _held.decode(value)) for key, value in page]

    def garbage(self, worker_id: str, limit: int) -> list[tuple[int, Garbage]]:
        """(block, record) of what that worker is to delete, or to look at."""
        page = self.reader.scan("garbage", of_worker(worker_id), limit=limit)
        return [(from_u64(key), _garbage.decode(value)) for key, value in page]

    def find_garbage(self, worker_id: str, block: int) -> Garbage | None:
        value = self.reader.get("garbage", of_worker(worker_id, block))
        return None if value is None else _garbage.decode(value)

    def working_blocks(self) -> Iterator[tuple[int, Working]]:
        for key, value in rows(self.reader, "working"):
            yield from_u64(key), _working.decode(value)

    # ---------------------------------------------------------------- quotas

    def find_quota(self, quota: int) -> Quota | None:
        value = self.reader.get("quotas", u64(quota)) if quota else None
        return None if value is None else _quota.decode(value)

    def quotas(self) -> Iterator[tuple[int, Quota]]:
        for key, value in rows(self.reader, "quotas"):
            yield from_u64(key), _quota.decode(value)

    def quota_chain(self, quota: int) -> tuple[tuple[int, Quota], ...]:
        """The quota and those that it counts in, the nearest first."""
        chain = []
        while (found := self.find_quota(quota)) is not None:
            chain.append((quota, found))
            quota = found.above
        return tuple(chain)

    # ---------------------------------------------------------------- cluster

    def counters(self) -> Counters:
        value = self.reader.get("meta", b"counters")
        return Counters() if value is None else _counters.decode(value)

    def epoch(self) -> Epoch | None:
        value = self.reader.get("meta", b"epoch")
        return None if value is None else _epoch.decode(value)

    def rebalance_percent(self) -> int:
        """0: no blocks are to be moved."""
        value = self.reader.get("meta", b"rebalancing")
        return 0 if value is None else _rebalancing.decode(value).percent

    def cluster(self) -> Cluster | None:
        value = self.reader.get("meta", b"cluster")
        return None if value is None else _cluster.decode(value)

    def find_session(self, session_id: int) -> Session | None:
        value = self.reader.get("sessions", u64(session_id))
        return None if value is None else _session.decode(value)

    def sessions(self) -> Iterator[tuple[int, Session]]:
        for key, value in rows(self.reader, "sessions"):
            yield from_u64(key), _session.decode(value)

    def find_client(self, client_id: int) -> Client | None:
        value = self.reader.get("clients", u64(client_id))
        return None if value is None else _client.decode(value)

    def clients(self) -> Iterator[tuple[int, Client]]:
        for key, value in rows(self.reader, "clients"):
            yield from_u64(key), _client.decode(value)

    def find_worker(self, worker_id: str) -> Worker | None:
        key = worker_id.encode()
        value = self.reader.get("workers", key) if 0 < len(key) <= WORKER_ID_MAX else None  # what a key may be
        return None if value is None else _worker.decode(value)

    def workers(self) -> Iterator[tuple[str, Worker]]:
        for key, value in rows(self.reader, "workers"):
            yield key.decode(), _worker.decode(value)
