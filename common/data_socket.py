"""Block bytes over a plain TCP connection: what ``data_stream``'s Read carries, for less than half the processor time.

gRPC for Python gives each message as a fresh ``bytes``; here they go from the socket straight to where they belong, and
are verified on the way. Layout of a connection to a worker's data port::

    client: GREETING
    worker: NONCE_BYTES random bytes
    client: the ticket's number, and the HMAC-SHA256 of the random bytes with the ticket's secret
    worker: ADMITTED
    client: for each read        u32 size, ReadRequest
    worker: for each of these    u32 size, DataReply, and, unless it names an error, the payload

Sizes are little-endian. A side that cannot go on closes the connection. Port and ticket come from ``hello`` on gRPC,
and the connection may do what that call's sender may; a worker without a port, or behind a firewall, is read by gRPC,
and the log says so once.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import struct
import threading
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import DecodeError, Message

from ..proto import worker_pb2 as pb
from ..proto.worker_pb2_grpc import WorkerStub
from . import checksums, data_stream
from .clock import Clock, SystemClock
from .errors import KINDS, DeadlineExceeded, HearthError, InvalidArgument, Unavailable
from .sink import Sink
from .telemetry import TRACE_KEY, current_trace_id, get_logger

GREETING = b"HEARTHD1"
ADMITTED = b"\x01"
NONCE_BYTES = 16
TICKET = struct.Struct("<Q32s")
"""Number and secret, as ``hello`` gives them."""
PROOF = struct.Struct("<Q32s")
"""Number and HMAC."""
MAX_HEAD_BYTES = 1 << 24
"""Of a DataReply: it has 8 bytes for each MiB of the block."""
CONNECT_S = 2.0
ABSENT_S = 30.0
"""So long a worker whose data port could not be used is read by gRPC, before the port is tried again."""
IDLE_CONNECTIONS = 8
"""Kept for each worker; more are made when needed, and closed after use."""

log = get_logger("hearthfs.data")
_SIZE = struct.Struct("<I")


def prove(secret: bytes, nonce: bytes | memoryview) -> bytes:
    return hmac.digest(secret, nonce, "sha256")


class _Absent(Exception):
    """The data port cannot be used; nothing is known of the bytes."""


class _Gone(_Absent):
    """The worker as a whole does not answer: that says nothing about its port once it is back."""


class _Closed(Exception):
    """The connection ended before a reply began."""


def send_message(connection: socket.socket, message: Message, flags: int = 0) -> None:
    data = message.SerializeToString()
    connection.sendall(_SIZE.pack(len(data)) + data, flags)


def receive_message(connection: socket.socket, limit_bytes: int) -> bytes | None:
    """None: the other side closed the connection instead.

    Raises:
        OSError. InvalidArgument: cut, or longer than the limit.
    """
    head = memoryview(bytearray(_SIZE.size))
    if not receive_into(connection, head):
        return None
    (size,) = _SIZE.unpack(head)
    if size > limit_bytes:
        raise InvalidArgument(f"a message of {size} bytes on a data connection; at most {limit_bytes}")
    data = memoryview(bytearray(size))
    if size and not receive_into(connection, data):
        raise InvalidArgument("a data connection ended inside a message")
    return bytes(data)


def receive_into(connection: socket.socket, view: memoryview) -> bool:
    """Fills ``view``; False when the other side closed the connection before its first byte.

    Raises:
        ConnectionResetError: it closed it later. OSError: EAGAIN when nothing came within the socket's limit.
    """
    done = 0
    while done < len(view):
        got = connection.recv_into(view[done:], len(view) - done, socket.MSG_WAITALL)
        if not got:
            if done:
                raise ConnectionResetError(errno.ECONNRESET, f"ended after {done} of {len(view)} bytes")
            return False
        done += got
    return True


def limit(connection: socket.socket, option: int, seconds: float) -> None:
    """Bounds each receive (SO_RCVTIMEO) or send (SO_SNDTIMEO). The socket stays blocking: MSG_WAITALL needs that."""
    whole = int(seconds)
    micros = int((seconds - whole) * 1e6)
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, micros if whole or micros else 1))


@dataclass
class _Peer:
    address: str
    port: int = 0
    worker_id: str = ""
    ticket: bytes = b""
    absent_until_s: float = 0.0
    told: bool = False
    idle: list[socket.socket] = field(default_factory=list)


class DataLink:
    """Reads blocks of workers elsewhere, by data port or gRPC. Thread-safe; connections are kept and used again.

    Args:
        use_port: False: gRPC only.
    """

    def __init__(self, clock: Clock | None = None, *, use_port: bool = True) -> None:
        self._clock = clock or SystemClock()
        self._use_port = use_port
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._busy: set[socket.socket] = set()
        self._closed = False

    def read(
        self,
        address: str,
        channel: grpc.Channel,
        key: tuple[int, int],
        offset: int,
        size: int,
        sink: Sink,
        *,
        block_length: int,
        digest: int,
        timeout_s: float,
        what: str,
        token: bytes = b"",
        lease_id: int = 0,
    ) -> bytes:
        """Hands bytes ``[offset, offset + size)`` of a block to ``sink``, each chunk verified before, and returns the
        block's packed checksums. ``offset`` and the end lie on chunk boundaries, or the end at the block's end.

        Args:
            address: host:port of the worker's gRPC door, to which ``channel`` leads.

        Raises:
            BlockCorrupt, BlockMissing, NotFound, Unavailable, DeadlineExceeded: what the sink got is not to be used.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        request = pb.ReadRequest(
            block=key[0],
            generation=key[1],
            offset_bytes=offset,
            length_bytes=size,
            token=token,
            lease_id=lease_id,
        )
        peer = self._peer(address)
        if self._use_port and self._clock.monotonic_s() >= peer.absent_until_s:
            try:
                return self._by_port(peer, channel, request, size, sink, block_length, digest, deadline_s, what)
            except _Gone:
                pass  # gRPC says what is wrong, or is there first
            except _Absent as reason:
                self._note_absent(peer, str(reason))
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceeded(f"{what}: not read within {timeout_s:g} s")
        return data_stream.read(
            channel,
            request,
            size,
            sink,
            block_length=block_length,
            digest=digest,
            timeout_s=left_s,
            what=what,
            metadata=((TRACE_KEY, current_trace_id()),),
        )

    def close(self) -> None:
        """Reads that are under way end with Unavailable."""
        with self._lock:
            self._closed = True
            sockets = [each for peer in self._peers.values() for each in peer.idle]
            for peer in self._peers.values():
                peer.idle.clear()
            for connection in self._busy:
                _shut(connection)
        for connection in sockets:
            connection.close()

    # -- peers

    def _peer(self, address: str) -> _Peer:
        with self._lock:
            if self._closed:
                raise Unavailable("closed: no more reads from other workers")
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = _Peer(address)
            return peer

    def _note_absent(self, peer: _Peer, reason: str) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("closed: no more reads from other workers")
            peer.port = 0
            peer.absent_until_s = self._clock.monotonic_s() + ABSENT_S
            told, peer.told = peer.told, True
            idle, peer.idle = peer.idle, []
        for connection in idle:
            connection.close()
        if not told:
            log.warning("data-port-not-used", worker=peer.address, reason=f"{reason}: its blocks are read by gRPC")

    def _find_port(self, peer: _Peer, channel: grpc.Channel, deadline_s: float) -> None:
        request = pb.ControlRequest(hello=pb.Hello())
        left_s = max(0.001, deadline_s - self._clock.monotonic_s())
        try:
            reply = WorkerStub(channel).Control(request, timeout=min(CONNECT_S, left_s))
        except grpc.RpcError as error:
            kind = _Gone if error.code() is grpc.StatusCode.UNAVAILABLE else _Absent
            raise kind(f"hello: {error.code().name}") from None
        if not reply.data_port:
            raise _Absent("it has none")
        if len(reply.data_ticket) != TICKET.size:
            raise _Absent("it gives no ticket")
        peer.worker_id, peer.port, peer.ticket = reply.worker_id, reply.data_port, reply.data_ticket

    def _connect(self, peer: _Peer, channel: grpc.Channel, deadline_s: float) -> socket.socket:
        if peer.port:
            try:
                return self._dial(peer, deadline_s)
            except _Absent:
                peer.port = 0  # the worker may have been started anew, with another port and no memory of our ticket
        self._find_port(peer, channel, deadline_s)
        return self._dial(peer, deadline_s)

    def _dial(self, peer: _Peer, deadline_s: float) -> socket.socket:
        host, port = peer.address.rpartition(":")[0].strip("[]"), peer.port
        left_s = max(0.001, deadline_s - self._clock.monotonic_s())
        try:
            connection = socket.create_connection((host, port), min(CONNECT_S, left_s))
        except OSError as error:
            raise _Absent(f"port {port}: {error.strerror or error}") from None
        try:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limit(connection, socket.SO_RCVTIMEO, min(CONNECT_S, left_s))
            limit(connection, socket.SO_SNDTIMEO, CONNECT_S)  # all that is ever sent is a few bytes
            connection.sendall(GREETING)
            nonce, admitted = memoryview(bytearray(NONCE_BYTES)), memoryview(bytearray(len(ADMITTED)))
            number, secret = TICKET.unpack(peer.ticket)
            if receive_into(connection, nonce):
                connection.sendall(PROOF.pack(number, prove(secret, nonce)))
                if receive_into(connection, admitted) and admitted == ADMITTED:
                    return connection
        except OSError as error:
            connection.close()
            raise _Absent(f"port {port}: {error.strerror}") from None
        connection.close()
        raise _Absent(f"port {port} does not admit us")

    # -- one read

    def _by_port(
        self,
        peer: _Peer,
        channel: grpc.Channel,
        request: pb.ReadRequest,
        size: int,
        sink: Sink,
        block_length: int,
        digest: int,
        deadline_s: float,
        what: str,
    ) -> bytes:
        for reuse in (True, False):
            connection = self._checkout(peer, channel, deadline_s, reuse)
            request.worker_id, request.trace_id = peer.worker_id, current_trace_id()
            good = False
            try:
                answer = self._exchange(connection, request, size, sink, block_length, digest, deadline_s, what)
                good = True  # nothing of it is left in the connection
            except _Closed:
                if not reuse:
                    raise _Absent("it closes connections at once") from None
            except OSError as error:
                if isinstance(error, HearthError):
                    raise
                if error.errno == errno.EAGAIN:
                    raise DeadlineExceeded(f"{what}: no byte came in time") from None
                raise _Absent(f"connection lost: {error.strerror or error}") from None
            else:
                if isinstance(answer, HearthError):
                    raise answer
                return answer
            finally:
                self._check_in(peer, connection, good)
        raise AssertionError("unreachable")

    def _checkout(self, peer: _Peer, channel: grpc.Channel, deadline_s: float, reuse: bool) -> socket.socket:
        connection = None
        with self._lock:
            if reuse and peer.idle:
                connection = peer.idle.pop()
        connection = connection or self._connect(peer, channel, deadline_s)
        with self._lock:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise Unavailable("closed: no more reads from other workers")

    def _check_in(self, peer: _Peer, connection: socket.socket, good: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if good and not self._closed and len(peer.idle) < IDLE_CONNECTIONS:
                peer.idle.append(connection)
                return
        connection.close()

    def _exchange(
        self,
        connection: socket.socket,
        request: pb.ReadRequest,
        size: int,
        sink: Sink,
        block_length: int,
        digest: int,
        deadline_s: float,
        what: str,
    ) -> bytes | HearthError:
        """The packed checksums, or the worker's own refusal."""
        self._limit(connection, deadline_s, what)
        try:
            send_message(connection, request)
            head = receive_message(connection, MAX_HEAD_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            raise _Closed from None
        if head is None:
            raise _Closed
        try:
            reply = pb.DataReply.FromString(head)
        except DecodeError:
            raise InvalidArgument(f"{what}: the data port's answer is no DataReply") from None
        if reply.error:
            return KINDS.get(reply.error, Unavailable)(reply.message)
        verifier = data_stream.verifier(reply.header, size, block_length, digest, what)
        start = request.offset_bytes
        for at in range(start, start + size, checksums.CHUNK_BYTES):
            view = sink.room(at, min(checksums.CHUNK_BYTES, start + size - at))
            self._limit(connection, deadline_s, what)
            if not receive_into(connection, view):
                raise ConnectionResetError(errno.ECONNRESET, f"ended after {at - start} of {size} bytes")
            verifier.check(at, view)
            sink.done(at, view)
        return reply.header.checksums

    def _limit(self, connection: socket.socket, deadline_s: float, what: str) -> None:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceeded(f"{what}: not read in time")
        limit(connection, socket.SO_RCVTIMEO, left_s)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            log.debug("shutdown-failed", error=os.strerror(error.errno or 0))
