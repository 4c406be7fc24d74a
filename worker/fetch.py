"""Brings a replica of a block here from another worker: one transfer per block, whoever and how many ask for it.

Bytes are verified as they come, while the socket takes the next ones; the list that they were checked against becomes
the replica's own. A replica is a copy of what somebody else keeps, so nothing waits for the disk.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import NamedTuple

import grpc

from ..common import checksums, data_stream
from ..common.clock import Clock
from ..common.credentials import Connect
from ..common.data_socket import DataLink
from ..common.errors import BlockCorrupt, Busy, DeadlineExceeded, HearthError, InvalidArgument, NoSpace, Unavailable
from ..common.telemetry import current_trace_id, get_logger, trace
from ..common.types import FILE_MAX_BYTES, BlockKey, Buffer
from .block_store import BlockStore
from .index import BlockRecord

PIECE_BYTES = 16 << 20
"""What one request asks for."""
RANGE_BYTES = 32 << 20
"""A longer block comes in several ranges side by side, from different sources where it has them."""
MAX_RANGES = 4
MAX_TRANSFERS = 8
"""Blocks at a time; more wait their turn."""
PIECE_TIMEOUT_S = 20.0
"""A source that does not send one piece in this time is given up, the next one is asked."""

CHANNEL_OPTIONS = (*data_stream.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""With a pool of its own a new channel does not inherit the back-off of one that failed."""

log = get_logger("hearthfs.worker.fetch")

Pwrite = Callable[[Buffer, int], None]


class _Wanted(NamedTuple):
    key: BlockKey
    length_bytes: int
    digest: int
    sources: Sequence[str]
    deadline_s: float


class Fetched(NamedTuple):
    """``verified``: all its bytes were checked by this fetch; False for a block that was here already."""

    record: BlockRecord
    verified: bool


