"""The data port: block bytes for other nodes without gRPC, a thread for each connection. Layout: common/data_socket.py.

The bytes go from the page cache through one buffer per connection to the socket, and the interpreter is free
meanwhile. A client that does not take them, or asks for nothing for long, loses its connection, not our thread.

Who may connect is decided where tickets are given: a connection runs in the context (``contextvars``) of the call that
asked for its ticket, and so may do what that caller may.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import socket
import threading
from collections import OrderedDict
from contextvars import Context, copy_context

from google.protobuf.message import DecodeError

from ..common.data_socket import (
    ADMITTED,
    GREETING,
    NONCE_BYTES,
    PROOF,
    TICKET,
    limit,
    prove,
    receive_into,
    receive_message,
    send_message,
)
from ..common.errors import Conflict, HearthError, SettingsError, Unavailable
from ..common.telemetry import get_logger, trace
from ..common.types import BlockKey
from ..proto import worker_pb2
from . import accepting
from .disk import OpenBlock
from .metrics import Metrics
from .service import BlockStreams

BUFFER_BYTES = 1 << 20
MAX_REQUEST_BYTES = 4096
IDLE_S = 120.0
"""A connection without a request for so long is closed."""
HANDSHAKE_S = 5.0
MAX_TICKETS = 4096
"""The oldest goes first; its owner asks for another when it connects again."""
STUCK_S = 20.0
"""So is one whose client takes not a byte for so long."""

log = get_logger("hearthfs.worker.data")


class Tickets:
    """Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[int, tuple[bytes, Context]] = OrderedDict()

    def give(self) -> bytes:
        """For the caller of the call that is being handled."""
        number, secret = secrets.randbits(64), secrets.token_bytes(32)
        with self._guard:
            self._known[number] = secret, copy_context()
            while len(self._known) > MAX_TICKETS:
                self._known.popitem(last=False)
        return TICKET.pack(number, secret)

    def check(self, number: int, proof: bytes, nonce: bytes) -> Context | None:
        """A context of its own for a connection that proves its ticket."""
        with self._guard:
            secret, context = self._known.get(number, (b"", None))
        if context is None or not hmac.compare_digest(prove(secret, nonce), proof):
            return None
        return context.copy()


class DataDoor:
    """Its port is taken in ``__init__``; it serves after ``start``.

    Attributes:
        port: the real one.

    Raises:
        Conflict: the port is in use. SettingsError: the address is not ours.
    """

    def __init__(self, host: str, port: int, max_connections: int, worker_id: str) -> None:
        self._listener = _bind(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._max_connections = max_connections
        self._worker_id = worker_id
        self._tickets = Tickets()
        self._guard = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._stopping = False
        self._streams: BlockStreams
        self._metrics: Metrics
        self._thread = threading.Thread(target=self._accept, name="data-accept", daemon=True)

    def start(self, streams: BlockStreams, metrics: Metrics) -> None:
        self._streams = streams
        self._metrics = metrics
        self._listener.listen(128)
        self._thread.start()

    def invite(self) -> tuple[int, bytes]:
        """Port and ticket for whoever calls now."""
        return self.port, self._tickets.give()

    def stop(self, grace_s: float) -> None:
        """Takes no more requests; what is being sent has ``grace_s`` to end."""
        with self._guard:
            self._stopping = True
            connections = dict(self._connections)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        if self._thread.is_alive():
            self._thread.join(2)
        until = threading.Event()
        timer = threading.Timer(grace_s, until.set)
        timer.daemon = True
        timer.start()
        for connection, thread in connections.items():
            while thread.is_alive() and not until.is_set():
                thread.join(0.05)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        timer.cancel()
        for thread in connections.values():
            thread.join(1)

    def _accept(self) -> None:
        for peer in accepting.peers(self._listener, lambda: self._stopping):
            thread = threading.Thread(target=self._serve, args=(peer,), name="data-connection", daemon=True)
            with self._guard:
                refused = self._stopping or len(self._connections) >= self._max_connections
                if not refused:
                    self._connections[peer] = thread
            if refused:
                log.warning("data-connection-refused", open=len(self._connections))
                peer.close()
                continue
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            context = self._admit(peer)
            if context is not None:
                context.run(self._answer_all, peer)
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.EAGAIN):
                log.warning("data-connection-ended", reason=str(error))
        finally:
            with self._guard:
                self._connections.pop(peer, None)
            peer.close()

    def _admit(self, peer: socket.socket) -> Context | None:
        """None: it has no ticket of ours."""
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit(peer, socket.SO_RCVTIMEO, HANDSHAKE_S)
        limit(peer, socket.SO_SNDTIMEO, STUCK_S)
        greeting = memoryview(bytearray(len(GREETING)))
        if not receive_into(peer, greeting) or greeting != GREETING:
            return None
        nonce = secrets.token_bytes(NONCE_BYTES)
        peer.sendall(nonce)
        answer = memoryview(bytearray(PROOF.size))
        if not receive_into(peer, answer):
            return None
        number, proof = PROOF.unpack(answer)
        context = self._tickets.check(number, proof, nonce)
        if context is not None:
            peer.sendall(ADMITTED)
            limit(peer, socket.SO_RCVTIMEO, IDLE_S)
        return context

    def _answer_all(self, peer: socket.socket) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while not self._stopping:
            data = receive_message(peer, MAX_REQUEST_BYTES)
            if data is None:
                return
            try:
                request = worker_pb2.ReadRequest.FromString(data)
            except DecodeError:
                log.warning("data-connection-ended", reason="a message that is no ReadRequest")
                return
            if not self._answer(peer, request, buffer):
                return

    def _answer(self, peer: socket.socket, request: worker_pb2.ReadRequest, buffer: memoryview) -> bool:
        """False: the client means another worker, or the payload could not be sent to its end."""
        if request.worker_id and request.worker_id != self._worker_id:
            return False
        with trace(request.trace_id or None):
            try:
                header, held = self._streams.open_range(request)
            except HearthError as error:
                send_message(peer, worker_pb2.DataReply(error=type(error).__name__, message=error.message))
                return True
            except Exception as error:
                log.exception("data-read-failed")
                reply = worker_pb2.DataReply(error=Unavailable.__name__, message=f"bug in the worker: {error!r}")
                send_message(peer, reply)
                return True
            try:
                send_message(peer, worker_pb2.DataReply(header=header), socket.MSG_MORE)
                self._send(peer, request, header.payload_bytes, held, buffer)
            except HearthError as error:
                log.warning("data-read-cut", block=str(BlockKey(request.block, request.generation)), reason=str(error))
                return False
            finally:
                held.close()
        return True

    def _send(
        self,
        peer: socket.socket,
        request: worker_pb2.ReadRequest,
        size: int,
        held: OpenBlock,
        buffer: memoryview,
    ) -> None:
        """Raises: BlockCorrupt: the file is too short. Unavailable: the disk failed. OSError: the client is gone."""
        start, end = request.offset_bytes, request.offset_bytes + size
        for offset in range(start, end, BUFFER_BYTES):
            part = buffer[: min(BUFFER_BYTES, end - offset)]
            got = held.pread_into(part, offset)
            if got != len(part):
                raise self._streams.cut_short(BlockKey(request.block, request.generation), offset + got, end)
            self._metrics.read_bytes.labels("data").inc(got)  # first: who has the bytes finds them counted
            peer.sendall(part)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(f"cannot listen on {host}: {error.strerror}: give an address of this host") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"data port {port} on {host} is in use: stop the program there, or set another data_port"
            ) from None
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener
