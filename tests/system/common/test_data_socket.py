"""The client's side of a data port, against servers that lie, hang, or are not there."""

import contextlib
import errno
import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import structlog
from hearthfs.common import data_socket, data_stream
from hearthfs.common.checksums import CHUNK_BYTES, checksum, digest, pack
from hearthfs.common.clock import FakeClock
from hearthfs.common.data_socket import (
    ADMITTED,
    GREETING,
    NONCE_BYTES,
    PROOF,
    TICKET,
    DataLink,
    prove,
    receive_message,
    send_message,
)
from hearthfs.common.errors import (
    BlockCorrupt,
    DeadlineExceeded,
    HearthError,
    InvalidArgument,
    NoSpace,
    NotFound,
    Unavailable,
)
from hearthfs.common.sink import Into
from hearthfs.proto import worker_pb2 as pb
from hearthfs.proto import worker_pb2_grpc

BLOCK = random.Random(5).randbytes(3 * CHUNK_BYTES + 77)
PACKED = pack([checksum(BLOCK[at : at + CHUNK_BYTES]) for at in range(0, len(BLOCK), CHUNK_BYTES)])
DIGEST = digest(PACKED, len(BLOCK))
KEY = (0xB10C, 4)
NONCE = b"n" * NONCE_BYTES


class Peer(worker_pb2_grpc.WorkerServicer):
    """A worker with one block, its gRPC door, and a data port whose every answer a test may write itself."""

    def __init__(self) -> None:
        self.block = BLOCK
        self.packed = PACKED
        self.secret = b"s" * 32
        self.hellos = 0
        self.deaf = False
        self.code = grpc.StatusCode.UNIMPLEMENTED
        self.grpc_reads = 0
        self.connections: list[socket.socket] = []
        self.requests: list[pb.ReadRequest] = []
        self.answer = self.whole
        self.data_port = 0
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool, options=data_stream.SERVER_OPTIONS)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        self._server.add_generic_rpc_handlers(
            [data_stream.handlers(self.read, lambda header, messages: pb.WriteReply())]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.open_port()

    def open_port(self) -> None:
        self.data_port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def move_port(self) -> None:
        """As a restart does."""
        self.close_port()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.open_port()

    def close_port(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            assert connection.recv(len(GREETING), socket.MSG_WAITALL) == GREETING
            connection.sendall(NONCE)
            proof = PROOF.unpack(connection.recv(PROOF.size, socket.MSG_WAITALL))
            if proof != (7, prove(self.secret, NONCE)):
                return
            connection.sendall(ADMITTED)
            while (data := receive_message(connection, 4096)) is not None:
                self.requests.append(pb.ReadRequest.FromString(data))
                self.answer(connection, self.requests[-1])
        except OSError:
            return
        finally:
            connection.close()

    def header(self, request: pb.ReadRequest) -> pb.ReadHeader:
        size = request.length_bytes or len(self.block) - request.offset_bytes
        return pb.ReadHeader(block_length_bytes=len(self.block), payload_bytes=size, checksums=self.packed)

    def payload(self, request: pb.ReadRequest) -> bytes:
        size = request.length_bytes or len(self.block)
        return self.block[request.offset_bytes : request.offset_bytes + size]

    def whole(self, connection: socket.socket, request: pb.ReadRequest) -> None:
        send_message(connection, pb.DataReply(header=self.header(request)))
        connection.sendall(self.payload(request))

    def read(self, request: pb.ReadRequest):
        self.grpc_reads += 1
        return self.header(request), iter([self.payload(request)])

    def Control(self, request, context):
        self.hellos += 1
        if self.deaf:
            context.abort(self.code, "an older worker")
        ticket = TICKET.pack(7, self.secret)
        return pb.ControlReply(worker_id="w1", data_port=self.data_port, data_ticket=ticket)

    def stop(self) -> None:
        if self.listener.fileno() >= 0:
            self.close_port()
        self._server.stop(None).wait()
        self._pool.shutdown()


@pytest.fixture
def peer():
    made = Peer()
    yield made
    made.stop()


@pytest.fixture
def channel(peer):
    with grpc.insecure_channel(peer.address, data_stream.CHANNEL_OPTIONS) as made:
        yield made


@pytest.fixture
def link():
    made = DataLink()
    yield made
    made.close()


@pytest.fixture
def log():
    with structlog.testing.capture_logs() as lines:
        yield lines


def read(link, peer, channel, offset=0, size=None, sink=None, **changes):
    size = len(BLOCK) - offset if size is None else size
    into = memoryview(bytearray(size))
    arguments = {"block_length": len(BLOCK), "digest": DIGEST, "timeout_s": 20.0, "what": "block b on w1", **changes}
    packed = link.read(peer.address, channel, KEY, offset, size, sink or Into(into, offset), **arguments)
    assert packed == PACKED
    return bytes(into)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, len(BLOCK)), (0, CHUNK_BYTES), (CHUNK_BYTES, 2 * CHUNK_BYTES), (3 * CHUNK_BYTES, 77)],
)
def test_ranges_arrive_on_one_connection(peer, channel, link, offset, size):
    for _ in range(3):
        assert read(link, peer, channel, offset, size) == BLOCK[offset : offset + size]
    assert (len(peer.connections), peer.hellos, peer.grpc_reads) == (1, 1, 0)
    assert {request.worker_id for request in peer.requests} == {"w1"}


