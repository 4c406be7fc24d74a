import os
import threading

import grpc
import pytest
from hearthfs.common import checksums, data_stream
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import (
    BlockCorrupt,
    BlockMissing,
    Conflict,
    Exists,
    FileTooBig,
    InvalidArgument,
    NoSpace,
    NotFound,
    SettingsError,
    TooBig,
    from_rpc_error,
)
from hearthfs.common.types import BlockKey
from hearthfs.proto import worker_pb2, worker_pb2_grpc
from hearthfs.tests.unit.worker.parts import block_path, key_message, pattern, put, sums
from hearthfs.worker.control import Control
from hearthfs.worker.fetch import Fetcher
from hearthfs.worker.leases import Leases
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.service import BlockStreams, GrpcDoor, WorkerService

KEY = BlockKey(0x51, 1)
DATA = pattern((9 << 20) + 123)
CHUNK = checksums.CHUNK_BYTES


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make_door(store, clock):
    leases = Leases(10, 100, iter(range(1, 1000)).__next__)
    made = []

    def make(call_limit_s=60):
        metrics = Metrics()
        control = Control(store, leases, Fetcher(store, clock, 5), clock, metrics, "w1", "c1", lambda: None)
        about = worker_pb2.StatsReply(worker_id="w1", node_id="n1", cluster_id="c1", version="1")
        door = GrpcDoor("127.0.0.1:0", 4, call_limit_s)
        door.start(WorkerService(control, store, leases, about), BlockStreams(store, leases, clock, metrics))
        made.append(door)
        return door

    yield make
    for door in made:
        door.stop(0)
    leases.close()


@pytest.fixture
def door(make_door):
    return make_door()


@pytest.fixture
def channel(door):
    with grpc.insecure_channel(f"127.0.0.1:{door.port}", options=data_stream.CHANNEL_OPTIONS) as made:
        yield made


@pytest.fixture
def stub(channel):
    return worker_pb2_grpc.WorkerStub(channel)


def read(channel, key=KEY, data=DATA, offset=0, length=None):
    into = memoryview(bytearray(len(data) - offset if length is None else length))
    data_stream.read_into(
        channel,
        key,
        offset,
        into,
        block_length=len(data),
        digest=checksums.digest(sums(data), len(data)),
        timeout_s=20,
        what="test",
    )
    return bytes(into)


def write(channel, data, offset=0, key=KEY):
    return data_stream.write_from(channel, key, offset, memoryview(data), timeout_s=20, what="test")


def control(stub, **op):
    return stub.Control(worker_pb2.ControlRequest(**op), timeout=20)


def test_a_block_goes_up_and_comes_down(channel, stub):
    half = 5 * CHUNK
    assert write(channel, DATA[:half]) == half
    assert write(channel, DATA[half:], half) == len(DATA)
    item = worker_pb2.CommitItem(key=key_message(KEY), length_bytes=len(DATA), checksums=sums(DATA))
    assert list(control(stub, commit=worker_pb2.CommitBlocks(items=[item])).errnos) == [0]
    assert read(channel) == DATA
    assert read(channel, offset=4 * CHUNK) == DATA[4 * CHUNK :]
    assert read(channel, offset=CHUNK, length=2 * CHUNK) == DATA[CHUNK : 3 * CHUNK]


def test_an_empty_block_goes_up_and_comes_down(channel, stub):
    write(channel, b"")
    control(stub, commit=worker_pb2.CommitBlocks(items=[worker_pb2.CommitItem(key=key_message(KEY))]))
    assert read(channel, data=b"") == b""


@pytest.mark.parametrize(
    ("offset", "length"),
    [(1, 0), (CHUNK, 5), (20 * CHUNK, 0), ((1 << 64) - CHUNK, 0), (0, (1 << 64) - 1), (9 * CHUNK, CHUNK), (0, 1 << 63)],
)
def test_ranges_that_make_no_sense_are_refused(store, channel, offset, length):
    put(store, KEY, DATA)
    call = channel.unary_stream(data_stream.READ, worker_pb2.ReadRequest.SerializeToString, bytes)
    request = worker_pb2.ReadRequest(block=KEY.block, generation=1, offset_bytes=offset, length_bytes=length)
    with pytest.raises(grpc.RpcError) as raised:
        list(call(request, timeout=20))
    assert isinstance(from_rpc_error(raised.value), InvalidArgument)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert read(channel) == DATA


