"""The unix socket of this node's worker: one SEQPACKET message each way, descriptors beside the reply.

``encode``, ``decode`` and ``LocalReply`` are the wire, for blocking and asynchronous callers alike; ``LocalWorker`` is
the blocking, thread-safe connection pool.

Law: each received descriptor belongs to exactly one ``LocalReply``, which closes it unless it was taken out; a message
that cannot be used closes all that came with it.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..common.clock import Clock, SystemClock
from ..common.errors import (
    BlockCorrupt,
    Busy,
    DeadlineExceeded,
    HearthError,
    Internal,
    TooBig,
    Unavailable,
    WrongCluster,
    from_errno,
)
from ..common.telemetry import current_trace_id, get_logger
from ..proto import worker_pb2 as pb

log = get_logger(__name__)

MAX_BLOCKS = 64
"""Per request: the kernel passes at most 253 descriptors with one message, the contract 64."""
MAX_MESSAGE_BYTES = 1 << 20
"""Checksums of 128 GiB. What is bigger, or bigger than the kernel's socket buffer, goes by gRPC."""
ABSENT_S = 0.5
"""A worker that refused a connection is not asked again for so long."""
HUNG_S = 5.0
"""Nor one that was silent for seconds."""
HUNG_AFTER_S = 1.0

Ancillary = list[tuple[int, int, bytes]]
ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_BLOCKS * array.array("i").itemsize)


class LocalReply:
    """A worker's reply with the descriptors that came beside it; a context manager that closes those not taken."""

    def __init__(self, message: pb.ControlReply, descriptors: list[int]) -> None:
        self.message = message
        self._descriptors = descriptors

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for position, descriptor in enumerate(self._descriptors):
            if descriptor >= 0:
                self._descriptors[position] = -1
                os.close(descriptor)

    def error(self, index: int) -> HearthError | None:
        """What went wrong with the request's block ``index``, if anything."""
        number = self.message.errnos[index] if index < len(self.message.errnos) else 0
        return from_errno(number, self.message.message) if number else None

    def descriptor(self, index: int) -> int:
        """Block ``index``'s descriptor, still owned by this reply.

        Raises:
            Internal: the worker sent none for it.
        """
        return self._descriptors[self._position(index)]

    def take(self, index: int) -> int:
        """The same, and from now on the caller closes it."""
        position = self._position(index)
        descriptor, self._descriptors[position] = self._descriptors[position], -1
        return descriptor

    def _position(self, index: int) -> int:
        indexes = self.message.fd_indexes
        position = (indexes[index] if index < len(indexes) else 0) - 1
        if not 0 <= position < len(self._descriptors) or self._descriptors[position] < 0:
            raise Internal(f"the local worker sent no descriptor for block {index} of the request")
        return position


def encode(request: pb.ControlRequest) -> bytes:
    """One message.

    Raises:
        TooBig: longer than a worker would read.
    """
    data = request.SerializeToString()
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooBig(
            f"request of {len(data)} bytes to the local worker; at most {MAX_MESSAGE_BYTES}: send fewer blocks"
        )
    return data


def decode(data: bytes, ancillary: Ancillary, flags: int) -> LocalReply:
    """What ``recvmsg(MAX_MESSAGE_BYTES, ANCILLARY_BYTES, MSG_CMSG_CLOEXEC)`` gave.

    Raises:
        Unavailable: empty message, the worker closed the connection.
        TooBig, Busy: the message or its descriptors were cut.
        BlockCorrupt: damaged message. All descriptors are closed then.
    """
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    reply = LocalReply(pb.ControlReply(), list(descriptors))
    try:
        if flags & socket.MSG_CTRUNC:
            raise Busy("the local worker's descriptors were cut: this process is out of them, raise `ulimit -n`")
        if flags & socket.MSG_TRUNC:
            raise TooBig(f"the local worker's reply is over {MAX_MESSAGE_BYTES} bytes: ask for fewer blocks")
        if not data:
            raise Unavailable("the local worker closed the connection")
        try:
            reply.message.ParseFromString(data)
        except Exception:
            raise BlockCorrupt(f"the local worker's reply of {len(data)} bytes is not a ControlReply") from None
    except HearthError:
        reply.close()
        raise
    return reply