def test_pieces_that_come_in_dribs_are_put_together(peer, channel, link):
    def dribble(connection, request):
        send_message(connection, pb.DataReply(header=peer.header(request)))
        data = peer.payload(request)
        for at in range(0, len(data), 300_001):
            connection.sendall(data[at : at + 300_001])

    peer.answer = dribble
    assert read(link, peer, channel) == BLOCK


def test_a_flipped_bit_is_not_delivered(peer, channel, link):
    peer.block = BLOCK[:-1] + bytes([BLOCK[-1] ^ 1])
    seen = []

    class Noting(Into):
        def done(self, offset, view):
            seen.append(offset)

    with pytest.raises(BlockCorrupt, match="chunk 3"):
        read(link, peer, channel, sink=Noting(memoryview(bytearray(len(BLOCK))), 0))
    assert seen == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    peer.block = BLOCK
    assert read(link, peer, channel) == BLOCK


@pytest.mark.parametrize("change", [{"block_length": len(BLOCK) + 1}, {"digest": DIGEST ^ 1}])
def test_another_version_is_refused(peer, channel, link, change):
    with pytest.raises(BlockCorrupt):
        read(link, peer, channel, **change)
    assert peer.grpc_reads == 0


def test_the_workers_own_error_is_raised_and_the_connection_goes_on(peer, channel, link):
    peer.answer = lambda connection, request: send_message(connection, pb.DataReply(error="NotFound", message="gone"))
    with pytest.raises(NotFound, match="gone"):
        read(link, peer, channel)
    peer.answer = lambda connection, request: send_message(connection, pb.DataReply(error="NoSuchKind", message="new"))
    with pytest.raises(Unavailable, match="new"):
        read(link, peer, channel)
    peer.answer = peer.whole
    assert read(link, peer, channel) == BLOCK
    assert (len(peer.connections), peer.grpc_reads) == (1, 0)


def test_what_the_sink_raises_comes_out_and_the_rest_of_the_payload_is_nobodys_answer(peer, channel, link):
    class Full(Into):
        def done(self, offset, view):
            raise NoSpace("full")

    with pytest.raises(NoSpace):
        read(link, peer, channel, sink=Full(memoryview(bytearray(len(BLOCK))), 0))
    assert read(link, peer, channel) == BLOCK
    assert len(peer.connections) == 2


def test_a_connection_that_the_worker_closed_meanwhile_is_replaced(peer, channel, link, log):
    assert read(link, peer, channel) == BLOCK
    peer.connections.pop().shutdown(socket.SHUT_RDWR)
    assert read(link, peer, channel) == BLOCK
    assert (peer.hellos, peer.grpc_reads, log) == (1, 0, [])


def test_a_port_that_moved_is_asked_for_again(peer, channel, link, log):
    assert read(link, peer, channel) == BLOCK
    peer.move_port()
    assert read(link, peer, channel) == BLOCK
    assert (peer.hellos, peer.grpc_reads, log) == (2, 0, [])


def test_a_ticket_that_the_worker_forgot_is_asked_for_again(peer, channel, link, log):
    assert read(link, peer, channel) == BLOCK
    peer.secret = b"t" * 32
    peer.connections.pop().shutdown(socket.SHUT_RDWR)
    assert read(link, peer, channel) == BLOCK
    assert (peer.hellos, peer.grpc_reads, log) == (2, 0, [])


def cut(connection, request):
    send_message(connection, pb.DataReply(header=pb.ReadHeader(block_length_bytes=len(BLOCK), payload_bytes=len(BLOCK),
                                                               checksums=PACKED)))  # fmt: skip
    connection.sendall(BLOCK[: CHUNK_BYTES + 1000])
    connection.shutdown(socket.SHUT_RDWR)


