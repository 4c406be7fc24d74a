"""Messages between relay and daemon, beside those of FUSE.

The *channel* carries FUSE messages both ways, one per packet; libfuse has its other end. On it the daemon also sends
offers: "the bytes of what this handle opens are in this file". An offer goes out before libfuse writes the reply to the
OPEN, so the relay finds it first. It looks like a notification with a code that the kernel does not have.

The *control* pair carries JSON, with at most one descriptor.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import socket
import struct
import time
from typing import Any

CHANNEL_VARIABLE = "HEARTH_RELAY_CHANNEL"
CONTROL_VARIABLE = "HEARTH_RELAY_CONTROL"
OOM_VARIABLE = "HEARTH_RELAY_OOM_SCORE"

OFFER, OFFER_WRITES = 0x4845, 0x4846  # no notifications of the kernel's
_OFFER = struct.Struct("=IiQQ")  # length, OFFER or OFFER_WRITES, 0, handle

SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER_BYTES = 64 << 20
"""libfuse's end does not block, and a reply that finds no room is lost: there must be room for a reply to every request
in flight. It is a limit, not memory that is taken."""

RETRY_S = 0.001
MAX_CONTROL_BYTES = 4096


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends with buffers large enough for FUSE.

    Raises:
        OSError: EPERM without CAP_NET_ADMIN.
    """
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
            end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    except OSError:
        for end in ends:
            end.close()
        raise
    return ends


def send_all(end: socket.socket, message: bytes | memoryview) -> None:
    """One packet; waits while the kernel has no memory or no room for it.

    Raises:
        OSError: the other end is gone.
    """
    while True:
        try:
            end.send(message)
            return
        except OSError as error:
            if error.errno not in (errno.ENOBUFS, errno.EAGAIN, errno.EINTR, errno.ENOMEM):
                raise
            time.sleep(RETRY_S)


def send_offer(end: socket.socket, handle: int, backing_fd: int, *, writes: bool) -> None:
    """Raises OSError: not sent; the handle is one that asks the daemon then."""
    kind = OFFER_WRITES if writes else OFFER
    socket.send_fds(end, [_OFFER.pack(_OFFER.size, kind, 0, handle)], [backing_fd])


def offered_handle(message: bytearray | memoryview) -> int:
    handle: int = _OFFER.unpack_from(message)[3]
    return handle


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return list(found)


def send_control(end: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    socket.send_fds(end, [json.dumps(message).encode()], [] if fd is None else [fd])


def receive_control(end: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Raises EOFError: the other side is gone."""
    with contextlib.suppress(ConnectionError):
        data, fds, _, _ = socket.recv_fds(end, MAX_CONTROL_BYTES, 1)
        for fd in fds:
            os.set_inheritable(fd, False)
        if data:
            return json.loads(data), fds[0] if fds else None
    raise EOFError("the other side is gone")
