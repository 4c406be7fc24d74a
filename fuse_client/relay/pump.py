"""Moves messages between the kernel and the daemon: one thread for each direction.

Laws:

- Notifications do not pass here: the daemon writes them to its own duplicate of the device, so that one that has to
  wait in the kernel keeps no reply waiting, and the daemon knows when the kernel took it.
- An OPEN is counted when its reply goes out and given back when RELEASE comes in, or when the kernel did not take the
  reply. The kernel leaves a mode before it sends RELEASE, so ours never runs ahead of its.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable

from . import channel, wire
from .modes import Backing, Modes

BACKING_OPEN, BACKING_CLOSE = 0x4010E501, 0x4004E502  # ioctls of /dev/fuse
REQUEST_MAX = (1 << 20) + (1 << 16)
REPLY_MAX = 4 << 20
MAX_OFFERS = 4096

Say = Callable[[str], object]


class Pump:
    """
    Args:
        device: descriptor of /dev/fuse, mounted, INIT not read yet.
        end: our end of the channel.
        on_serving: called once the kernel took the INIT reply; whether it has passthrough.
        on_end: called once the kernel has no more requests: unmounted or aborted.
        say: one line for the log.
    """

    def __init__(
        self,
        device: int,
        end: socket.socket,
        *,
        max_background: int,
        passthrough: bool,
        on_serving: Callable[[bool], object],
        on_end: Callable[[], object],
        say: Say,
    ) -> None:
        self._device = device
        self._end = end
        self._max_background = max_background
        self._passthrough = passthrough
        self._on_serving = on_serving
        self._on_end = on_end
        self._say = say
        self._lock = threading.Lock()  # modes and pending; held for no I/O but the ioctls
        self._modes = Modes(self._register, self._unregister)
        self._pending: dict[int, tuple[wire.Request, int]] = {}  # OPEN, CREATE: request and its open flags
        self._offers: dict[int, Backing] = {}  # by handle; the reply thread's own
        self._init = b""
        self._told: set[int] = set()

    def start(self) -> None:
        for loop in (self._requests, self._replies):
            threading.Thread(target=loop, name=loop.__name__.strip("_"), daemon=True).start()

    # -- kernel to daemon

    def _requests(self) -> None:
        buffer = bytearray(REQUEST_MAX)
        view = memoryview(buffer)
        try:
            while True:
                try:
                    size = os.readv(self._device, [buffer])
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                        continue
                    break  # ENODEV: unmounted; ECONNABORTED: aborted
                if not size:
                    break
                if self._note(view[:size]):
                    channel.send_all(self._end, view[:size])
        except OSError as error:
            self._say(f"the daemon takes no more requests: {error.strerror}")
        self._on_end()

    def _note(self, message: memoryview) -> bool:
        """Whether the daemon is to be asked."""
        asked = wire.request(message)
        if asked.opcode in (wire.OPEN, wire.CREATE):
            with self._lock:
                self._pending[asked.unique] = asked, wire.open_flags(message)
        elif asked.opcode == wire.RELEASE:
            with self._lock:
                self._modes.closed(asked.nodeid)
        elif asked.opcode == wire.STATFS:
            wire.say_inode(message)
        elif asked.opcode == wire.INIT:
            self._init = bytes(message)
            self._passthrough = self._passthrough and wire.offers_passthrough(self._init)
        elif asked.opcode == wire.GETXATTR and wire.asks_for_capability(message):
            self._write(wire.refusal(asked.unique, errno.ENODATA))  # files have none: the daemon refuses to set them
            return False
        return True

    # -- daemon to kernel

    def _replies(self) -> None:
        buffer = bytearray(REPLY_MAX)
        view = memoryview(buffer)
        ancillary_bytes = socket.CMSG_SPACE(4)
        with contextlib.suppress(OSError):  # the daemon is gone: whoever supervises it knows
            while True:
                size, ancillary, _, _ = self._end.recvmsg_into([buffer], ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
                if not size:
                    return
                said = wire.reply(view)
                if said.unique == 0 and said.error in (channel.OFFER, channel.OFFER_WRITES):
                    writes = said.error == channel.OFFER_WRITES
                    self._take_offer(channel.offered_handle(view), channel.descriptors(ancillary), writes=writes)
                else:
                    self._reply(said, view[:size])

    def _take_offer(self, handle: int, fds: list[int], *, writes: bool) -> None:
        if fds:
            self._offers[handle] = Backing(fds[0], writes)
        while len(self._offers) > MAX_OFFERS:
            os.close(self._offers.pop(next(iter(self._offers))).fd)

    def _reply(self, said: wire.Reply, message: memoryview) -> None:
        if self._init and said.unique == wire.request(self._init).unique:
            self._reply_to_init(said, message)
            return
        pending = self._pending.pop(said.unique, None) if self._pending else None
        if pending is None or said.error:
            self._write(message)
            return
        asked, flags = pending
        opened = wire.opened(asked, message)
        backing = self._offers.pop(opened.handle, None)
        try:
            with self._lock:
                choice = self._modes.open(
                    opened.nodeid,
                    opened.flags,
                    writes=flags & os.O_ACCMODE != os.O_RDONLY or bool(flags & os.O_TRUNC),
                    backing=backing,
                )
        finally:
            if backing is not None:
                os.close(backing.fd)
        self._tell_refusal()
        if choice.flags != opened.flags:
            wire.set_opened(asked, message, opened.handle, choice.flags, choice.backing_id)
        if not self._write(message):
            with self._lock:
                self._modes.closed(opened.nodeid)

    def _reply_to_init(self, said: wire.Reply, message: memoryview) -> None:
        init, self._init = self._init, b""
        out = bytes(message)
        if not said.error:
            out = wire.edit_init(init, out, self._max_background, passthrough=self._passthrough)
        self._write(out)
        if not said.error:
            self._on_serving(self._passthrough)

    def _write(self, message: bytes | memoryview) -> bool:
        """Whether the kernel took it: ENOENT says that nobody waits for this reply any more."""
        try:
            os.write(self._device, message)
            return True
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTCONN):
                self._say(f"the kernel refuses a reply of {len(message)} bytes: {error.strerror}")
            return False

    # -- backing files

    def _register(self, fd: int) -> int:
        argument = struct.pack("=iIQ", fd, 0, 0)
        backing_id: int = fcntl.ioctl(self._device, BACKING_OPEN, bytearray(argument), True)
        return backing_id

    def _unregister(self, backing_id: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._device, BACKING_CLOSE, struct.pack("=I", backing_id))

    def _tell_refusal(self) -> None:
        error, self._modes.refused = self._modes.refused, None
        if error is not None and error.errno is not None and error.errno not in self._told:
            self._told.add(error.errno)
            self._say(f"no passthrough for some files, they are read through the daemon: {error.strerror}")
