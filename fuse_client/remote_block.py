"""A block on another node, read by ranges over the network: too big to fetch, or a node without a worker.

The worker's lease keeps the bytes while the block is open here, also when the file is replaced or deleted meanwhile.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

import grpc
import trio

from ..common.checksums import CHUNK_BYTES
from ..common.data_socket import DataLink
from ..common.errors import HearthError, Unavailable, from_errno, from_rpc_error
from ..common.sink import Into
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from ..proto import master_pb2 as master
from ..proto import worker_pb2 as pb
from ..proto.worker_pb2_grpc import WorkerStub
from . import background

log = get_logger(__name__)

AHEAD_BYTES = 8 * CHUNK_BYTES
GROUPS = 2


def control(channel: grpc.Channel, request: pb.ControlRequest, timeout_s: float, what: str) -> pb.ControlReply:
    """One control operation on a worker elsewhere; blocking.

    Raises:
        HearthError: of the call, or of the request's first block.
    """
    stub = WorkerStub(channel)
    try:
        reply: pb.ControlReply = stub.Control(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise from_rpc_error(error, what) from None
    except ValueError:
        raise Unavailable(f"{what}: the mount is ending") from None
    if reply.errnos and reply.errnos[0]:
        raise from_errno(reply.errnos[0], reply.message)
    return reply


class RemoteBlock:
    """Reads ``AHEAD_BYTES`` at one time and keeps the last groups: a sequential reader asks for 1 MiB at most."""

    def __init__(
        self,
        identity: int,
        link: DataLink,
        address: str,
        channel: grpc.Channel,
        worker_id: str,
        key: BlockKey,
        length_bytes: int,
        digest: int,
        timeout_s: float,
    ) -> None:
        self.identity = identity
        self.worker_id = worker_id
        self.length_bytes = length_bytes
        self._link = link
        self._address = address
        self._channel = channel
        self._key = key
        self._digest = digest
        self._timeout_s = timeout_s
        self._what = f"block {key} on {worker_id}"
        self._groups: OrderedDict[int, bytearray] = OrderedDict()
        self._loading = trio.Lock()
        self._lease = trio.CancelScope()

    @property
    def local_fd(self) -> int | None:
        return None

    async def hold(self, nursery: trio.Nursery) -> None:
        """Takes a lease on the bytes and renews it until ``close``.

        Raises:
            HearthError: the worker does not have the block, or does not answer.
        """
        key = master.BlockKey(block=self._key.block, generation=self._key.generation)
        request = pb.ControlRequest(open=pb.OpenBlocks(blocks=[key]))
        reply = await trio.to_thread.run_sync(control, self._channel, request, self._timeout_s, self._what)
        if reply.lease_id:
            background.start(nursery, self._renew, reply.lease_id, reply.lease_ms / 1000)

    async def _renew(self, lease_id: int, lease_s: float) -> None:
        with self._lease:
            while True:
                await trio.sleep(max(0.1, lease_s / 3))
                request = pb.ControlRequest(renew=pb.Renew(lease_id=lease_id))
                try:
                    await trio.to_thread.run_sync(control, self._channel, request, lease_s / 3, self._what)
                except HearthError as error:
                    log.warning("lease-not-renewed", block=str(self._key), worker=self.worker_id, reason=str(error))

    def try_load(self, start: int, view: memoryview) -> bool:
        group = self._groups.get(start // AHEAD_BYTES)
        if group is None:
            return False
        within = start % AHEAD_BYTES
        view[:] = memoryview(group)[within : within + len(view)]
        return True

    async def load(self, start: int, view: memoryview) -> None:
        async with self._loading:
            if self.try_load(start, view):
                return
            number = start // AHEAD_BYTES
            begin = number * AHEAD_BYTES
            group = bytearray(min(AHEAD_BYTES, self.length_bytes - begin))
            await trio.to_thread.run_sync(self._read, begin, memoryview(group))
            self._groups[number] = group
            while len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
            self.try_load(start, view)

    def _read(self, begin: int, into: memoryview) -> None:
        try:
            self._link.read(
                self._address,
                self._channel,
                self._key,
                begin,
                len(into),
                Into(into, begin),
                block_length=self.length_bytes,
                digest=self._digest,
                timeout_s=self._timeout_s,
                what=self._what,
            )
        except ValueError:
            raise Unavailable(f"{self._what}: the mount is ending") from None

    def close(self) -> None:
        self._groups.clear()
        with contextlib.suppress(RuntimeError):
            self._lease.cancel()