class Fetcher:
    """Thread-safe.

    Args:
        timeout_s: for a whole fetch, all sources together.
        connect: with ``CHANNEL_OPTIONS``.
    """

    def __init__(
        self,
        store: BlockStore,
        clock: Clock,
        timeout_s: float,
        count_bytes: Callable[[int], None] = lambda _: None,
        connect: Connect | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._count_bytes = count_bytes
        self._connect = connect or _plain
        self._guard = threading.Lock()
        self._running: dict[BlockKey, Future[Fetched]] = {}
        self._transfers = threading.BoundedSemaphore(MAX_TRANSFERS)
        self._ranges = ThreadPoolExecutor(MAX_TRANSFERS, thread_name_prefix="fetch-range")
        self._link = DataLink()
        self._channels: dict[str, grpc.Channel] = {}
        self._forgotten: weakref.WeakSet[grpc.Channel] = weakref.WeakSet()
        self._stopped = False

    def fetch(self, key: BlockKey, length_bytes: int, digest: int, sources: Sequence[str]) -> Fetched:
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
                fetched = self._fetch(_Wanted(key, length_bytes, digest, sources, deadline_s))
            finally:
                self._transfers.release()
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(fetched)
            return fetched
        finally:
            with self._guard:
                del self._running[key]

    def stop(self) -> None:
        """Ends the transfers in work: their callers get Unavailable."""
        with self._guard:
            self._stopped = True
            channels = [*self._channels.values(), *self._forgotten]
        self._link.close()
        for channel in channels:
            channel.close()
        self._ranges.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, wanted: _Wanted) -> Fetched:
        verified = False

        def transfer(pwrite: Pwrite) -> bytes:
            nonlocal verified
            packed = self._transfer(wanted, pwrite)
            verified = True
            return packed

        record = self._store.fill(wanted.key, wanted.length_bytes, transfer)
        if record.length_bytes != wanted.length_bytes or (wanted.digest and record.digest != wanted.digest):
            raise BlockCorrupt(
                f"block {wanted.key} here is another one: {record.length_bytes} bytes, digest {record.digest:016x}"
            )
        return Fetched(record, verified)

    def _transfer(self, wanted: _Wanted, pwrite: Pwrite) -> bytes:
        """All of the block; returns its packed checksums."""
        count = max(1, min(MAX_RANGES, wanted.length_bytes // RANGE_BYTES))
        size = -(-wanted.length_bytes // count)
        size += -size % checksums.CHUNK_BYTES
        trace_id = current_trace_id()

        def one(number: int) -> bytes:
            with trace(trace_id):
                end = min((number + 1) * size, wanted.length_bytes)
                return self._range(wanted, number, number * size, end, pwrite)

        others = [self._ranges.submit(one, number) for number in range(1, count)]
        try:
            lists = {one(0)}
        finally:
            # All must have ended before the file is closed.
            ended = [future.exception() for future in others]
        for error in ended:
            if error is not None:
                raise error
        lists.update(future.result() for future in others)
        if len(lists) > 1:
            raise BlockCorrupt(f"block {wanted.key}: its replicas differ, and the master has no digest of it")
        return lists.pop()

    def _range(self, wanted: _Wanted, number: int, start: int, end: int, pwrite: Pwrite) -> bytes:
        """Bytes ``[start, end)``, from the first source that has them."""
        shift = number % len(wanted.sources)
        last: HearthError | None = None
        for source in [*wanted.sources[shift:], *wanted.sources[:shift]]:
            try:
                return self._from(source, wanted, start, end, pwrite)
            except (NoSpace, Busy):
                raise
            except HearthError as error:
                log.warning("fetch-failed", block=str(wanted.key), source=source, error=str(error))
                last = error
        assert last is not None
        raise last

    def _from(self, source: str, wanted: _Wanted, start: int, end: int, pwrite: Pwrite) -> bytes:
        what = f"block {wanted.key} from {source}"
        channel = self._channel(source)
        sink = _Stored(pwrite, self._count_bytes, min(checksums.CHUNK_BYTES, wanted.length_bytes))
        packed = b""
        # An empty block is asked for too: the source must have it.
        for offset in range(start, max(start + 1, end), PIECE_BYTES):
            left_s = wanted.deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise DeadlineExceeded(f"{what}: not here after {self._timeout_s:g} s")
            try:
                packed = self._link.read(
                    source,
                    channel,
                    wanted.key,
                    offset,
                    min(PIECE_BYTES, end - offset),
                    sink,
                    block_length=wanted.length_bytes,
                    digest=wanted.digest,
                    timeout_s=min(left_s, PIECE_TIMEOUT_S),
                    what=what,
                )
            except ValueError:  # what grpc raises when the channel was closed by another thread
                raise Unavailable("this worker is stopping") from None
            except Unavailable:
                self._forget(source, channel)
                raise
        return packed

    def _forget(self, source: str, channel: grpc.Channel) -> None:
        """The next fetch connects anew: a channel that failed goes on failing for a while, also when its worker is
        back. Others may be using this one; it closes when the last one lets go."""
        with self._guard:
            if self._channels.get(source) is channel:
                del self._channels[source]
                self._forgotten.add(channel)

    def _channel(self, source: str) -> grpc.Channel:
        """Kept: there is one for each worker of the cluster at most."""
        with self._guard:
            if self._stopped:
                raise Unavailable("this worker is stopping")
            channel = self._channels.get(source)
            if channel is None:
                channel = self._channels[source] = self._connect(source)
            return channel


def _plain(source: str) -> grpc.Channel:
    """Shows nothing: for sources that do not ask."""
    return grpc.insecure_channel(source, options=CHANNEL_OPTIONS)


class _Stored:
    """Writes each chunk to the replica's file, from one buffer that stays in the processor's cache."""

    def __init__(self, pwrite: Pwrite, count_bytes: Callable[[int], None], buffer_bytes: int) -> None:
        self._pwrite = pwrite
        self._count_bytes = count_bytes
        self._buffer = memoryview(bytearray(buffer_bytes))

    def room(self, offset: int, size: int) -> memoryview:
        return self._buffer[:size]

    def done(self, offset: int, view: memoryview) -> None:
        self._pwrite(view, offset)
        self._count_bytes(len(view))
