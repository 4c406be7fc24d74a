"""The INIT exchange without a relay, by way of us: libfuse starts on one end of a socket pair, we pass on INIT and edit
the reply (``relay.wire.edit_init``), then the ``/dev/fuse`` descriptor takes the socket's place under the same number.
"""

from __future__ import annotations

import errno
import os
import socket

import trio

from ..common.errors import HearthError
from .relay import wire


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
            length, opcode, _, _ = wire.request(request)
            if opcode != wire.INIT or length != len(request):
                raise HearthError(f"the kernel's first request is opcode {opcode}, not INIT")
            self._ours.send(request)
            await trio.lowlevel.wait_readable(self._ours)
            reply = self._ours.recv(1 << 16)
            if error := wire.reply(reply).error:
                raise HearthError(f"libfuse refuses this kernel's FUSE: {errno.errorcode.get(-error, error)}")
            os.dup2(self._device, self.number, inheritable=False)
            trio.lowlevel.notify_closing(self.number)
            os.write(self._device, wire.edit_init(request, reply, self._max_background))
        if scope.cancelled_caught:
            raise HearthError(f"no INIT exchange between kernel and libfuse within {timeout_s:g} s")
