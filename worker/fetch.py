"""Brings a replica of a block here from another worker: one transfer per block, whoever and how many ask for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager

import grpc

from ..common import checksums, data_stream
from ..common.clock import Clock
from ..common.credentials import Connect, plain
from ..common.errors import BlockCorrupt, Busy, DeadlineExceeded, HearthError, InvalidArgument, NoSpace, Unavailable
from ..common.telemetry import TRACE_KEY, current_trace_id, get_logger
from ..common.types import FILE_MAX_BYTES, BlockKey, Buffer
from .block_store import BlockStore
from .index import BlockRecord

PIECE_BYTES = 8 << 20
MAX_TRANSFERS = 8
"""At a time; more wait their turn."""
PIECE_TIMEOUT_S = 20.0
"""A source that does not send one piece in this time is given up, the next one is asked."""

log = get_logger("hearthfs.worker.fetch")


class Fetcher:
    """Thread-safe.

    Args:
        timeout_s: for a whole fetch, all sources together.
    """

    def __init__(
        self,
        store: BlockStore,
        clock: Clock,
        timeout_s: float,
        count_bytes: Callable[[int], None] = lambda _: None,
        connect: Connect = plain,
    ) -> None:
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._count_bytes = count_bytes
        self._connect = connect
        self._guard = threading.Lock()
        self._running: dict[BlockKey, Future[BlockRecord]] = {}
        self._transfers = threading.BoundedSemaphore(MAX_TRANSFERS)
        self._channels: set[grpc.Channel] = set()
        self._stopped = False

    def fetch(self, key: BlockKey, length_bytes: int, digest: int, sources: Sequence[str]) -> BlockRecord:
        """Returns when the block is committed here. The first caller does the work, others wait for it.

        Raises:
            InvalidArgument, NoSpace, Busy, DeadlineExceeded, or what the last source answered.
        """
        if length_bytes > FILE_MAX_BYTES or not sources:
            raise InvalidArgument(f"fetch of block {key}: give a possible length and at least one source")
        with self._guard:
            future = self._running.get(key)
            mine = future is None
            if future is None:
                future = self._running[key] = Future()
        if not mine:
            try:
                return future.result(self._timeout_s)
            except FutureTimeout:
                raise DeadlineExceeded(f"block {key} was not fetched in {self._timeout_s:g} s") from None
        try:
            deadline_s = self._clock.monotonic_s() + self._timeout_s
            if not self._transfers.acquire(timeout=self._timeout_s):
                raise Busy(f"block {key} waited {self._timeout_s:g} s for one of {MAX_TRANSFERS} transfers: try again")
            try:
                record = self._fetch(key, length_bytes, digest, sources, deadline_s)
            finally:
                self._transfers.release()
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(record)
            return record
        finally:
            with self._guard:
                del self._running[key]

    def _fetch(
        self, key: BlockKey, length_bytes: int, digest: int, sources: Sequence[str], deadline_s: float
    ) -> BlockRecord:
        last: HearthError | None = None
        for source in sources:
            try:
                record = self._store.fill(
                    key,
                    length_bytes,
                    lambda pwrite: self._transfer(source, key, length_bytes, digest, deadline_s, pwrite),  # noqa: B023
                )
                _check(record, key, length_bytes, digest)
                return record
            except (NoSpace, Busy):
                raise
            except HearthError as error:
                log.warning("fetch-failed", block=str(key), source=source, error=str(error))
                last = error
        assert last is not None
        raise last

    @contextmanager
    def _channel(self, source: str) -> Iterator[grpc.Channel]:
        with self._connect(source) as channel:
            with self._guard:
                if self._stopped:
                    raise Unavailable("this worker is stopping")
                self._channels.add(channel)
            try:
                yield channel
            finally:
                with self._guard:
                    self._channels.discard(channel)

    def stop(self) -> None:
        """Ends the transfers in work: their callers get Unavailable."""
        with self._guard:
            self._stopped = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()

    def _transfer(
        self,
        source: str,
        key: BlockKey,
        length_bytes: int,
        digest: int,
        deadline_s: float,
        pwrite: Callable[[Buffer, int], None],
    ) -> bytes:
        """Streams the block in verified pieces and returns its checksums."""
        what = f"block {key} from {source}"
        metadata = ((TRACE_KEY, current_trace_id()),)
        result: list[int] = []
        buffer = memoryview(bytearray(min(PIECE_BYTES, length_bytes)))
        with self._channel(source) as channel:
            # An empty block is asked for too: the source must have it.
            for offset in range(0, max(1, length_bytes), PIECE_BYTES):
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise DeadlineExceeded(f"{what}: not here after {self._timeout_s:g} s")
                piece = buffer[: length_bytes - offset]
                data_stream.read_into(
                    channel,
                    key,
                    offset,
                    piece,
                    block_length=length_bytes,
                    digest=digest,
                    timeout_s=min(left_s, PIECE_TIMEOUT_S),
                    what=what,
                    metadata=metadata,
                )
                result += [
                    checksums.checksum(piece[at : at + checksums.CHUNK_BYTES])
                    for at in range(0, len(piece), checksums.CHUNK_BYTES)
                ]
                pwrite(piece, offset)
                self._count_bytes(len(piece))
        return checksums.pack(result)


def _check(record: BlockRecord, key: BlockKey, length_bytes: int, digest: int) -> None:
    if record.length_bytes != length_bytes or (digest and record.digest != digest):
        raise BlockCorrupt(f"block {key} here is another one: {record.length_bytes} bytes, digest {record.digest:016x}")
