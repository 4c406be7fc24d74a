"""The INIT exchange, by way of us: libfuse starts on one end of a socket pair, we pass on INIT and edit the reply, then
the ``/dev/fuse`` descriptor takes the socket's place under the same number. What libfuse 3.14 cannot be told, the reply
says so:

- ``max_background`` (the kernel's default is 12) and PARALLEL_DIROPS (lookups in one directory side by side);
- no AUTO_INVAL_DATA but EXPLICIT_INVAL_DATA: a new mtime does not throw away the pages that a writer left in the page
  cache; which pages are current is decided by content version at open (keep_cache);
- no HANDLE_KILLPRIV: the kernel clears suid and sgid by SETATTR, handlers need not.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

import trio

from ..common.errors import HearthError

INIT = 26
AUTO_INVAL_DATA = 1 << 12
PARALLEL_DIROPS = 1 << 18
HANDLE_KILLPRIV = 1 << 19
EXPLICIT_INVAL_DATA = 1 << 25

_REQUEST_HEADER = struct.Struct("<IIQ")  # length, opcode, unique; 40 bytes in all
_REQUEST_FLAGS_AT = 40 + 12
_REPLY_ERROR_AT = 4
_REPLY_FLAGS_AT = 16 + 12
_REPLY_BACKGROUND_AT = 16 + 16


def edit_reply(request: bytes, reply: bytes, max_background: int) -> bytes:
    """The INIT reply as the kernel gets it."""
    out = bytearray(reply)
    (offered,) = struct.unpack_from("<I", request, _REQUEST_FLAGS_AT)
    (flags,) = struct.unpack_from("<I", out, _REPLY_FLAGS_AT)
    if offered & EXPLICIT_INVAL_DATA:
        flags = flags & ~AUTO_INVAL_DATA | EXPLICIT_INVAL_DATA
    flags = flags & ~HANDLE_KILLPRIV | offered & PARALLEL_DIROPS
    struct.pack_into("<I", out, _REPLY_FLAGS_AT, flags)
    struct.pack_into("<HH", out, _REPLY_BACKGROUND_AT, max_background, max_background * 3 // 4)
    return bytes(out)


class Handshake:
    """``number`` is the descriptor that pyfuse3.init gets; after ``run`` it is a duplicate of ``device``."""

    def __init__(self, device: int, max_background: int) -> None:
        self._device = device
        self._max_background = max_background
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.number = theirs.detach()

    async def run(self, timeout_s: float = 10.0) -> None:
        """Beside ``pyfuse3.main``, which waits for requests on ``number``. Of its two first tasks one waits for the
        socket and ends when that is closed; the other goes on with the kernel.

        Raises:
            HearthError: kernel or libfuse refuse each other.
        """
        with self._ours, trio.move_on_after(timeout_s) as scope:
            await trio.lowlevel.wait_readable(self._device)
            request = os.read(self._device, 1 << 20 | 1 << 16)
            length, opcode, _ = _REQUEST_HEADER.unpack_from(request)
            if opcode != INIT or length != len(request):
                raise HearthError(f"the kernel's first request is opcode {opcode}, not INIT")
            self._ours.send(request)
            await trio.lowlevel.wait_readable(self._ours)
            reply = self._ours.recv(1 << 16)
            if error := struct.unpack_from("<i", reply, _REPLY_ERROR_AT)[0]:
                raise HearthError(f"libfuse refuses this kernel's FUSE: {errno.errorcode.get(-error, error)}")
            os.dup2(self._device, self.number, inheritable=False)
            trio.lowlevel.notify_closing(self.number)
            os.write(self._device, edit_reply(request, reply, self._max_background))
        if scope.cancelled_caught:
            raise HearthError(f"no INIT exchange between kernel and libfuse within {timeout_s:g} s")