def test_unknown_blocks_are_not_found(channel):
    with pytest.raises(NotFound):
        read(channel)
    with pytest.raises(NotFound):
        read(channel, key=BlockKey((1 << 64) - 1, (1 << 32) - 1))


@pytest.mark.parametrize("ruin", ["flip", "cut", "remove"])
def test_a_bad_block_is_never_delivered(store, channel, ruin):
    put(store, KEY, DATA)
    file = block_path(store, KEY)
    if ruin == "remove":
        file.unlink()
    elif ruin == "cut":
        os.truncate(file, len(DATA) - 1)
    else:
        with file.open("r+b") as stream:
            stream.seek(7 * CHUNK)
            stream.write(bytes([DATA[7 * CHUNK] ^ 1]))
    with pytest.raises(BlockMissing if ruin == "remove" else BlockCorrupt):
        read(channel)
    with pytest.raises(NotFound):
        read(channel)
    assert store.catalog.bad_blocks == 1


def test_a_block_that_is_cut_while_it_is_read_ends_the_read(store, channel, monkeypatch):
    put(store, KEY, DATA)
    real = store.open_read

    def cut_after_opening(key):
        opened = real(key)
        os.truncate(block_path(store, key), 5 * CHUNK)
        return opened

    monkeypatch.setattr(store, "open_read", cut_after_opening)
    with pytest.raises(BlockCorrupt, match="ends at"):
        read(channel)
    assert store.catalog.find(KEY) is None


def test_payload_that_was_damaged_on_the_way_is_refused(channel):
    header = worker_pb2.WriteHeader(block=KEY.block, generation=1, payload_bytes=3, payload_xxh3=1)
    call = channel.stream_unary(data_stream.WRITE, bytes, worker_pb2.WriteReply.FromString)
    with pytest.raises(grpc.RpcError) as raised:
        call(iter([header.SerializeToString(), b"abc"]), timeout=20)
    assert isinstance(from_rpc_error(raised.value), BlockCorrupt)


@pytest.mark.parametrize("messages", [[], [b"\xff\xff\xff"], [b"", b"x" * 10]])
def test_a_write_that_is_no_write_is_refused(channel, stub, messages):
    call = channel.stream_unary(data_stream.WRITE, bytes, worker_pb2.WriteReply.FromString)
    with pytest.raises(grpc.RpcError):
        call(iter(messages), timeout=20)
    assert stub.Stats(worker_pb2.StatsRequest(), timeout=20).worker_id == "w1"


def test_writes_to_impossible_places_are_refused(store, channel):
    with pytest.raises(FileTooBig):
        write(channel, b"x", offset=1 << 60)
    put(store, KEY, DATA)
    with pytest.raises(Exists):
        write(channel, b"x")
    assert read(channel) == DATA


def test_a_full_disk_is_told_to_the_writer_and_deletes_work(make_store, clock):
    store = make_store(limit=4 << 20)
    streams = BlockStreams(store, Leases(1, 1, lambda: 1), clock, Metrics())
    header = worker_pb2.WriteHeader(block=1, generation=1, payload_bytes=8 << 20)
    with pytest.raises(NoSpace):
        streams.write(header, iter([bytes(4 << 20), bytes(4 << 20)]))
    store.delete(BlockKey(1, 1))
    assert store.disks[0].space().used_bytes == 0


def test_messages_over_the_limit_are_refused(channel, stub):
    call = channel.stream_unary(data_stream.WRITE, bytes, worker_pb2.WriteReply.FromString)
    with grpc.insecure_channel(channel._channel.target().decode()) as unlimited:
        call = unlimited.stream_unary(data_stream.WRITE, bytes, worker_pb2.WriteReply.FromString)
        with pytest.raises(grpc.RpcError) as raised:
            call(iter([bytes(data_stream.MAX_MESSAGE_BYTES + 1)]), timeout=20)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as raised:
        control(stub, open=worker_pb2.OpenBlocks(blocks=[key_message(KEY)] * 65))
    assert isinstance(from_rpc_error(raised.value), TooBig)
    with pytest.raises(grpc.RpcError) as raised:
        control(stub)
    assert isinstance(from_rpc_error(raised.value), InvalidArgument)


