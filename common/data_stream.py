"""The two streams that carry block bytes between nodes: raw bytes as messages, so that no payload is copied through
protobuf. The layout of a call is in ``proto/worker.proto``; this module is its only implementation, for both sides.

A gRPC message must be exact ``bytes``: a handler that returned a memoryview would hang the call until its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ..proto import worker_pb2 as pb
from . import checksums
from .errors import BlockCorrupt, HearthError, InvalidArgument, from_rpc_error, to_trailing_metadata
from .sink import Into, Sink

SERVICE = "hearthfs.v1.Data"
READ = f"/{SERVICE}/Read"
WRITE = f"/{SERVICE}/Write"
MESSAGE_BYTES = 4 << 20
MAX_MESSAGE_BYTES = MESSAGE_BYTES + (1 << 16)

# Fresh connections are cheap; a peer that is gone must be noticed in seconds (reports R170, R174).
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # in fact the least time that one attempt to connect is given
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

ReadHandler = Callable[[pb.ReadRequest], tuple[pb.ReadHeader, Iterator[bytes]]]
WriteHandler = Callable[[pb.WriteHeader, Iterator[bytes]], pb.WriteReply]


def _same(data: bytes) -> bytes:
    return data


def handlers(read: ReadHandler, write: WriteHandler) -> grpc.GenericRpcHandler:
    """The server side. The handlers raise ``HearthError``; anything else is a bug and becomes INTERNAL."""

    def serve_read(request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            header, payload = read(request)
            yield header.SerializeToString()
            yield from payload
        except HearthError as error:
            _abort(context, error)

    def serve_write(messages: Iterator[bytes], context: grpc.ServicerContext) -> pb.WriteReply:
        try:
            return write(_header(messages), messages)
        except HearthError as error:
            _abort(context, error)
            raise

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Read": grpc.unary_stream_rpc_method_handler(serve_read, pb.ReadRequest.FromString, _same),
            "Write": grpc.stream_unary_rpc_method_handler(serve_write, _same, pb.WriteReply.SerializeToString),
        },
    )


def _header(messages: Iterator[bytes]) -> pb.WriteHeader:
    """Raises: InvalidArgument: the first message is none."""
    try:
        return pb.WriteHeader.FromString(next(messages))
    except (StopIteration, DecodeError):
        raise InvalidArgument("a write begins with a WriteHeader") from None


def _abort(context: grpc.ServicerContext, error: HearthError) -> None:
    context.set_trailing_metadata(to_trailing_metadata(error))
    context.abort(error.code, str(error))


def verifier(header: pb.ReadHeader, size: int, block_length: int, digest: int, what: str) -> checksums.Verifier:
    """For the payload behind ``header``.

    Raises:
        BlockCorrupt: it is not what was asked for.
    """
    if header.block_length_bytes != block_length or header.payload_bytes != size:
        raise BlockCorrupt(
            f"{what}: is {header.block_length_bytes} bytes long, not {block_length}, "
            f"and sends {header.payload_bytes} of the {size} asked for"
        )
    return checksums.Verifier(header.checksums, block_length, digest, what)


def read(
    channel: grpc.Channel,
    request: pb.ReadRequest,
    size: int,
    sink: Sink,
    *,
    block_length: int,
    digest: int,
    timeout_s: float,
    what: str,
    metadata: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """Hands the ``size`` bytes that ``request`` asks for to ``sink``, each chunk verified before, and returns the
    block's packed checksums. The range begins on a chunk boundary, and ends on one or at the block's end.

    Raises:
        BlockCorrupt, BlockMissing, Unavailable, DeadlineExceeded: what the sink got is not to be used.
    """
    call = channel.unary_stream(READ, pb.ReadRequest.SerializeToString, _same)(
        request, timeout=timeout_s, metadata=metadata
    )
    try:
        header = pb.ReadHeader.FromString(next(call))
        check = verifier(header, size, block_length, digest, what).check
        at, end = request.offset_bytes, request.offset_bytes + size
        for message in call:
            if at + len(message) > end:
                raise BlockCorrupt(f"{what}: sends more than the {size} bytes it announced")
            with memoryview(message) as data:
                for begin in range(0, len(data), checksums.CHUNK_BYTES):
                    part = data[begin : begin + checksums.CHUNK_BYTES]
                    check(at + begin, part)
                    room = sink.room(at + begin, len(part))
                    room[:] = part
                    sink.done(at + begin, room)
            at += len(message)
        if at != end:
            raise BlockCorrupt(f"{what}: stream ended after {at - request.offset_bytes} of {size} bytes")
        return header.checksums
    except StopIteration:
        raise BlockCorrupt(f"{what}: stream ended before its header") from None
    except grpc.RpcError as error:
        raise from_rpc_error(error, what) from None
    finally:
        call.cancel()


def read_into(
    channel: grpc.Channel,
    key: tuple[int, int],
    offset: int,
    into: memoryview,
    *,
    block_length: int,
    digest: int,
    timeout_s: float,
    what: str,
    metadata: tuple[tuple[str, str], ...] = (),
    token: bytes = b"",
    lease_id: int = 0,
) -> None:
    """``read`` into the caller's memory.

    Raises:
        BlockCorrupt, BlockMissing, Unavailable, DeadlineExceeded: ``into`` then holds nothing to be used.
    """
    request = pb.ReadRequest(
        block=key[0],
        generation=key[1],
        offset_bytes=offset,
        length_bytes=len(into),
        token=token,
        lease_id=lease_id,
    )
    read(
        channel,
        request,
        len(into),
        Into(into, offset),
        block_length=block_length,
        digest=digest,
        timeout_s=timeout_s,
        what=what,
        metadata=metadata,
    )


def write_from(
    channel: grpc.Channel,
    key: tuple[int, int],
    offset: int,
    data: memoryview,
    *,
    timeout_s: float,
    what: str,
    metadata: tuple[tuple[str, str], ...] = (),
    token: bytes = b"",
) -> int:
    """Writes ``data`` at ``offset`` of a working block and returns the block's length after it.

    Raises:
        NoSpace, BlockCorrupt, Unavailable, DeadlineExceeded.
    """
    header = pb.WriteHeader(
        block=key[0],
        generation=key[1],
        offset_bytes=offset,
        payload_bytes=len(data),
        payload_xxh3=checksums.checksum(data),
        token=token,
    )
    stub: Any = channel.stream_unary(WRITE, _same, pb.WriteReply.FromString)
    try:
        reply: pb.WriteReply = stub(_messages(header, data), timeout=timeout_s, metadata=metadata)
        return reply.length_bytes
    except grpc.RpcError as error:
        raise from_rpc_error(error, what) from None


def _messages(header: pb.WriteHeader, data: memoryview) -> Iterable[bytes]:
    yield header.SerializeToString()
    for at in range(0, len(data), MESSAGE_BYTES):
        yield bytes(data[at : at + MESSAGE_BYTES])
