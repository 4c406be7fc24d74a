"""Control requests, the same for both doors: one request in, one reply and descriptors out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ..common.clock import Clock
from ..common.errors import HearthError, InvalidArgument, TooBig
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from ..proto import master_pb2, worker_pb2
from .block_store import BlockStore, WorkingFile
from .disk import OpenBlock
from .fetch import Fetcher
from .leases import Leases
from .messages import block_file_message, key_from
from .metrics import Metrics
from .usage import ReadBlocks, Room

MAX_BLOCKS = 64
"""Per request: so many descriptors travel with one message, and no request takes for ever."""

NEED_ROOM = ("create", "commit")
"""What these wait for when room is short: that eviction makes some."""

Door = Literal["socket", "grpc"]
Pace = Literal["quick", "disk", "network"]
Item = TypeVar("Item")
Result = TypeVar("Result")

log = get_logger("hearthfs.worker.control")


@dataclass(frozen=True)
class Answer:
    """Whoever has it closes ``fds`` once they are sent."""

    reply: worker_pb2.ControlReply
    fds: list[int]


class Control:
    """Handlers of every operation. Thread-safe."""

    def __init__(
        self,
        store: BlockStore,
        leases: Leases,
        fetcher: Fetcher,
        clock: Clock,
        metrics: Metrics,
        worker_id: str,
        cluster_id: str,
        changed: Callable[[], None],
        invite: Callable[[], tuple[int, bytes]] | None = None,
        reads: ReadBlocks | None = None,
        room: Room | None = None,
    ) -> None:
        self._store = store
        self._leases = leases
        self._fetcher = fetcher
        self._clock = clock
        self._metrics = metrics
        self._worker_id = worker_id
        self._cluster_id = cluster_id
        self._changed = changed
        self._invite = invite
        self._reads = reads
        self._room = room

    def pace(self, request: worker_pb2.ControlRequest) -> Pace:
        """How long it may take: see ``pace_of``."""
        return pace_of(request, room_is_short=self._room is not None and self._room.is_short)

    def handle(self, request: worker_pb2.ControlRequest, door: Door) -> Answer:
        """
        Raises:
            InvalidArgument, TooBig: the request as a whole makes no sense. Errors of single blocks are in the reply.
        """
        op = request.WhichOneof("op")
        if op is None:
            raise InvalidArgument("the request has no operation that this version knows")
        self._metrics.requests.labels(door, op).inc()
        reply = worker_pb2.ControlReply(request_id=request.request_id)
        fds: list[int] = []
        if op in NEED_ROOM and self._room is not None:
            self._room.wait()
        try:
            if op == "open":
                self._open(_keys(request.open.blocks), reply, fds, door)
            elif op == "create":
                self._create(request.create, reply, fds, door)
            elif op == "commit":
                self._commit(request.commit, reply)
            elif op == "discard":
                self._each(reply, _keys(request.discard.blocks), self._store.discard)
            elif op == "fetch":
                self._fetch(request.fetch, reply, fds, door)
            elif op == "renew":
                self._leases.renew(request.renew.lease_id, self._clock.monotonic_s())
                reply.lease_id = request.renew.lease_id
                reply.lease_ms = int(self._leases.duration_s * 1000)
            elif op == "hello" and door == "grpc" and self._invite is not None:
                reply.data_port, reply.data_ticket = self._invite()
            if self._room is not None and op in ("commit", "fetch"):
                self._room.look()
            reply.worker_id = self._worker_id
            reply.cluster_id = self._cluster_id
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return Answer(reply, fds)

    def _each(
        self, reply: worker_pb2.ControlReply, items: Sequence[Item], do: Callable[[Item], Result]
    ) -> list[Result | None]:
        """Calls ``do`` for each item and puts its errno into the reply."""
        results: list[Result | None] = []
        for item in items:
            result: Result | None = None
            number = 0
            try:
                result = do(item)
            except OSError as error:
                number = error.errno or errno.EIO
                text = str(error) if isinstance(error, HearthError) else f"{os.strerror(number)} ({error.filename})"
                reply.message = reply.message or text
                self._metrics.errors.labels(errno.errorcode.get(number, str(number))).inc()
                if not isinstance(error, HearthError):
                    log.error("disk-error", item=str(item), error=str(error))
            reply.errnos.append(number)
            results.append(result)
        return results

    def _open(self, keys: list[BlockKey], reply: worker_pb2.ControlReply, fds: list[int], door: Door) -> None:
        opened = self._each(reply, keys, self._open_one)
        if self._reads is not None:
            self._reads.note(key.block for key, held in zip(keys, opened, strict=True) if held is not None)
        for held in opened:
            reply.blocks.append(block_file_message(held.record if held else None))
        if door == "socket":
            _pass_descriptors(reply, fds, opened)
            return
        leased: dict[BlockKey, OpenBlock] = {}
        for key, held in zip(keys, opened, strict=True):
            if held is not None and key in leased:
                held.close()
            elif held is not None:
                leased[key] = held
        if leased:
            reply.lease_id = self._leases.grant(leased, self._clock.monotonic_s())
            reply.lease_ms = int(self._leases.duration_s * 1000)

    def _open_one(self, key: BlockKey) -> OpenBlock:
        try:
            return self._store.open_read(key)
        except HearthError:
            # Its file may be deleted while somebody's lease still has the bytes.
            held = self._leases.borrow(key, self._clock.monotonic_s())
            if held is None:
                raise
            return held

    def _create(
        self, create: worker_pb2.CreateBlocks, reply: worker_pb2.ControlReply, fds: list[int], door: Door
    ) -> None:
        keys = _keys(create.blocks)
        if create.HasField("copy_from"):
            if len(keys) != 1:
                raise InvalidArgument("a copy fills exactly one block")
            source = key_from(create.copy_from)
            made = self._each(reply, keys, lambda key: self._store.create_copy(key, source, create.copy_bytes))
        else:
            made = self._each(reply, keys, self._store.create)
        for file in made:
            reply.blocks.append(
                worker_pb2.BlockFile(length_bytes=file.length_bytes, limit_bytes=file.limit_bytes)
                if file
                else worker_pb2.BlockFile()
            )
        if door == "socket":
            _pass_descriptors(reply, fds, made)
        else:
            for file in made:
                if file is not None:
                    os.close(file.fd)

    def _commit(self, commit: worker_pb2.CommitBlocks, reply: worker_pb2.ControlReply) -> None:
        _check_count(len(commit.items))
        with self._metrics.commit_seconds.time():
            records = self._each(
                reply,
                list(commit.items),
                lambda item: self._store.commit(
                    key_from(item.key), item.length_bytes, item.checksums, sync=commit.sync
                ),
            )
        for record in records:
            reply.blocks.append(block_file_message(record))

    def _fetch(self, fetch: worker_pb2.FetchBlock, reply: worker_pb2.ControlReply, fds: list[int], door: Door) -> None:
        verified = False

        def one(key: BlockKey) -> OpenBlock:
            nonlocal verified
            verified = self._fetcher.fetch(key, fetch.length_bytes, fetch.digest, list(fetch.sources)).verified
            return self._store.open_read(key)

        (held,) = self._each(reply, [key_from(fetch.key)], one)
        message = block_file_message(held.record if held else None)
        message.verified = verified
        reply.blocks.append(message)
        if door == "socket":
            _pass_descriptors(reply, fds, [held])
        elif held is not None:
            held.close()
        self._changed()


def pace_of(request: worker_pb2.ControlRequest, *, room_is_short: bool) -> Pace:
    """How long it may take: a few file operations, as long as the disk needs, or as long as another node needs.
    Requests of one pace must not wait behind those of a slower one."""
    op = request.WhichOneof("op")
    if op == "fetch":
        return "network"
    if op == "commit" and (request.commit.sync or any(not item.checksums for item in request.commit.items)):
        return "disk"
    if op == "create" and request.create.HasField("copy_from"):
        return "disk"
    if op in NEED_ROOM and room_is_short:
        return "disk"
    return "quick"


def error_reply(request_id: int, error: OSError) -> worker_pb2.ControlReply:
    """For the socket, which has no status beside the reply."""
    return worker_pb2.ControlReply(request_id=request_id, errnos=[error.errno or errno.EIO], message=str(error))


def _check_count(count: int) -> None:
    if count > MAX_BLOCKS:
        raise TooBig(f"{count} blocks in one request: {MAX_BLOCKS} is the limit")


def _keys(keys: Sequence[master_pb2.BlockKey]) -> list[BlockKey]:
    _check_count(len(keys))
    return [key_from(key) for key in keys]


def _pass_descriptors(
    reply: worker_pb2.ControlReply, fds: list[int], files: Sequence[OpenBlock | WorkingFile | None]
) -> None:
    for file in files:
        if file is not None:
            fds.append(file.fd)
        reply.fd_indexes.append(len(fds) if file is not None else 0)
