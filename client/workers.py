"""How to reach a worker: this node's by its socket, every other by gRPC and its data port."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from ..common.data_socket import DataLink
from ..common.data_stream import write_from
from ..common.errors import (
    BlockMissing,
    Busy,
    DeadlineExceeded,
    NotFound,
    TooBig,
    Unavailable,
    WrongCluster,
    from_rpc_error,
)
from ..common.sink import Into
from ..common.telemetry import TRACE_KEY, current_trace_id, get_logger
from ..common.types import BlockKey
from ..proto import master_pb2 as master
from ..proto import worker_pb2 as pb
from ..proto.worker_pb2_grpc import WorkerStub
from .channels import Channels
from .deadline import Deadline
from .layout import Replica, Version
from .local_socket import LocalReply, LocalWorker
from .retry import RetryPolicy
from .silence import Silence, patience_s

Lost = (Unavailable, DeadlineExceeded, Busy)
"""The peer did not answer: it says nothing about the bytes."""
HELLO_S = 2.0

log = get_logger(__name__)


class Workers:
    """Thread-safe. ``local`` is None on a node without a worker."""

    def __init__(
        self,
        channels: Channels,
        local: LocalWorker | None,
        node_id: str,
        *,
        use_port: bool = True,
        policy: RetryPolicy | None = None,
        tokens: Callable[[Sequence[BlockKey]], Sequence[bytes]] = lambda _: (),
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._channels = channels
        self._local = local
        self._link = DataLink(use_port=use_port)
        self._told = False
        self.node_id = node_id
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._chance = chance
        self._tokens = tokens
        self._leases: dict[tuple[str, BlockKey], int] = {}
        self.silence = Silence()

    def close(self) -> None:
        self._link.close()
        self._channels.close()
        if self._local is not None:
            self._local.close()

    def leased(self, worker: Replica, key: BlockKey, lease_id: int, *, ended: bool = False) -> None:
        """A lease of this client's on a block there: reads go by it when there is no token any more."""
        if not ended:
            self._leases[worker.worker_id, key] = lease_id
        elif self._leases.get((worker.worker_id, key)) == lease_id:
            self._leases.pop((worker.worker_id, key), None)

    def _token(self, key: BlockKey) -> bytes:
        return next(iter(self._tokens((key,))), b"")

    def _show_tokens(self, request: pb.ControlRequest) -> None:
        keys = blocks_of(request)
        if keys:
            request.tokens[:] = self._tokens(keys)

    def local_id(self) -> str:
        """The id of this node's worker; empty when there is none, or it does not answer."""
        if self._local is None:
            return ""
        found = self._local.identify(HELLO_S)
        if not found:
            self._tell(f"no worker of this cluster answers at {self._local.path}")
        return found or ""

    def _tell(self, reason: str) -> None:
        """That the short way on this node is shut; once until it is open again."""
        if not self._told:
            self._told = True
            log.warning("local-worker-not-used", reason=f"{reason}: its blocks are reached by the network")

    def local_call(self, request: pb.ControlRequest, deadline: Deadline) -> LocalReply:
        """By the socket: the only way that gives descriptors.

        Raises:
            Unavailable, DeadlineExceeded, Busy, TooBig.
        """
        if self._local is None:
            raise Unavailable("this node has no worker")
        self._show_tokens(request)
        try:
            with self._listening(self._local.worker_id or ""):
                reply = self._local.call(request, deadline.left_s(f"call of the local worker at {self._local.path}"))
        except WrongCluster as error:
            self._tell(error.message)
            raise Unavailable(error.message) from None
        except (*Lost, TooBig) as error:
            self._tell(error.message)
            raise
        self._told = False
        return reply

    @contextmanager
    def _listening(self, worker_id: str) -> Iterator[None]:
        """Remembers whether the worker answers."""
        try:
            yield
        except (Unavailable, DeadlineExceeded):
            self.silence.note(worker_id)
            raise
        self.silence.heard(worker_id)

    def control(self, worker: Replica, request: pb.ControlRequest, deadline: Deadline) -> LocalReply:
        """Any control operation that needs no descriptor, by the best way to ``worker``.

        Raises:
            Unavailable, DeadlineExceeded.
        """
        if self._local is not None and worker.worker_id == self.local_id():
            try:
                return self.local_call(request, deadline)
            except (Unavailable, Busy, TooBig):
                pass  # its other door may be open, or wide enough
        return self.remote(worker, request, deadline)

    def remote(self, worker: Replica, request: pb.ControlRequest, deadline: Deadline) -> LocalReply:
        """A control operation by gRPC, also where the worker is this node's."""
        what = f"{request.WhichOneof('op')} on worker {worker.worker_id} at {worker.address}"
        self._show_tokens(request)
        trace_id = request.trace_id = request.trace_id or current_trace_id()
        with self._listening(worker.worker_id), self._channel(worker, what) as channel:
            try:
                reply = WorkerStub(channel).Control(
                    request, timeout=deadline.left_s(what), metadata=((TRACE_KEY, trace_id),)
                )
            except grpc.RpcError as error:
                raise from_rpc_error(error, what) from None
        return LocalReply(reply, [])

    def persist(self, worker: Replica, request: pb.ControlRequest, deadline: Deadline) -> LocalReply:
        """``control``, sent again while the worker does not answer (it may be restarting): all operations are
        idempotent.

        Raises:
            Unavailable, DeadlineExceeded: not until the deadline.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return self.control(worker, request, deadline)
            except Lost as error:
                delay = self._policy.delay_s(attempt, deadline.elapsed_s(), deadline.timeout_s, error, self._chance())
                if delay is None:
                    raise
            self._sleep(delay)

    def read(self, worker: Replica, version: Version, start: int, into: memoryview, timeout_s: float) -> None:
        """Whole chunks from a worker elsewhere, verified.

        Raises:
            BlockCorrupt, BlockMissing, Unavailable, DeadlineExceeded: ``into`` holds nothing to be used then.
        """
        assert version.key is not None
        what = f"{version.what} on worker {worker.worker_id} at {worker.address}"
        with self._listening(worker.worker_id), self._channel(worker, what) as channel:
            try:
                self._link.read(
                    worker.address,
                    channel,
                    version.key,
                    start,
                    len(into),
                    Into(into, start),
                    block_length=version.length_bytes,
                    digest=version.digest,
                    timeout_s=timeout_s,
                    what=what,
                    token=self._token(version.key),
                    lease_id=self._leases.get((worker.worker_id, version.key), 0),
                )
            except NotFound as error:  # about a block; to the caller of a file it would say that the file is not there
                raise BlockMissing(error.message) from None

    def write(self, worker: Replica, key: BlockKey, offset: int, data: memoryview, deadline: Deadline) -> None:
        """Into a working block by gRPC.

        Raises:
            NoSpace, BlockCorrupt, Unavailable, DeadlineExceeded.
        """
        what = f"write of block {key} to worker {worker.worker_id} at {worker.address}"
        with self._channel(worker, what) as channel:
            write_from(
                channel,
                key,
                offset,
                data,
                timeout_s=deadline.left_s(what),
                what=what,
                metadata=((TRACE_KEY, current_trace_id()),),
                token=self._token(key),
            )

    @contextmanager
    def _channel(self, worker: Replica, what: str) -> Iterator[grpc.Channel]:
        if not worker.address:
            raise Unavailable(f"{what}: the master knows no address of it")
        with self._channels.use(worker.address) as channel:
            try:
                yield channel
            except ValueError:  # what grpc raises when the client was closed by another thread
                raise Unavailable(f"{what}: the client was closed") from None


def blocks_of(request: pb.ControlRequest) -> list[BlockKey]:
    """The blocks that a request needs tokens for, in the order that the worker expects."""
    op = request.WhichOneof("op")
    listed: list[master.BlockKey] = []
    if op in ("open", "create", "discard"):
        listed += getattr(request, op).blocks
    if op == "create" and request.create.HasField("copy_from"):
        listed.append(request.create.copy_from)
    if op == "commit":
        listed += [item.key for item in request.commit.items]
    if op == "fetch":
        listed.append(request.fetch.key)
    return [BlockKey(key.block, key.generation) for key in listed]


def left_for_replica(deadline: Deadline, size_bytes: int, others: bool, what: str) -> float:
    """How long one replica may take before the next is asked: a worker that hangs must not use up the whole call."""
    left = deadline.left_s(what)
    return min(left, patience_s(size_bytes)) if others else left
