import asyncio

import pytest
from hearthfs.common.errors import Busy, NotFound, Unavailable
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, feed, journal
from hearthfs.master.feed import Feed
from hearthfs.master.tables import MemoryStore

MKDIR = commands.Request(commands.Mkdir(ROOT_INODE, b"d", 0o755, 0, 0), 5)


class Reader:
    """Somebody who reads, and what came."""

    def __init__(self):
        self.numbers = []
        self.came = asyncio.Event()

    async def send(self, page):
        self.numbers += [number for number, _ in page]
        self.came.set()

    async def has(self, last):
        while self.numbers[-1:] != [last]:
            self.came.clear()
            await self.came.wait()


class Journal:
    def __init__(self):
        self.store = MemoryStore()
        self.feed = Feed(self.store)

    def append(self, count):
        with self.store.batch() as batch, batch.step() as txn:
            for _ in range(count):
                journal.append(txn, MKDIR)
        self.feed.committed()

    def trim(self, keep):
        with self.store.batch() as batch, batch.step() as txn:
            journal.trim(txn, keep)


def run(test):
    asyncio.run(asyncio.wait_for(test(Journal()), 60))


async def read(made, after=0, newest=0):
    reader = Reader()
    await made.feed.serve(reader.send, after, newest)
    return reader.numbers


def test_it_ends_with_the_newest_of_when_it_began(monkeypatch):
    monkeypatch.setattr(journal, "PAGE_BYTES", 1)

    async def test(made):
        made.append(5)

        async def send(page):
            numbers.extend(number for number, _ in page)
            made.append(1)

        numbers = []
        await made.feed.serve(send, 2)
        assert numbers == [3, 4, 5]
        assert await read(made, 8) == []

    run(test)


def test_the_newest_so_many_or_as_many_as_there_are():
    async def test(made):
        assert await read(made, newest=3) == []
        made.append(10)
        assert await read(made, newest=3) == [8, 9, 10]
        assert await read(made, newest=99) == list(range(1, 11))
        made.trim(4)
        assert await read(made, newest=99) == [7, 8, 9, 10]
        made.trim(0)
        assert await read(made, newest=99) == []

    run(test)


def test_who_follows_gets_what_is_committed():
    async def test(made):
        made.append(2)
        reader = Reader()
        task = asyncio.create_task(made.feed.serve(reader.send, 0, follow=True))
        await reader.has(2)
        made.append(1)
        await reader.has(3)
        made.append(2)
        await reader.has(5)
        assert reader.numbers == [1, 2, 3, 4, 5]
        made.feed.close()
        with pytest.raises(Unavailable):
            await task

    run(test)


def test_who_is_slower_than_the_retention_is_told(monkeypatch):
    monkeypatch.setattr(journal, "PAGE_BYTES", 1)

    async def test(made):
        made.append(10)

        async def send(page):
            made.trim(2)

        with pytest.raises(NotFound, match="record 2 is gone"):
            await made.feed.serve(send, 0)

    run(test)


def test_readers_are_bounded_and_who_left_is_not_counted(monkeypatch):
    monkeypatch.setattr(feed, "READERS_MAX", 2)

    async def test(made):
        made.append(1)
        reader = Reader()
        tasks = [asyncio.create_task(made.feed.serve(reader.send, 0, follow=True)) for _ in range(2)]
        await reader.has(1)
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await read(made)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        assert await read(made) == [1]
        tasks[1].cancel()
        await asyncio.wait(tasks)

    run(test)
