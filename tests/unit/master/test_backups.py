"""The stream of a backup, over a source that writes what the test says; that nothing leaks checks each test."""

import asyncio
import os
import threading

import pytest
import xxhash
from hearthfs.common.errors import Busy, DataDamaged, Unavailable
from hearthfs.master import backups
from hearthfs.master.backups import PIECE_BYTES, Backups, Made

BIG = os.urandom(3 * PIECE_BYTES + 17)
LONG = 100


class Source:
    """Writes ``data`` so many times; then is damaged, if it is to be."""

    def __init__(self, data=BIG, times=1, error=None):
        self.data, self.times, self.error = data, times, error
        self.ended = threading.Event()

    def used_bytes(self):
        return len(self.data) * self.times

    def copy_to(self, fd, look):
        try:
            for _ in range(self.times):
                view = memoryview(self.data)
                while view:
                    view = view[os.write(fd, view) :]
            if self.error is not None:
                raise self.error
            return 42
        finally:
            self.ended.set()


def run(test, source):
    async def main():
        made = Backups(source)
        try:
            await asyncio.wait_for(test(made), 60)
        finally:
            assert await made.stop(10)

    asyncio.run(main())


class Sink:
    """Takes ``count`` pieces, then no more until ``go`` is set."""

    def __init__(self, count=1 << 30):
        self.pieces, self.count = [], count
        self.full, self.go = asyncio.Event(), asyncio.Event()

    async def send(self, piece):
        self.pieces.append(piece)
        if len(self.pieces) >= self.count:
            self.full.set()
            await self.go.wait()


@pytest.mark.parametrize("size_bytes", [1, PIECE_BYTES, len(BIG)])
def test_all_bytes_come_in_pieces_with_their_digest(size_bytes):
    data = BIG[:size_bytes]

    async def test(made):
        for _ in range(2):
            sink = Sink()
            assert await made.serve(sink.send) == Made(size_bytes, xxhash.xxh3_64_intdigest(data), 42)
            assert b"".join(sink.pieces) == data
            assert max(map(len, sink.pieces)) <= PIECE_BYTES

    run(test, Source(data))


def test_one_at_a_time():
    async def test(made):
        slow = Sink(1)
        first = asyncio.create_task(made.serve(slow.send))
        await slow.full.wait()
        with pytest.raises(Busy):
            await made.serve(Sink().send)
        slow.go.set()
        assert (await first).size_bytes == len(BIG)
        assert (await made.serve(Sink().send)).size_bytes == len(BIG)

    run(test, Source())


def test_it_stays_busy_until_all_was_sent():
    """The thread may be done long before the stream: the next must not be mistaken for it."""

    async def test(made):
        slow = Sink(1)
        first = asyncio.create_task(made.serve(slow.send))
        await slow.full.wait()
        await asyncio.to_thread(source.ended.wait)
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(Busy):
            await made.serve(Sink().send)
        slow.go.set()
        await first

    source = Source(b"x")
    run(test, source)


def test_a_client_that_goes_away_ends_the_thread():
    async def test(made):
        slow = Sink(2)
        task = asyncio.create_task(made.serve(slow.send))
        await slow.full.wait()
        assert not source.ended.is_set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(source.ended.wait)
        while True:  # its end has to come to the loop
            try:
                source.times = 1
                assert (await made.serve(Sink().send)).size_bytes == len(BIG)
                break
            except Busy:
                await asyncio.sleep(0)

    source = Source(times=LONG)
    run(test, source)


def test_what_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(backups, "MAX_S", 0.0)

    async def test(made):
        with pytest.raises(TimeoutError):
            await made.serve(Sink().send)

    run(test, Source(times=LONG))


def test_damage_found_on_the_way_is_an_error_not_a_short_file():
    async def test(made):
        for _ in range(2):
            with pytest.raises(DataDamaged, match="page 7"):
                await made.serve(Sink().send)

    run(test, Source(error=DataDamaged("page 7")))


def test_a_master_that_stops_cuts_it():
    async def test(made):
        slow = Sink(1)
        task = asyncio.create_task(made.serve(slow.send))
        await slow.full.wait()
        made.close()
        slow.go.set()
        with pytest.raises(Unavailable, match="stopping"):
            await task
        with pytest.raises(Unavailable):
            await made.serve(Sink().send)

    run(test, Source(times=LONG))
