"""The gRPC door: control messages, statistics, and the two raw streams. Handlers translate and nothing else."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import xxhash

from ..common import checksums, data_stream
from ..common.clock import Clock
from ..common.credentials import Credentials, Unchecked
from ..common.errors import (
    BlockCorrupt,
    Conflict,
    FileTooBig,
    HearthError,
    InvalidArgument,
    SettingsError,
    to_trailing_metadata,
)
from ..common.gate import Gate, caller
from ..common.telemetry import TRACE_KEY, get_logger, trace
from ..common.types import FILE_MAX_BYTES, BlockKey
from ..proto import master_pb2, worker_pb2, worker_pb2_grpc
from .access import Access
from .block_store import BlockStore
from .control import Control
from .disk import OpenBlock
from .leases import Leases
from .messages import disk_messages, report_message
from .metrics import Metrics
from .reports import pages

MAX_CALLS = 1024
"""Served and waiting for a thread, together."""

log = get_logger("hearthfs.worker.service")


class BlockStreams:
    """Read and Write of ``common.data_stream`` over a store. ``access`` None: to all callers, in tests."""

    def __init__(
        self, store: BlockStore, leases: Leases, clock: Clock, metrics: Metrics, access: Access | None = None
    ) -> None:
        self._access = access
        self._store = store
        self._leases = leases
        self._clock = clock
        self._metrics = metrics

    def read(self, request: worker_pb2.ReadRequest) -> tuple[worker_pb2.ReadHeader, Iterator[bytes]]:
        """
        Raises:
            AccessDenied, NotFound, BlockMissing, BlockCorrupt, InvalidArgument.
        """
        header, held = self.open_range(request)
        start = request.offset_bytes
        payload = self._payload(BlockKey(request.block, request.generation), held, start, start + header.payload_bytes)
        next(payload)  # entered: from here on it closes the file, also if nobody takes anything from it
        return header, payload

    def open_range(self, request: worker_pb2.ReadRequest) -> tuple[worker_pb2.ReadHeader, OpenBlock]:
        """The block and what of it is to be sent, from ``request.offset_bytes``. The caller closes it.

        Raises:
            NotFound, BlockMissing, BlockCorrupt, InvalidArgument.
        """
        if self._access is not None:
            self._access.read(caller(), request)
        key = BlockKey(request.block, request.generation)
        held = self._open(key)
        length = held.record.length_bytes
        start = request.offset_bytes
        end = start + request.length_bytes if request.length_bytes else length
        if (
            start % checksums.CHUNK_BYTES
            or end > length
            or start > end
            or (end % checksums.CHUNK_BYTES and end != length)
        ):
            held.close()
            raise InvalidArgument(f"block {key}: bytes {start} to {end} are not whole chunks of its {length} bytes")
        header = worker_pb2.ReadHeader(
            block_length_bytes=length, payload_bytes=end - start, checksums=held.record.checksums
        )
        return header, held

    def cut_short(self, key: BlockKey, at: int, end: int) -> BlockCorrupt:
        """A file that ended while it was sent: it is never served again."""
        self._store.mark_bad(key, f"its file ends at {at}")
        return BlockCorrupt(f"block {key}: its file ends at {at}, not {end}")

    def _open(self, key: BlockKey) -> OpenBlock:
        try:
            return self._store.open_read(key)
        except HearthError:
            held = self._leases.borrow(key, self._clock.monotonic_s())
            if held is None:
                raise
            return held

    def _payload(self, key: BlockKey, held: OpenBlock, start: int, end: int) -> Iterator[bytes]:
        try:
            yield b""
            for offset in range(start, end, data_stream.MESSAGE_BYTES):
                size = min(data_stream.MESSAGE_BYTES, end - offset)
                data = held.pread(size, offset)
                if len(data) != size:
                    raise self.cut_short(key, offset + len(data), end)
                self._metrics.read_bytes.labels("grpc").inc(size)
                yield data
        finally:
            held.close()

    def write(self, header: worker_pb2.WriteHeader, messages: Iterator[bytes]) -> worker_pb2.WriteReply:
        """
        Raises:
            AccessDenied, NoSpace, Exists, FileTooBig, InvalidArgument, BlockCorrupt (the payload is not what was sent).
        """
        if self._access is not None:
            self._access.write(caller(), header)
        key = BlockKey(header.block, header.generation)
        if header.offset_bytes + header.payload_bytes > FILE_MAX_BYTES:
            raise FileTooBig(f"block {key}: a block has at most {FILE_MAX_BYTES} bytes")
        hasher = xxhash.xxh3_64()

        def pieces() -> Iterator[bytes]:
            for message in messages:
                hasher.update(message)
                self._metrics.written_bytes.labels("grpc").inc(len(message))
                yield message

        length = self._store.write(key, header.offset_bytes, pieces(), header.payload_bytes)
        if hasher.intdigest() != header.payload_xxh3:
            raise BlockCorrupt(f"block {key}: the payload at {header.offset_bytes} does not match its checksum")
        return worker_pb2.WriteReply(length_bytes=length)


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """
    Args:
        about: the parts of ``StatsReply`` that never change.
        access: None: to all callers, in tests.
    """

    def __init__(
        self,
        control: Control,
        store: BlockStore,
        leases: Leases,
        about: worker_pb2.StatsReply,
        access: Access | None = None,
    ) -> None:
        self._access = access
        self._control = control
        self._store = store
        self._leases = leases
        self._about = about

    def Control(  # noqa: N802
        self, request: worker_pb2.ControlRequest, context: grpc.ServicerContext
    ) -> worker_pb2.ControlReply:
        try:
            if self._access is not None:
                self._access.control(caller(), request)
            return self._control.handle(request, "grpc").reply
        except HearthError as error:
            _abort(context, error)

    def Stats(  # noqa: N802
        self, request: worker_pb2.StatsRequest, context: grpc.ServicerContext
    ) -> worker_pb2.StatsReply:
        reply = worker_pb2.StatsReply(
            disks=disk_messages(self._store),
            blocks=self._store.catalog.blocks,
            working_blocks=self._store.working_blocks,
            leases=len(self._leases),
        )
        reply.MergeFrom(self._about)
        return reply

    def ListBlocks(  # noqa: N802
        self, request: worker_pb2.ListBlocksRequest, context: grpc.ServicerContext
    ) -> Iterator[master_pb2.BlockReport]:
        if request.pages:
            for page in filter(
                lambda page: page.blocks, pages(self._store.reports())
            ):  # an empty one looks like a block
                yield master_pb2.BlockReport(page=map(report_message, page.blocks))
            return
        for report in self._store.reports():
            yield report_message(report)


def _abort(context: grpc.ServicerContext, error: HearthError) -> NoReturn:
    context.set_trailing_metadata(to_trailing_metadata(error))
    context.abort(error.code, str(error))
    raise error


class CallGuard(grpc.ServerInterceptor):
    """Around each call: binds the caller's trace id to the lines logged for it, and ends it after ``limit_s`` when the
    caller set no deadline or a later one, so that nobody holds a thread for ever."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        trace_id = next((value for key, value in handler_call_details.invocation_metadata if key == TRACE_KEY), None)
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._around_stream(handler.unary_stream, trace_id), *coders)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._around(handler.stream_unary, trace_id), *coders)
        return grpc.unary_unary_rpc_method_handler(self._around(handler.unary_unary, trace_id), *coders)

    def _around(self, method: Callable[[Any, Any], Any], trace_id: str | None) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Any:
            with trace(trace_id), self._limit(context):
                return method(request, context)

        return call

    def _around_stream(
        self, method: Callable[[Any, Any], Iterator[Any]], trace_id: str | None
    ) -> Callable[[Any, Any], Iterator[Any]]:
        def call(request: Any, context: Any) -> Iterator[Any]:
            with trace(trace_id), self._limit(context):
                yield from method(request, context)

        return call

    @contextmanager
    def _limit(self, context: grpc.ServicerContext) -> Iterator[None]:
        remaining_s = context.time_remaining()  # infinite without a deadline
        if remaining_s is not None and remaining_s <= self._limit_s:
            yield
            return
        timer = threading.Timer(self._limit_s, context.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class GrpcDoor:
    """The server: its port is taken in ``__init__``, it serves after ``start``.

    Attributes:
        port: the real one, also where port 0 was asked for.

    Args:
        credentials: None: nobody is asked for any, in tests of what lies behind the gate.
        refused: gets the kind of error of each call that was refused.

    Raises:
        Conflict: the port is in use.
        SettingsError: the address is not ours.
    """

    def __init__(
        self,
        listen: str,
        threads: int,
        call_limit_s: float,
        credentials: Credentials | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        credentials = credentials or Unchecked()
        _probe(listen)
        # Many writers at once are made to wait, not refused; but not more than this.
        self._started = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grpc")
        self._server = grpc.server(
            self._pool,
            options=data_stream.SERVER_OPTIONS,
            maximum_concurrent_rpcs=MAX_CALLS,
            interceptors=[CallGuard(call_limit_s), Gate(credentials, refused)],
        )
        try:
            self.port = credentials.listen(self._server, listen)
        except RuntimeError as error:
            raise Conflict(f"cannot listen on {listen}: {error}") from None

    def start(self, service: WorkerService, streams: BlockStreams) -> None:
        worker_pb2_grpc.add_WorkerServicer_to_server(service, self._server)
        self._server.add_generic_rpc_handlers((data_stream.handlers(streams.read, streams.write),))
        self._server.start()
        self._started = True

    def stop(self, grace_s: float) -> None:
        if not self._started:
            self._server.start()  # gRPC gives back the port of a server that never started only so
        self._server.stop(grace_s).wait(grace_s + 2)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _probe(listen: str) -> None:
    """gRPC only says "failed to bind"; the system says why."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise SettingsError(f"cannot listen on {listen}: {error.strerror}: give an address of this host") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"{listen} is in use: stop the program there, or give another --listen") from None
        raise SettingsError(f"cannot listen on {listen}: {error.strerror}") from None
