"""Keeps a block's bytes on another node's worker while a file is open: what a descriptor does on this node."""

from __future__ import annotations

from ..common.errors import BlockMissing, HearthError, NotFound
from ..common.telemetry import get_logger
from ..proto import worker_pb2 as pb
from .deadline import Deadline
from .drafts import wire_key
from .keeper import Keeper
from .layout import Replica, Version
from .workers import Workers

log = get_logger(__name__)

RENEW_S = 5.0
"""For one renewal's call."""


class ReadLease:
    """Granted by ``take``, renewed by the keeper, ends some time after ``close``."""

    def __init__(self, workers: Workers, keeper: Keeper, worker: Replica, version: Version) -> None:
        self._workers = workers
        self._keeper = keeper
        self._worker = worker
        self._version = version
        self._lease_id = 0
        self._lease_s = 0.0

    def take(self, deadline: Deadline) -> None:
        """Raises: BlockMissing, BlockCorrupt, Unavailable, DeadlineExceeded, Busy."""
        self._grant(deadline)
        self._keeper.keep(self, max(0.1, self._lease_s / 3), self._renew)

    def _grant(self, deadline: Deadline) -> None:
        assert self._version.key is not None
        request = pb.ControlRequest(open=pb.OpenBlocks(blocks=[wire_key(self._version.key)]))
        with self._workers.remote(self._worker, request, deadline) as reply:
            if error := reply.error(0):
                raise BlockMissing(error.message) if isinstance(error, NotFound) else error
            self._lease_id = reply.message.lease_id
            self._workers.leased(self._worker, self._version.key, self._lease_id)
            self._lease_s = reply.message.lease_ms / 1000

    def _renew(self) -> None:
        request = pb.ControlRequest(renew=pb.Renew(lease_id=self._lease_id))
        try:
            self._workers.remote(self._worker, request, Deadline(RENEW_S)).close()
        except HearthError as error:
            # A worker that was restarted knows no leases; while the bytes are there it grants a new one.
            log.info("lease-taken-again", worker=self._worker.worker_id, reason=error.message)
            self._grant(Deadline(RENEW_S))

    def close(self) -> None:
        self._keeper.release(self)
        if self._version.key is not None:
            self._workers.leased(self._worker, self._version.key, self._lease_id, ended=True)
