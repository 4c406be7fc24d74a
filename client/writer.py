"""Gets places for new blocks, and turns finished ones into files.

Bytes become part of a file in one step, at the master, after they are complete at a worker: nobody ever sees half.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..common.errors import Busy, DeadlineExceeded, HearthError, NoSpace, NotFound, Unavailable
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from ..proto.worker_pb2 import ControlRequest
from .deadline import Deadline
from .drafts import Allocated, Committed, Draft, LocalDraft, SpoolDraft, StreamDraft, create_request
from .layout import replica
from .metadata import Metadata
from .open_version import OpenVersion
from .workers import Workers

log = get_logger(__name__)

PLACES = 3
"""How many workers are tried for one block."""
DISCARD_S = 5.0
COPY_BYTES = 4 << 20

Full = (NoSpace, Unavailable, DeadlineExceeded, Busy)
"""The worker cannot take the block; another may."""


class Writer:
    """Thread-safe."""

    def __init__(self, metadata: Metadata, workers: Workers) -> None:
        self._metadata = metadata
        self._workers = workers

    def allocate(self, count: int, size_bytes: int, deadline: Deadline, avoid: Sequence[str] = ()) -> list[Allocated]:
        """``count`` working blocks, on this node where it has room; ``size_bytes`` is a hint, for each.

        Raises:
            NoSpace: no worker outside ``avoid`` has room.
        """
        request = pb.MutateRequest(
            allocate=pb.Allocate(
                count=count, prefer_node=self._workers.node_id, size_hint_bytes=size_bytes, avoid_workers=avoid
            )
        )
        blocks = self._metadata.mutate(request, deadline).blocks
        return [Allocated(BlockKey(block.block, block.generation), replica(block.worker)) for block in blocks]

    def draft(
        self,
        size_bytes: int,
        deadline: Deadline,
        *,
        random_access: bool,
        avoid: Sequence[str] = (),
        base: OpenVersion | None = None,
    ) -> Draft:
        """A new block to fill. It begins with the valid bytes of ``base``, verified on their way.

        Raises:
            NoSpace, Unavailable, DeadlineExceeded: three places were tried, or there is none.
        """
        avoided = list(avoid)
        while True:
            (place,) = self.allocate(1, size_bytes, deadline, avoided)
            try:
                return self._open(place, deadline, random_access, base)
            except Full as error:
                self.discard([place.key])
                avoided.append(place.worker.worker_id)
                if len(avoided) >= PLACES:
                    raise
                log.warning("draft-moves", worker=place.worker.worker_id, reason=error.message)

    def _open(self, place: Allocated, deadline: Deadline, random_access: bool, base: OpenVersion | None) -> Draft:
        local_id = self._workers.local_id()
        draft: Draft
        if place.worker.worker_id == local_id:
            source = base.version if base is not None else None
            is_here = source is not None and any(each.worker_id == local_id for each in source.replicas)
            if source is not None and source.key is not None and source.valid_bytes and is_here:
                with suppress(NotFound):  # our replica is gone: the bytes come from another
                    return self._open_local(
                        place, create_request([place.key], source.key, source.valid_bytes), deadline
                    )
            draft = self._open_local(place, create_request([place.key]), deadline.part(0.3, 2.0))
        else:
            with self._workers.control(place.worker, create_request([place.key]), deadline.part(0.3, 2.0)) as reply:
                if error := reply.error(0):
                    raise error
            draft = SpoolDraft(place, self._workers) if random_access else StreamDraft(place, self._workers)
        try:
            if base is not None:
                copy_in(base, draft, base.version.valid_bytes, deadline)
        except BaseException:
            draft.close()
            raise
        return draft

    def _open_local(self, place: Allocated, request: ControlRequest, deadline: Deadline) -> LocalDraft:
        with self._workers.local_call(request, deadline) as reply:
            if error := reply.error(0):
                raise error
            file = reply.message.blocks[0]
            return LocalDraft(place, reply.take(0), file.length_bytes, file.limit_bytes, self._workers)

    def discard(self, keys: Sequence[BlockKey]) -> None:
        """Gives working blocks back; best effort, because the end of the session does it too."""
        if not keys:
            return
        request = pb.MutateRequest(discard=pb.Discard(blocks=[key.block for key in keys]), no_wait=True)
        try:
            self._metadata.mutate(request, Deadline(DISCARD_S))
        except HearthError as error:
            log.warning("discard-failed", blocks=len(keys), reason=error.message)

    def publish(self, inode: int, block: Committed | None, size_bytes: int, deadline: Deadline) -> common.Entry:
        """Makes ``block`` the content of ``inode``; None: all zeros.

        Raises:
            Stale, NotFound: the inode is gone.
        """
        if block is None:
            item = pb.Publish(inode=inode, size_bytes=size_bytes, sealed=True)
        else:
            item = pb.Publish(
                inode=inode,
                block=block.key.block,
                generation=block.key.generation,
                length_bytes=block.length_bytes,
                digest=block.digest,
                sealed=True,
                worker_id=block.worker_id,
                size_bytes=size_bytes,
            )
        return self._metadata.mutate(pb.MutateRequest(publish=item), deadline).entry


def copy_in(source: OpenVersion, draft: Draft, size_bytes: int, deadline: Deadline) -> None:
    """The first ``size_bytes`` of a published version, each chunk verified, into a draft."""
    buffer = memoryview(bytearray(min(COPY_BYTES, size_bytes)))
    for at in range(0, size_bytes, COPY_BYTES):
        part = buffer[: min(COPY_BYTES, size_bytes - at)]
        source.read(at, part, deadline)
        draft.write(at, part, deadline)
