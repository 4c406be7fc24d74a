"""What the master's eviction is told."""

import os
import threading

from hearthfs.common.clock import FakeClock
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import put
from hearthfs.worker.usage import ReadBlocks, Room


def test_reads_are_told_once_and_not_lost():
    reads = ReadBlocks()
    reads.note([1, 2])
    reads.note([2, 3])
    told = reads.take()
    assert told == {1, 2, 3}
    assert reads.take() == told  # the heartbeat was not answered
    reads.note([4])
    reads.acknowledge(told)
    assert reads.take() == {4}


def test_reads_are_bounded():
    reads = ReadBlocks(limit=10)
    for block in range(100):
        reads.note([block])
    assert len(reads.take()) == 10


def test_short_room_is_told_at_once_but_not_all_the_time():
    clock, told, free = FakeClock(), [], [100]
    room = Room(lambda: free[0], clock, lambda: told.append(clock.monotonic_s()), wait_s=0)
    room.look()
    free[0] = 5
    room.look()
    assert told == []  # the master did not say what is short
    room.set(10, made=False)
    assert room.look()
    room.look()
    assert len(told) == 1
    clock.advance(1.0)
    room.look()
    free[0] = 10
    clock.advance(1.0)
    assert not room.look()
    assert len(told) == 2


def test_who_wants_room_waits_while_it_is_being_made():
    free, begun = [5], threading.Event()
    room = Room(lambda: free[0], FakeClock(), begun.set, wait_s=60)
    room.set(10, made=True)
    waiting = threading.Thread(target=room.wait)
    waiting.start()
    assert begun.wait(60)
    free[0] = 50
    room.freed()
    waiting.join(60)
    assert not waiting.is_alive()


def test_and_not_when_none_can_be_made():
    room = Room(lambda: 5, FakeClock(), lambda: None, wait_s=3600)
    room.set(10, made=False)
    room.wait()


def test_a_block_is_in_use_as_long_as_a_descriptor_of_it_is_open(make_store):
    store = make_store()
    key = BlockKey(1, 1)
    file = store.create(key)
    os.write(file.fd, b"x" * 100)
    os.close(file.fd)
    store.commit(key, 100, b"", sync=False)
    assert store.in_use([key, BlockKey(9, 9)]) == []
    opened = store.open_read(key)
    passed = opened.dup()  # as one that went to another process
    opened.close()
    assert store.in_use([key]) == [key]
    passed.close()
    assert store.in_use([key]) == []
    store.open_read(key).close()  # and the question took nothing from anybody


def test_a_block_that_is_only_being_verified_is_not_in_use(make_store):
    store = make_store()
    key = BlockKey(1, 1)
    put(store, key, b"x" * 100)
    seen = []

    def pace(_size: int) -> None:
        seen.append(store.in_use([key]))
        reader = store.open_read(key)
        seen.append(store.in_use([key]))
        reader.close()

    assert store.verify(key, pace)
    assert seen[:2] == [[], [key]]