def reset(connection, request):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def hang_up(connection, request):
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer", [cut, reset, hang_up])
def test_a_connection_that_breaks_is_gone_round_by_grpc_and_named_once(peer, channel, link, log, answer):
    peer.answer = answer
    for _ in range(3):
        assert read(link, peer, channel) == BLOCK
    assert peer.grpc_reads == 3
    assert [line["event"] for line in log] == ["data-port-not-used"]
    assert log[0]["worker"] == peer.address


@pytest.mark.parametrize("why", ["none", "refused", "no hello", "not admitted"])
def test_without_a_data_port_grpc_serves_and_is_named_once(peer, channel, link, log, why):
    if why == "none":
        peer.data_port = 0
    elif why == "refused":
        peer.close_port()
    elif why == "no hello":
        peer.deaf = True
    else:
        peer._serve = lambda connection: connection.close()
    for _ in range(3):
        assert read(link, peer, channel) == BLOCK
    assert peer.grpc_reads == 3
    assert [line["event"] for line in log] == ["data-port-not-used"]


def test_a_worker_that_is_away_has_its_port_when_it_is_back(peer, channel, link, log):
    peer.code = grpc.StatusCode.UNAVAILABLE
    peer.deaf = True
    assert read(link, peer, channel) == BLOCK  # by gRPC, which answers here
    peer.deaf = False
    assert read(link, peer, channel) == BLOCK
    assert (peer.grpc_reads, log) == (1, [])


def test_the_port_is_tried_again_after_a_while(peer, channel):
    clock = FakeClock()
    link = DataLink(clock)
    port, peer.data_port = peer.data_port, 0
    assert read(link, peer, channel) == BLOCK
    peer.data_port = port
    assert read(link, peer, channel) == BLOCK
    assert (peer.grpc_reads, peer.hellos) == (2, 1)
    clock.advance(data_socket.ABSENT_S)
    assert read(link, peer, channel) == BLOCK
    assert (peer.grpc_reads, peer.hellos) == (2, 2)
    link.close()


def test_a_link_without_ports_never_asks_for_one(peer, channel):
    link = DataLink(use_port=False)
    assert read(link, peer, channel) == BLOCK
    assert (peer.hellos, peer.grpc_reads) == (0, 1)


def test_a_worker_that_hangs_costs_the_time_given(peer, channel, link):
    release = threading.Event()
    peer.answer = lambda connection, request: release.wait(30)
    with pytest.raises(DeadlineExceeded, match="block b on w1"):
        read(link, peer, channel, timeout_s=0.2)
    release.set()
    assert peer.grpc_reads == 0


@pytest.mark.parametrize("junk", [b"\xff" * 16, struct.pack("<I", 3) + b"\xff\xff\xff", struct.pack("<I", 50) + b"x"])
def test_an_answer_that_is_none_is_an_error(peer, channel, link, junk):
    def answer(connection, request):
        connection.sendall(junk)
        connection.shutdown(socket.SHUT_RDWR)

    peer.answer = answer
    # What cannot be understood is refused; what merely broke off is read the other way.
    try:
        assert read(link, peer, channel) == BLOCK
        assert peer.grpc_reads == 1
    except InvalidArgument:
        assert peer.grpc_reads == 0


def test_no_descriptor_left_is_the_slower_way(peer, channel, link, log, monkeypatch):
    def full(*_args, **_more):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", full)
    assert read(link, peer, channel) == BLOCK
    assert peer.grpc_reads == 1
    assert "Too many open files" in log[0]["reason"]


def test_closing_ends_a_read_under_way(peer, channel, link):
    begun, release = threading.Event(), threading.Event()

    def stuck(connection, request):
        begun.set()
        release.wait(30)

    peer.answer = stuck
    errors = []

    def work():
        try:
            read(link, peer, channel)
        except HearthError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    link.close()
    thread.join(20)
    release.set()
    assert isinstance(errors[0], Unavailable)
    with pytest.raises(Unavailable):
        read(link, peer, channel)


def test_many_threads_have_a_connection_each_and_few_are_kept(peer, channel, link):
    barrier = threading.Barrier(12)

    def meet(connection, request):
        barrier.wait(20)
        peer.whole(connection, request)

    peer.answer = meet
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(lambda _: read(link, peer, channel), range(12))) == {BLOCK}
    (kept,) = link._peers.values()
    assert len(kept.idle) == data_socket.IDLE_CONNECTIONS
