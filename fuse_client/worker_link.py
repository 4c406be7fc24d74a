"""This node's worker, asked from trio: one connection to its unix socket, many requests in flight.

Descriptors that were received stay good when the worker goes; the link connects again with the next request.
"""

from __future__ import annotations

import errno
import socket

import trio

from ..client.local_socket import ANCILLARY_BYTES, MAX_MESSAGE_BYTES, LocalReply, decode, encode
from ..common.errors import DeadlineExceeded, HearthError, TooBig, Unavailable
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from ..proto import master_pb2 as master
from ..proto import worker_pb2 as pb
from . import background

log = get_logger(__name__)

MAX_IN_FLIGHT = 64


class _Waiting:
    __slots__ = ("answered", "error", "reply")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.reply: LocalReply | None = None
        self.error: HearthError | None = None


class WorkerLink:
    """Runs inside ``nursery``, which owns the reading task."""

    def __init__(self, path: str, nursery: trio.Nursery, timeout_s: float) -> None:
        self._path = path
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._socket: trio.socket.SocketType | None = None
        self._connecting = trio.Lock()
        self._slots = trio.Semaphore(MAX_IN_FLIGHT)
        self._waiting: dict[int, _Waiting] = {}
        self._next_request = 1
        self.reconnects = 0

    async def open(self, key: BlockKey, timeout_s: float | None = None) -> tuple[int, pb.BlockFile]:
        """A read-only descriptor of a committed block, which the caller closes.

        Raises:
            NotFound: the block is not here. HearthError: any other reason.
        """
        request = pb.ControlRequest(open=pb.OpenBlocks(blocks=[_key(key)]))
        return await self._one_descriptor(request, min(self._timeout_s, timeout_s or self._timeout_s))

    async def create(
        self, key: BlockKey, copy_from: BlockKey | None = None, copy_bytes: int = 0
    ) -> tuple[int, pb.BlockFile]:
        """A read-write descriptor of a working block; the same again for one that exists."""
        create = pb.CreateBlocks(blocks=[_key(key)])
        if copy_from is not None:
            create.copy_from.CopyFrom(_key(copy_from))
            create.copy_bytes = copy_bytes
        return await self._one_descriptor(pb.ControlRequest(create=create), self._timeout_s)

    async def commit(self, key: BlockKey, length_bytes: int, checksums: bytes, *, sync: bool) -> pb.BlockFile:
        item = pb.CommitItem(key=_key(key), length_bytes=length_bytes, checksums=checksums)
        request = pb.ControlRequest(commit=pb.CommitBlocks(items=[item], sync=sync))
        with await self.call(request, self._timeout_s) as reply:
            _raise_first(reply)
            return reply.message.blocks[0]

    async def fetch(
        self, key: BlockKey, length_bytes: int, digest: int, sources: list[str], timeout_s: float
    ) -> tuple[int, pb.BlockFile]:
        """Brings a replica to this node and gives its descriptor, as ``open``. Single flight at the worker."""
        fetch = pb.FetchBlock(key=_key(key), length_bytes=length_bytes, digest=digest, sources=sources)
        return await self._one_descriptor(pb.ControlRequest(fetch=fetch), timeout_s)

    async def discard(self, key: BlockKey) -> None:
        with await self.call(pb.ControlRequest(discard=pb.DiscardBlocks(blocks=[_key(key)])), self._timeout_s):
            return

    async def hello(self, timeout_s: float | None = None) -> tuple[str, str]:
        """(worker id, cluster id)."""
        request = pb.ControlRequest(hello=pb.Hello())
        with await self.call(request, min(self._timeout_s, timeout_s or self._timeout_s)) as reply:
            return reply.message.worker_id, reply.message.cluster_id

    async def _one_descriptor(self, request: pb.ControlRequest, timeout_s: float) -> tuple[int, pb.BlockFile]:
        with await self.call(request, timeout_s) as reply:
            _raise_first(reply)
            return reply.take(0), reply.message.blocks[0]

    async def call(self, request: pb.ControlRequest, timeout_s: float) -> LocalReply:
        """Sends the request and waits; all control operations are idempotent, so one that met a dead connection goes
        once more.

        Raises:
            Unavailable: no worker there. DeadlineExceeded: no answer in time.
        """
        with trio.move_on_after(timeout_s):
            async with self._slots:
                try:
                    return await self._exchange(request)
                except Unavailable:
                    return await self._exchange(request)
        raise DeadlineExceeded(f"the local worker at {self._path} did not answer within {timeout_s:g} s")

    async def _exchange(self, request: pb.ControlRequest) -> LocalReply:
        connection = self._socket or await self._connect()
        number = self._next_request
        self._next_request += 1
        request.request_id = number
        waiting = self._waiting[number] = _Waiting()
        try:
            try:
                await connection.send(encode(request))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise TooBig(f"message to the local worker at {self._path} is over the socket's limit") from None
                self._lost(connection, f"sending: {error.strerror}")
                raise Unavailable(f"local worker at {self._path}: {error.strerror}") from None
            await waiting.answered.wait()
        finally:
            self._waiting.pop(number, None)
        if waiting.error is not None:
            raise waiting.error
        assert waiting.reply is not None
        return waiting.reply

    async def _connect(self) -> trio.socket.SocketType:
        async with self._connecting:
            if self._socket is not None:
                return self._socket
            connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE_BYTES)
                await connection.connect(self._path)
            except OSError as error:
                connection.close()
                raise Unavailable(f"no worker listens at {self._path}: {error.strerror}") from None
            except BaseException:
                connection.close()
                raise
            self._socket = connection
            self.reconnects += 1
            background.start(self._nursery, self._read, connection)
            return connection

    async def _read(self, connection: trio.socket.SocketType) -> None:
        while True:
            try:
                data, ancillary, flags, _ = await connection.recvmsg(
                    MAX_MESSAGE_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
                reply = decode(data, ancillary, flags)
            except (OSError, HearthError) as error:
                self._lost(connection, error.strerror or str(error))
                return
            waiting = self._waiting.pop(reply.message.request_id, None)
            if waiting is None:
                reply.close()  # its caller gave up: its descriptors must not stay open
                continue
            waiting.reply = reply
            waiting.answered.set()

    def _lost(self, connection: trio.socket.SocketType, reason: str) -> None:
        if self._socket is not connection:
            return
        self._socket = None
        connection.close()
        log.warning("worker-connection-lost", socket=self._path, reason=reason)
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.error = Unavailable(f"the local worker at {self._path} went away")
            each.answered.set()


def _key(key: BlockKey) -> master.BlockKey:
    return master.BlockKey(block=key.block, generation=key.generation)


def _raise_first(reply: LocalReply) -> None:
    error = reply.error(0)
    if error is not None:
        raise error
