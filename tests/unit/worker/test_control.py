import os

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import Busy, InvalidArgument
from hearthfs.common.types import BlockKey
from hearthfs.proto import worker_pb2
from hearthfs.tests.unit.worker.parts import key_message, pattern, put
from hearthfs.worker.control import Control
from hearthfs.worker.fetch import Fetcher
from hearthfs.worker.leases import Leases
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.usage import ReadBlocks, Room

KEY = BlockKey(1, 1)
ITEM = worker_pb2.CommitItem(key=key_message(KEY), length_bytes=1, checksums=bytes(8))
BARE = worker_pb2.CommitItem(key=key_message(KEY), length_bytes=1)


@pytest.fixture
def control(store):
    leases = Leases(10, 2, iter(range(1, 100)).__next__)
    clock = FakeClock()
    yield Control(store, leases, Fetcher(store, clock, 5), clock, Metrics(), "w1", "c1", lambda: None)
    leases.close()


@pytest.mark.parametrize(
    ("op", "pace"),
    [
        ({"hello": worker_pb2.Hello()}, "quick"),
        ({"open": worker_pb2.OpenBlocks()}, "quick"),
        ({"create": worker_pb2.CreateBlocks()}, "quick"),
        ({"create": worker_pb2.CreateBlocks(copy_from=key_message(KEY))}, "disk"),
        ({"commit": worker_pb2.CommitBlocks(items=[ITEM])}, "quick"),
        ({"commit": worker_pb2.CommitBlocks(items=[ITEM], sync=True)}, "disk"),
        ({"commit": worker_pb2.CommitBlocks(items=[ITEM, BARE])}, "disk"),
        ({"fetch": worker_pb2.FetchBlock()}, "network"),
        ({}, "quick"),
    ],
)
def test_requests_wait_only_behind_their_like(control, op, pace):
    assert control.pace(worker_pb2.ControlRequest(**op)) == pace


def test_leases_are_bounded_and_a_refused_one_keeps_no_file_open(store, control):
    keys = [BlockKey(block, 1) for block in range(3)]
    for key in keys:
        put(store, key, pattern(10))
    request = worker_pb2.ControlRequest(open=worker_pb2.OpenBlocks(blocks=map(key_message, keys)))
    with pytest.raises(Busy, match="2 is the limit"):
        control.handle(request, "grpc")
    # the leak check of the test suite does the rest


def test_the_socket_door_takes_no_lease(store, control):
    put(store, KEY, b"abc")
    request = worker_pb2.ControlRequest(open=worker_pb2.OpenBlocks(blocks=[key_message(KEY)]))
    answer = control.handle(request, "socket")
    assert answer.reply.lease_id == 0
    for fd in answer.fds:
        os.close(fd)


def test_an_operation_of_a_later_version_is_refused(control):
    later = worker_pb2.ControlRequest.FromString(b"\xf2\x01\x00")  # field 30
    with pytest.raises(InvalidArgument, match="this version"):
        control.handle(later, "socket")


def test_who_may_have_to_wait_for_room_keeps_nobody_waiting(store):
    clock, told = FakeClock(), []
    room = Room(lambda: 5, clock, lambda: told.append(1), wait_s=0)
    leases = Leases(10, 2, iter(range(1, 100)).__next__)
    reads = ReadBlocks()
    control = Control(
        store, leases, Fetcher(store, clock, 5), clock, Metrics(), "w1", "c1", lambda: None, reads=reads, room=room
    )
    request = worker_pb2.ControlRequest(create=worker_pb2.CreateBlocks(blocks=[key_message(KEY)]))
    assert control.pace(request) == "quick"
    room.set(10, made=True)
    assert control.pace(request) == "disk"
    answer = control.handle(request, "socket")
    assert told
    for fd in answer.fds:
        os.close(fd)
    put(store, BlockKey(2, 1), b"abc")
    answer = control.handle(
        worker_pb2.ControlRequest(open=worker_pb2.OpenBlocks(blocks=[key_message(BlockKey(2, 1)), key_message(KEY)])),
        "socket",
    )
    for fd in answer.fds:
        os.close(fd)
    assert reads.take() == {2}
