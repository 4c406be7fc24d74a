import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from hearthfs.common.errors import BlockCorrupt
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.content import Content
from hearthfs.fuse_client.passing import Passing

NODE = 5


class Block:
    """A sealed block as far as passing looks at it."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.key = BlockKey(7, 1)
        self.length_bytes = len(data)
        self.local_fd: int | None = os.open(path, os.O_RDONLY)
        self.verified = 0
        self.bad = False

    async def verify(self) -> None:
        self.verified += 1
        if self.bad:
            raise BlockCorrupt("flipped")


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.block = Block(path, b"bytes" * 1000)
        self.worker_start = 1
        self.allowed = True
        self.offers: list[tuple[int, int, bool]] = []
        self.passing = Passing(self.offer, lambda: self.allowed, lambda: self.worker_start, fine_times=True)
        self.content = Content(1, 5000, 5000, self.block)  # type: ignore[arg-type]

    def offer(self, handle: int, backing_fd: int, *, writes: bool) -> bool:
        self.offers.append((handle, backing_fd, writes))
        return True

    async def open(self, handle: int, flags: int = os.O_RDONLY) -> bool:
        passes = await self.passing.prepare(NODE, self.content, flags)
        self.passing.opened(NODE, handle, self.content, passes=passes)
        return self.passing.passes(NODE)

    async def once(self) -> bool:
        try:
            return await self.open(1)
        finally:
            self.passing.closed(NODE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "block")
    fd = world.block.local_fd
    yield world
    assert fd is not None
    os.close(fd)


def test_verified_once_per_worker_start_and_change(world: World) -> None:
    async def run() -> None:
        assert await world.once()
        assert await world.once()
        assert world.block.verified == 1
        world.worker_start += 1
        assert await world.once()
        assert world.block.verified == 2
        os.utime(world.path)
        assert await world.once()
        assert world.block.verified == 3

    trio.run(run)


def test_what_was_sealed_here_needs_no_second_look(world: World) -> None:
    async def run() -> None:
        world.passing.verified_here(world.block.key, world.block.local_fd)
        assert await world.once()
        assert world.block.verified == 0

    trio.run(run)


@pytest.mark.parametrize("why", ["bad", "tail", "cut", "dirty", "remote", "kernel", "longer file"])
def test_what_does_not_pass(world: World, why: str) -> None:
    world.block.bad = why == "bad"
    world.allowed = why != "kernel"
    world.content.dirty = why == "dirty"
    fd = world.block.local_fd
    if why == "tail":
        world.content.size = 6000
    elif why == "cut":
        world.content.size = world.content.valid = 4000
    elif why == "remote":
        world.block.local_fd = None
    elif why == "longer file":
        with world.path.open("ab") as file:
            file.write(b"more")
    assert not trio.run(world.once)
    assert world.offers == []
    world.block.local_fd = fd


def test_an_inode_keeps_its_mode_until_the_last_handle(world: World) -> None:
    async def run() -> None:
        assert not await world.open(1, os.O_RDWR)
        assert not await world.open(2)
        world.passing.closed(NODE)
        assert not await world.open(3)
        world.passing.closed(NODE)
        world.passing.closed(NODE)
        assert await world.open(4)
        world.content.size = 6000  # would not pass if it were opened now
        assert await world.open(5)
        assert [handle for handle, _, _ in world.offers] == [4, 5]

    trio.run(run)


def test_a_writer_may_wait_for_readers(world: World) -> None:
    async def run() -> None:
        await world.open(1)
        assert not await world.passing.wait_idle(NODE, 1.0)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert await world.passing.wait_idle(NODE, 1.0)

            nursery.start_soon(wait)
            await trio.sleep(0.5)
            world.passing.closed(NODE)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