class LocalWorker:
    """Connections to one worker socket: at most ``connections``, one request in flight on each.

    ``cluster_id()``: the cluster that the caller works with, empty while it does not know. A worker of another one may
    have the same id and block numbers, so nothing of it is to be used.

    A connection on which anything went wrong is closed, so that a late reply and its descriptors die with it.
    """

    def __init__(
        self, path: str, *, cluster_id: Callable[[], str] = str, connections: int = 8, clock: Clock | None = None
    ) -> None:
        self.path = path
        self.worker_id = ""
        """Known after the first connection."""
        self._cluster_id = cluster_id
        self._clock = clock or SystemClock()
        self._slots = threading.BoundedSemaphore(connections)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._next_request = 1
        self._absent_until = 0.0
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def identify(self, timeout_s: float) -> str | None:
        """The worker's id, or None when no worker of this cluster answers there."""
        try:
            if not self.worker_id:
                self.call(pb.ControlRequest(hello=pb.Hello()), timeout_s).close()
            return self.worker_id
        except (Unavailable, DeadlineExceeded, Busy):
            return None
        except WrongCluster as error:
            log.warning("local-worker-of-another-cluster", reason=error.message)
            return None

    def call(self, request: pb.ControlRequest, timeout_s: float) -> LocalReply:
        """Sends ``request`` (its ``request_id`` and, when empty, ``trace_id`` are filled in here) and waits.

        Per-block errors are in the reply. A call whose connection turned out to be dead before anything was answered
        goes once more on a fresh one: all control operations are idempotent.

        Raises:
            Unavailable: no worker listens there, or it went away.
            DeadlineExceeded, Busy: no answer, or no free connection, within ``timeout_s``.
            TooBig: the request or the reply does not fit the socket; use gRPC.
        """
        start = self._clock.monotonic_s()
        deadline = start + timeout_s
        if start < self._absent_until:
            raise Unavailable(f"no worker answered at {self.path} just now")
        if not self._slots.acquire(timeout=max(0.0, timeout_s)):
            raise Busy(f"all connections to the local worker at {self.path} were busy for {timeout_s:.1f} s")
        try:
            for reused in (True, False):
                connection = self._checkout(deadline, reused)
                try:
                    reply = self._exchange(connection, request, deadline)
                except Unavailable:
                    connection.close()
                    if not reused:
                        raise
                except BaseException as error:
                    connection.close()
                    self._note_hung(start, error)
                    raise
                else:
                    self._check_in(connection)
                    return reply
            raise AssertionError("unreachable")
        finally:
            self._slots.release()

    def _note_hung(self, start: float, error: BaseException) -> None:
        now = self._clock.monotonic_s()
        if isinstance(error, DeadlineExceeded) and now - start >= HUNG_AFTER_S:
            self._absent_until = now + HUNG_S

    def _checkout(self, deadline: float, reuse: bool) -> socket.socket:
        with self._lock:
            if self._closed:
                raise Unavailable(f"the client of the local worker at {self.path} is closed")
            if reuse and self._idle:
                return self._idle.pop()
            if not reuse:
                for stale in self._idle:
                    stale.close()
                self._idle.clear()
        return self._connect(deadline)

    def _check_in(self, connection: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, deadline: float) -> socket.socket:
        start = self._clock.monotonic_s()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE_BYTES)
            self._transport(connection, deadline, lambda: connection.connect(self.path))
            with self._exchange(connection, pb.ControlRequest(hello=pb.Hello()), deadline) as reply:
                wanted = self._cluster_id()
                if wanted and reply.message.cluster_id not in ("", wanted):
                    raise WrongCluster(
                        f"the worker at {self.path} belongs to cluster {reply.message.cluster_id!r}, not to {wanted!r}"
                    )
                self.worker_id = reply.message.worker_id
        except BaseException as error:
            connection.close()
            if isinstance(error, Unavailable | WrongCluster):
                self._absent_until = self._clock.monotonic_s() + ABSENT_S
            self._note_hung(start, error)
            raise
        return connection

    def _exchange(self, connection: socket.socket, request: pb.ControlRequest, deadline: float) -> LocalReply:
        with self._lock:
            request.request_id = self._next_request
            self._next_request += 1
        request.trace_id = request.trace_id or current_trace_id()
        data = encode(request)
        self._transport(connection, deadline, lambda: connection.send(data))
        received = self._transport(
            connection,
            deadline,
            lambda: connection.recvmsg(MAX_MESSAGE_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC),
        )
        reply = decode(received[0], received[1], received[2])
        if reply.message.request_id != request.request_id:
            reply.close()
            raise Internal(
                f"the worker at {self.path} answered request {reply.message.request_id}, not {request.request_id}"
            )
        return reply

    def _transport(self, connection: socket.socket, deadline: float, act: Callable[[], Any]) -> Any:
        left = deadline - self._clock.monotonic_s()
        if left <= 0:
            raise DeadlineExceeded(f"no answer from the local worker at {self.path} in time")
        try:
            connection.settimeout(left)
            return act()
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from the local worker at {self.path} in time") from None
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise TooBig(f"message to the local worker at {self.path} is over the socket's limit") from None
            raise Unavailable(f"local worker at {self.path}: {error.strerror}") from None
