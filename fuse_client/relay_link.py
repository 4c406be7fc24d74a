"""The daemon's side of the relay: hands the mounted device over, offers backing files, hears of the mount's end."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import trio

from ..common.errors import HearthError
from ..common.telemetry import get_logger
from .relay import channel
from .settings import MountSettings

log = get_logger(__name__)

START_S = 10.0
PASSTHROUGH_KERNEL = (6, 9)
FINE_TIMES_KERNEL = (6, 13)
"""From here on a file's time is a new one for each change after somebody looked at it; before, two changes within
a clock tick (4 ms) may have the same."""
MAX_READ_BYTES = 128 << 10
"""Behind a relay. A reply is one packet, packets need contiguous memory, and a reply for which there is none is lost:
small ones always find it."""


def enter(settings: MountSettings) -> None:
    """Becomes the relay, which starts this command once more behind it, unless we are that one already, or a relay is
    not wanted, of no use (no block is on a node without a worker), or not to be had here: then returns."""
    if settings.relay == "off" or not settings.worker_socket or channel.CHANNEL_VARIABLE in os.environ:
        return
    reason = _why_not(settings, os.uname().release)
    if reason:
        log.warning("mount-without-relay", reason=reason)
        return
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "hearthfs.fuse_client.relay", *sys.orig_argv]
    os.execv(sys.executable, command)  # noqa: S606  # our own interpreter, no shell wanted


def _why_not(settings: MountSettings, release: str) -> str:
    """Empty when there may be a relay."""
    if os.geteuid() != 0:
        return "it needs root"
    if settings.passthrough != "off" and _kernel(release) < PASSTHROUGH_KERNEL:
        return f"kernel {release} has no FUSE passthrough (6.9 has)"
    try:
        for end in channel.pair():
            end.close()
    except OSError as error:
        return f"socket buffers cannot be raised (CAP_NET_ADMIN): {error.strerror}"
    return ""


def has_fine_times() -> bool:
    return _kernel(os.uname().release) >= FINE_TIMES_KERNEL


def _kernel(release: str) -> tuple[int, int]:
    """
    >>> _kernel("6.18.44-fc"), _kernel("odd")
    ((6, 18), (0, 0))
    """
    parts = release.split(".")
    try:
        return int(parts[0]), int("".join(digit for digit in parts[1] if digit.isdigit()))
    except (ValueError, IndexError):
        return 0, 0


class RelayLink:
    """``number`` is the descriptor that pyfuse3.init gets."""

    def __init__(self, number: int, control: socket.socket) -> None:
        self.number = number
        self._offers = socket.socket(fileno=os.dup(number))
        self._control = control
        self.serving = trio.Event()
        self.ended = trio.Event()  # the kernel has no more requests
        self.lost = False  # the relay died
        self.passthrough = False  # after ``serving``

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> RelayLink | None:
        """None when no relay started us."""
        if channel.CHANNEL_VARIABLE not in environment:
            return None
        number, control = int(environment.pop(channel.CHANNEL_VARIABLE)), int(environment.pop(channel.CONTROL_VARIABLE))
        for fd in (number, control):
            os.set_inheritable(fd, False)
        _become_killable(environment)
        return cls(number, socket.socket(fileno=control))

    def hand_over(self, device: int, *, max_background: int, passthrough: bool) -> None:
        """The relay moves messages from now on. We keep our duplicate of the device for notifications.

        Raises:
            HearthError: the relay died.
        """
        wanted = {"max_background": max_background, "passthrough": passthrough}
        try:
            channel.send_control(self._control, wanted, device)
        except OSError as error:
            raise HearthError(f"the relay is gone: {error.strerror}") from None

    async def listen(self) -> None:
        """Until the relay says that the mount ended, or is gone itself."""
        while True:
            await trio.lowlevel.wait_readable(self._control)
            try:
                said, _ = channel.receive_control(self._control)
            except EOFError:
                self.lost = True
                log.error("relay-lost")
                self.ended.set()
                return
            if said["state"] == "serving":
                self.passthrough = said["passthrough"]
                self.serving.set()
            elif said["state"] == "ended":
                self.ended.set()
                return

    async def run(self) -> None:
        """Waits for the INIT exchange, which the relay watches.

        Raises HearthError: no INIT exchange in time."""
        with trio.move_on_after(START_S):
            await self.serving.wait()
            return
        raise HearthError(f"no INIT exchange between kernel and libfuse within {START_S:g} s")

    def offer(self, handle: int, backing_fd: int, *, writes: bool) -> bool:
        """The file with the bytes of what the reply to an OPEN, sent after this, calls ``handle``.

        Args:
            writes: the kernel writes there too; else a handle that may write asks us.
        """
        try:
            channel.send_offer(self._offers, handle, backing_fd, writes=writes)
        except OSError as error:
            log.warning("backing-not-offered", reason=error.strerror)
            return False
        return True

    def close(self) -> None:
        self._offers.close()
        self._control.close()


def _become_killable(environment: Mapping[str, str]) -> None:
    """The relay is protected from the kernel's OOM killer, its daemon is not."""
    try:
        Path("/proc/self/oom_score_adj").write_text(environment.get(channel.OOM_VARIABLE, "0"))
    except OSError as error:
        log.warning("oom-score-not-reset", reason=error.strerror)