def test_a_lease_keeps_the_bytes_while_it_is_renewed(store, channel, stub, clock):
    put(store, KEY, DATA)
    reply = control(
        stub, open=worker_pb2.OpenBlocks(blocks=[key_message(KEY), key_message(BlockKey(9, 9)), key_message(KEY)])
    )
    assert [bool(number) for number in reply.errnos] == [False, True, False]
    assert reply.lease_ms == 10_000
    store.delete(KEY)
    clock.advance(9)
    control(stub, renew=worker_pb2.Renew(lease_id=reply.lease_id))
    clock.advance(9)
    assert read(channel) == DATA
    again = control(stub, open=worker_pb2.OpenBlocks(blocks=[key_message(KEY)]))
    assert list(again.errnos) == [0]
    clock.advance(11)
    with pytest.raises(NotFound):
        read(channel)
    with pytest.raises(grpc.RpcError):
        control(stub, renew=worker_pb2.Renew(lease_id=reply.lease_id))


def test_create_by_grpc_makes_the_file(store, stub):
    reply = control(stub, create=worker_pb2.CreateBlocks(blocks=[key_message(KEY)]))
    assert list(reply.errnos) == [0]
    assert reply.blocks[0].limit_bytes > 0
    assert store.working_blocks == 1


def test_stats_and_the_list_of_blocks(store, stub):
    assert list(stub.ListBlocks(worker_pb2.ListBlocksRequest(pages=True), timeout=20)) == []
    put(store, KEY, DATA)
    os.close(store.create(BlockKey(0x52, 1)).fd)
    stats = stub.Stats(worker_pb2.StatsRequest(), timeout=20)
    assert (stats.worker_id, stats.node_id, stats.cluster_id, stats.version) == ("w1", "n1", "c1", "1")
    assert (stats.blocks, stats.working_blocks, len(stats.disks)) == (1, 1, 1)
    assert stats.disks[0].used_bytes >= len(DATA)
    listed = list(stub.ListBlocks(worker_pb2.ListBlocksRequest(), timeout=20))
    assert [(r.block, r.length_bytes, r.working) for r in listed] == [(0x51, len(DATA), False), (0x52, 0, True)]
    (in_one,) = stub.ListBlocks(worker_pb2.ListBlocksRequest(pages=True), timeout=20)
    assert list(in_one.page) == listed


def test_a_call_without_a_deadline_is_ended(make_door):
    release = threading.Event()

    def never_ending():
        yield worker_pb2.WriteHeader(block=KEY.block, generation=1, payload_bytes=5).SerializeToString()
        release.wait(10)

    with grpc.insecure_channel(f"127.0.0.1:{make_door(0.1).port}") as channel:
        call = channel.stream_unary(data_stream.WRITE, bytes, worker_pb2.WriteReply.FromString)
        with pytest.raises(grpc.RpcError) as raised:
            call(never_ending())
        release.set()
    assert raised.value.code() is grpc.StatusCode.CANCELLED


def test_a_reader_that_goes_away_before_the_first_byte_leaves_no_descriptor(store, clock):
    put(store, KEY, DATA)
    streams = BlockStreams(store, Leases(1, 1, lambda: 1), clock, Metrics())
    header, payload = streams.read(worker_pb2.ReadRequest(block=KEY.block, generation=1))
    assert header.payload_bytes == len(DATA)
    del payload
    # the leak check of the test suite does the rest


def test_a_reader_that_goes_away_leaves_no_descriptor(store, channel):
    put(store, KEY, DATA)
    call = channel.unary_stream(data_stream.READ, worker_pb2.ReadRequest.SerializeToString, bytes)
    stream = call(worker_pb2.ReadRequest(block=KEY.block, generation=1), timeout=20)
    next(stream)
    stream.cancel()
    # the leak check of the test suite does the rest


def test_a_port_in_use_and_an_address_that_is_not_ours_are_told_apart(door):
    with pytest.raises(Conflict, match="in use"):
        GrpcDoor(f"127.0.0.1:{door.port}", 1, 1)
    with pytest.raises(SettingsError, match="cannot listen"):
        GrpcDoor("192.0.2.1:7071", 1, 1)
    with pytest.raises(SettingsError, match="cannot listen"):
        GrpcDoor("no.such.host.invalid:7071", 1, 1)
