"""Both sides of the data streams over a real in-process server, and what the client does with a server that lies."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hearthfs.common import checksums, data_stream
from hearthfs.common.checksums import CHUNK_BYTES, checksum, digest, pack
from hearthfs.common.data_stream import MESSAGE_BYTES, read_into, write_from
from hearthfs.common.errors import (
    BlockCorrupt,
    BlockMissing,
    DeadlineExceeded,
    HearthError,
    Internal,
    NoSpace,
    Unavailable,
)
from hearthfs.proto import worker_pb2 as pb

BLOCK = random.Random(3).randbytes(MESSAGE_BYTES + 2 * CHUNK_BYTES + 777)
PACKED = pack([checksum(BLOCK[at : at + CHUNK_BYTES]) for at in range(0, len(BLOCK), CHUNK_BYTES)])
DIGEST = digest(PACKED, len(BLOCK))
KEY = (0xB10C, 4)


class Peer:
    """A worker with one block. Each attribute is a way to spoil what it sends."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}
        self.error: Exception | None = None
        self.header = pb.ReadHeader(block_length_bytes=len(BLOCK), checksums=PACKED)
        self.spoil = lambda messages: messages
        self.requests: list[pb.ReadRequest] = []

    def read(self, request: pb.ReadRequest) -> tuple[pb.ReadHeader, Iterator[bytes]]:
        self.requests.append(request)
        if self.error:
            raise self.error
        header = pb.ReadHeader()
        header.CopyFrom(self.header)
        data = BLOCK[request.offset_bytes : request.offset_bytes + request.length_bytes]
        header.payload_bytes = header.payload_bytes or len(data)
        messages = [data[at : at + MESSAGE_BYTES] for at in range(0, len(data), MESSAGE_BYTES)]
        return header, iter(self.spoil(messages))

    def write(self, header: pb.WriteHeader, messages: Iterator[bytes]) -> pb.WriteReply:
        if self.error:
            raise self.error
        data = b"".join(messages)
        if len(data) != header.payload_bytes or checksum(data) != header.payload_xxh3:
            raise BlockCorrupt("payload differs from its header")
        self.written[header.offset_bytes] = data
        return pb.WriteReply(length_bytes=header.offset_bytes + len(data))


@pytest.fixture
def served():
    peer, pool = Peer(), ThreadPoolExecutor(4)
    server = grpc.server(pool, options=data_stream.SERVER_OPTIONS)
    server.add_generic_rpc_handlers([data_stream.handlers(peer.read, peer.write)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", data_stream.CHANNEL_OPTIONS) as channel:
        yield peer, channel
    server.stop(None).wait()
    pool.shutdown()


@pytest.fixture
def peer(served):
    return served[0]


@pytest.fixture
def channel(served):
    return served[1]


def read(channel, offset=0, size=None, **changes):
    into = bytearray(len(BLOCK) if size is None else size)
    arguments = {"block_length": len(BLOCK), "digest": DIGEST, "timeout_s": 10.0, "what": "block b on w1", **changes}
    read_into(channel, KEY, offset, memoryview(into), **arguments)
    return bytes(into)


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, len(BLOCK)),
        (0, CHUNK_BYTES),
        (CHUNK_BYTES, 2 * CHUNK_BYTES),
        (MESSAGE_BYTES - CHUNK_BYTES, 2 * CHUNK_BYTES),
        (6 * CHUNK_BYTES, 777),
    ],
)
def test_ranges_of_whole_chunks_arrive(peer, channel, offset, size):
    assert read(channel, offset, size) == BLOCK[offset : offset + size]
    request = peer.requests[0]
    assert (request.block, request.generation, request.offset_bytes) == (*KEY, offset)


def test_an_empty_block_arrives(peer, channel):
    peer.header.CopyFrom(pb.ReadHeader())
    assert read(channel, 0, 0, block_length=0, digest=digest(b"", 0)) == b""


def flip(messages):
    spoiled = bytearray(messages[-1])
    spoiled[-1] ^= 1
    return [*messages[:-1], bytes(spoiled)]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (flip, "does not match its checksum"),
        (lambda messages: messages[:-1], "stream ended after"),
        (lambda messages: [], "stream ended after 0"),
        (lambda messages: [*messages, b"x"], "more than"),
        (lambda messages: [*messages[:-1], messages[-1][:-1]], "not whole chunks"),
        (lambda messages: [messages[0][:1000], messages[0][1000:], *messages[1:]], "not whole chunks"),
        (lambda messages: [bytes(len(message)) for message in messages], "chunk 0"),
    ],
    ids=["flipped bit", "truncated", "nothing", "overlong", "short message", "odd messages", "zeros"],
)
def test_a_payload_that_is_not_the_blocks_bytes_is_refused(peer, channel, spoil, says):
    peer.spoil = spoil
    with pytest.raises(BlockCorrupt, match=says) as caught:
        read(channel)
    assert "block b on w1" in str(caught.value)


def test_a_header_with_another_length_is_refused(peer, channel):
    peer.header.block_length_bytes += 1
    with pytest.raises(BlockCorrupt, match=f"is {len(BLOCK) + 1} bytes long"):
        read(channel)


def test_a_header_that_announces_another_payload_is_refused(peer, channel):
    peer.header.payload_bytes = 5
    with pytest.raises(BlockCorrupt, match="sends 5 of"):
        read(channel)


def test_checksums_of_another_version_are_refused_before_any_byte(peer, channel):
    peer.header.checksums = PACKED[8:] + PACKED[:8]
    with pytest.raises(BlockCorrupt, match="digest"):
        read(channel)


def test_an_error_of_the_family_arrives_as_itself(peer, channel):
    peer.error = BlockMissing("no such block here")
    with pytest.raises(BlockMissing, match=r"^no such block here$"):
        read(channel)


def test_an_error_in_the_middle_of_the_payload_arrives_too(peer, channel):
    def broken(messages):
        yield messages[0]
        raise BlockCorrupt("the disk said EIO")

    peer.spoil = broken
    with pytest.raises(BlockCorrupt, match="the disk said EIO"):
        read(channel)


def test_a_bug_of_the_server_is_an_error_of_the_family(peer, channel):
    peer.error = ZeroDivisionError("bug")
    with pytest.raises(HearthError) as caught:
        read(channel)
    assert type(caught.value) is Internal


def test_a_silent_peer_costs_the_deadline_and_no_more(peer, channel):
    over = threading.Event()

    def silent(messages):
        over.wait(30)
        yield from messages

    peer.spoil = silent
    try:
        with pytest.raises(DeadlineExceeded):
            read(channel, timeout_s=0.1)
    finally:
        over.set()


def test_a_peer_that_is_not_there_is_unavailable():
    with grpc.insecure_channel("127.0.0.1:1", data_stream.CHANNEL_OPTIONS) as channel:
        with pytest.raises(Unavailable, match="block b on w1"):
            read(channel, timeout_s=5.0)


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("size", [0, 1, MESSAGE_BYTES, MESSAGE_BYTES + 1, len(BLOCK)])
def test_what_is_written_arrives_with_its_checksum(peer, channel, size):
    got = write_from(channel, KEY, 4096, memoryview(BLOCK)[:size], timeout_s=10.0, what="w1")
    assert got == 4096 + size
    assert peer.written == {4096: BLOCK[:size]}


def test_a_full_disk_is_no_space(peer, channel):
    peer.error = NoSpace("disk /d1 is full")
    with pytest.raises(NoSpace, match="disk /d1 is full"):
        write_from(channel, KEY, 0, memoryview(BLOCK), timeout_s=10.0, what="w1")


@pytest.mark.parametrize("messages", [[], [b"\xff\xff\xff"]], ids=["none", "garbage"])
def test_a_write_begins_with_its_header(peer, channel, messages):
    with pytest.raises(grpc.RpcError) as refused:
        channel.stream_unary(data_stream.WRITE)(iter(messages), timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert peer.written == {}


def test_a_write_to_nobody_is_unavailable():
    with grpc.insecure_channel("127.0.0.1:1", data_stream.CHANNEL_OPTIONS) as channel:
        with pytest.raises(Unavailable, match="w1"):
            write_from(channel, KEY, 0, memoryview(b"x"), timeout_s=5.0, what="w1")


def test_messages_are_small_enough_for_the_channel():
    options = dict(data_stream.SERVER_OPTIONS)
    assert options["grpc.max_receive_message_length"] > MESSAGE_BYTES
    assert MESSAGE_BYTES % checksums.CHUNK_BYTES == 0, "a message must end at a chunk's end to be verified at once"
