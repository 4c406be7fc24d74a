"""Open files against a master and a worker that live in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hearthfs.common.checksums import digest
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import DeadlineExceeded, HearthError, NoSpace, Stale
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.cache import MetadataCache
from hearthfs.fuse_client.chunks import VerifiedChunks
from hearthfs.fuse_client.files import Files
from hearthfs.fuse_client.inode_table import PRIVATE
from hearthfs.fuse_client.lease import Lease
from hearthfs.fuse_client.publisher import Publisher
from hearthfs.fuse_client.sealed_block import SealedBlock
from hearthfs.fuse_client.tree import FileNode, Tree
from hearthfs.fuse_client.working_file import WorkingFile
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import master_pb2 as pb

F = 42


class Source:
    local_fd = None

    def __init__(self, data: bytes, identity: int) -> None:
        self.data, self.identity, self.length_bytes, self.worker_id = data, identity, len(data), "w"

    def try_load(self, start: int, view: memoryview) -> bool:
        view[:] = self.data[start : start + len(view)]
        return True

    async def load(self, start: int, view: memoryview) -> None:
        raise AssertionError("was not ready")

    def close(self) -> None:
        return


class World:
    """Master, worker and blocks. ``published`` is what everybody else would read."""

    away = False

    def __init__(self) -> None:
        self.entries = {F: common.Entry(attributes=common.Attributes(inode=F, mode=0o100644, nlink=1, version=1))}
        self.bytes: dict[int, bytes] = {}
        self.published = b""
        self.publishes = 0
        self.fail: list[HearthError] = []
        self.room = 1 << 40
        self._next = 1
        self._chunks = VerifiedChunks()
        self.before_reply: Callable[[], None] = lambda: None

    # the master

    async def read(self, method: str, request: Any) -> common.Entry:
        await trio.lowlevel.checkpoint()
        entry = self.entries.get(request.inode)
        if entry is None:
            raise Stale("gone")
        return entry

    async def mutate(self, request: pb.MutateRequest) -> pb.MutateReply:
        await trio.lowlevel.checkpoint()
        if self.fail:
            raise self.fail.pop(0)
        if request.publish.inode not in self.entries:
            raise Stale("gone")
        entry = self.publish(request.publish)
        self.before_reply()
        return pb.MutateReply(entry=entry)

    def publish(self, item: pb.Publish) -> common.Entry:
        self.publishes += 1
        data = self.bytes[item.block] if item.block else b""
        assert len(data) == item.length_bytes
        self.published = data + bytes(item.size_bytes - len(data))
        entry = common.Entry()
        entry.CopyFrom(self.entries[item.inode])
        entry.attributes.version += 1
        entry.attributes.size_bytes = item.size_bytes
        entry.attributes.ctime_ns += 1
        del entry.extents[:]
        if item.block:
            entry.extents.add(block=item.block, generation=1, length_bytes=len(data), valid_bytes=len(data))
        self.entries[item.inode] = entry
        return entry

    def elsewhere(self, data: bytes) -> pb.Invalidation:
        """Another mount closes the file with this content."""
        self._next += 1
        self.bytes[self._next] = data
        self.publish(pb.Publish(inode=F, block=self._next, length_bytes=len(data), size_bytes=len(data)))
        self.publishes -= 1
        return pb.Invalidation(inode=F, content=True)

    # blocks

    def wants_block(self) -> bool:
        return False

    def sealed(self, entry: common.Entry) -> SealedBlock | None:
        if not entry.extents:
            return None
        return self._sealed(entry.extents[0].block, self.bytes[entry.extents[0].block])

    def _sealed(self, block: int, data: bytes) -> SealedBlock:
        async def nothing() -> None:
            return None

        self._next += 1
        source = Source(data, self._next)
        return SealedBlock(BlockKey(block, 1), len(data), self._chunks, nothing, lambda *_: None, source)

    async def new_file(self) -> WorkingFile:
        self._next += 1
        fd, path = tempfile.mkstemp()
        os.unlink(path)
        return WorkingFile(BlockKey(self._next, 1), fd, worker_id="w", address="", limit_bytes=self.room, local=True)

    async def ensure_room(self, working: WorkingFile, end: int) -> None:
        raise NoSpace("full")

    async def copy(self, sealed: SealedBlock, length: int) -> WorkingFile:
        working = await self.new_file()
        if length:
            await working.write(0, bytes(await sealed.read(0, length)))
        return working

    async def duplicate(self, working: WorkingFile) -> WorkingFile:
        raise AssertionError("not in these tests")

    async def commit(self, working: WorkingFile, *, sync: bool) -> tuple[bytes, int]:
        await trio.lowlevel.checkpoint()
        view = memoryview(bytearray(working.length_bytes))
        working.read_into(0, view)
        self.bytes[working.key.block] = bytes(view)
        packed = bytes(8)
        return packed, digest(packed, working.length_bytes)

    def seal(self, working: WorkingFile, packed: bytes, digest: int, *, synced: bool) -> SealedBlock:
        working.close()
        return self._sealed(working.key.block, self.bytes[working.key.block])

    async def sync(self, sealed: SealedBlock, length_bytes: int) -> None:
        return

    def drop(self, working: WorkingFile) -> None:
        working.close()


class SilentNotifier:
    supports_epoch = True

    def submit(self, *, names: bool, nodeids: object, done: Callable[[], None]) -> None:
        done()


class Bench:
    def __init__(self) -> None:
        clock = FakeClock()
        lease = Lease(clock)
        lease.start(5)
        lease.pong(lease.ping())
        self.world = World()
        self.cache = MetadataCache(lease, 1000)
        self.tree = Tree(self.world, self.cache, SilentNotifier())  # type: ignore[arg-type]
        publisher = Publisher(self.tree, self.world)  # type: ignore[arg-type]
        self.files = Files(self.tree, self.world, publisher, clock, warm_limit=2)  # type: ignore[arg-type]

    async def node(self) -> FileNode:
        """As a lookup by path gives it."""
        node = self.tree.node_for(await self.tree.entry(self.tree.table.attach(F)))
        self.tree.table.looked_up(node)
        return node

    async def open(self, flags: int = os.O_RDWR) -> tuple[FileNode, int]:
        node = await self.node()
        return node, (await self.files.open(node, flags)).fh

    def hear(self, event: pb.Invalidation) -> None:
        self.cache.invalidate(event)
        if event.content:
            self.files.replaced(event.inode)


def scenario(function: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        trio.run(function, Bench())

    test.__name__ = function.__name__
    return test


@scenario
async def test_nothing_is_published_before_close(bench: Bench) -> None:
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"hello")
    assert bench.world.published == b""
    assert bytes(await bench.files.read(fh, 0, 100)) == b"hello"
    await bench.files.publish(node)
    assert bench.world.published == b"hello"
    await bench.files.release(fh)
    assert bench.world.publishes == 1


@scenario
async def test_writer_that_goes_on_after_close_gets_a_new_block(bench: Bench) -> None:
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"one ")
    await bench.files.publish(node)
    first = dict(bench.world.bytes)
    await bench.files.write(fh, 4, b"two")
    await bench.files.release(fh)
    assert bench.world.published == b"one two"
    assert {block: bench.world.bytes[block] for block in first} == first


@scenario
async def test_truncating_open_is_seen_elsewhere_only_at_close(bench: Bench) -> None:
    bench.world.elsewhere(b"old")
    node, fh = await bench.open(os.O_WRONLY | os.O_TRUNC)
    assert bench.world.published == b"old"
    assert bytes(await bench.files.read(fh, 0, 10)) == b""
    await bench.files.publish(node)
    assert bench.world.published == b""
    await bench.files.release(fh)


@scenario
async def test_reader_keeps_its_version_and_a_lookup_gives_the_new_one(bench: Bench) -> None:
    bench.world.elsewhere(b"old")
    node, fh = await bench.open(os.O_RDONLY)
    bench.hear(bench.world.elsewhere(b"newer"))
    assert bytes(await bench.files.read(fh, 0, 10)) == b"old"
    fresh, second = await bench.open(os.O_RDONLY)
    assert fresh.nodeid >= PRIVATE
    assert bytes(await bench.files.read(second, 0, 10)) == b"newer"
    assert node.detached
    await bench.files.release(fh)
    await bench.files.release(second)


@scenario
async def test_new_version_is_noticed_without_its_event(bench: Bench) -> None:
    bench.world.elsewhere(b"old")
    node, fh = await bench.open(os.O_RDONLY)
    bench.world.elsewhere(b"newer")
    bench.cache.clear()
    fresh, second = await bench.open(os.O_RDONLY)
    assert fresh is not node
    assert bytes(await bench.files.read(second, 0, 10)) == b"newer"
    assert bytes(await bench.files.read(fh, 0, 10)) == b"old"


@scenario
async def test_last_close_wins_and_its_node_is_current_again(bench: Bench) -> None:
    bench.world.elsewhere(b"old")
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"ours")
    bench.hear(bench.world.elsewhere(b"theirs"))
    assert node.detached
    await bench.files.publish(node)
    assert bench.world.published == b"ours"
    assert bench.tree.table.current(F) is node
    await bench.files.release(fh)


@scenario
async def test_a_replica_made_meanwhile_is_no_other_version(bench: Bench) -> None:
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"ours")
    bench.hear(bench.world.elsewhere(b"theirs"))
    reader, other = await bench.open(os.O_RDONLY)
    assert reader is not node
    bench.world.before_reply = lambda: bench.hear(pb.Invalidation(inode=F))
    await bench.files.publish(node)
    assert bench.tree.table.current(F) is node
    await bench.files.write(fh, 0, b"more")
    bench.hear(bench.world.elsewhere(b"theirs"))
    bench.world.before_reply = lambda: bench.hear(pb.Invalidation(inode=F, content=True))
    await bench.files.publish(node)
    assert bench.tree.table.current(F) is not node
    await bench.files.release(fh)
    await bench.files.release(other)


@scenario
async def test_file_without_a_name_is_published_to_nobody(bench: Bench) -> None:
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"x")
    del bench.world.entries[F]
    bench.cache.clear()
    await bench.files.publish(node)
    assert node.orphan
    assert bytes(await bench.files.read(fh, 0, 10)) == b"x"
    await bench.files.release(fh)
    assert bench.world.publishes == 0


@scenario
async def test_failed_close_is_tried_again(bench: Bench) -> None:
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"x")
    bench.world.fail.append(DeadlineExceeded("no answer"))
    with pytest.raises(DeadlineExceeded):
        await bench.files.publish(node)
    assert bytes(await bench.files.read(fh, 0, 10)) == b"x"
    await bench.files.release(fh)
    assert bench.world.published == b"x"


@scenario
async def test_block_that_the_master_lost_is_written_again(bench: Bench) -> None:
    node, fh = await bench.open()
    await bench.files.write(fh, 0, b"x" * 10)
    bench.world.fail.append(Stale("not a working block of this client"))
    await bench.files.publish(node)
    assert bench.world.published == b"x" * 10
    await bench.files.release(fh)


@scenario
async def test_version_whose_write_failed_is_not_published(bench: Bench) -> None:
    bench.world.elsewhere(b"whole")
    bench.world.room = 10
    node, fh = await bench.open(os.O_WRONLY | os.O_TRUNC)
    await bench.files.write(fh, 0, b"x" * 10)
    with pytest.raises(NoSpace):
        await bench.files.write(fh, 10, b"x" * 10)
    with pytest.raises(NoSpace):
        await bench.files.publish(node)
    await bench.files.release(fh)
    assert bench.world.published == b"whole"


@scenario
async def test_pages_are_kept_only_for_the_version_they_belong_to(bench: Bench) -> None:
    bench.world.elsewhere(b"one")
    node = await bench.node()
    assert not (await bench.files.open(node, os.O_RDONLY)).keep_cache
    bench.files._dropped_pages.clear()
    info = await bench.files.open(node, os.O_RDONLY)
    assert info.keep_cache
    for number in (1, 2):
        await bench.files.release(number)
    bench.hear(bench.world.elsewhere(b"two"))
    node = await bench.node()
    assert not (await bench.files.open(node, os.O_RDONLY)).keep_cache


@scenario
async def test_concurrent_opens_share_one_content(bench: Bench) -> None:
    bench.world.elsewhere(b"data")
    node = await bench.node()

    async def open_and_read() -> None:
        info = await bench.files.open(node, os.O_RDONLY)
        assert bytes(await bench.files.read(info.fh, 0, 10)) == b"data"

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(open_and_read)
    assert node.opens == 5


@scenario
async def test_closed_files_kept_open_are_bounded(bench: Bench) -> None:
    for inode in range(100, 110):
        bench.world.entries[inode] = common.Entry(
            attributes=common.Attributes(inode=inode, mode=0o100644, nlink=1, version=1)
        )
        node = bench.tree.node_for(await bench.tree.entry(bench.tree.table.attach(inode)))
        bench.tree.table.looked_up(node)
        await bench.files.release((await bench.files.open(node, os.O_RDONLY)).fh)
    assert sum(node.content is not None for node in bench.tree.table) <= 2
