"""The relay process: ``python -m hearthfs.fuse_client.relay COMMAND...``. COMMAND is the daemon; it mounts and hands
the device over. Standard library only: what the mount depends on is small."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import channel
from .pump import Pump

OOM_SCORE = -900
GRACE_S = 15.0
"""A daemon that was told that the mount is gone ends within this time, or is killed."""
_OOM_FILE = Path("/proc/self/oom_score_adj")


def say(text: str) -> None:
    print(f"relay: {text}", file=sys.stderr, flush=True)


def _protect() -> str:
    """The kernel should end anybody else first. Returns the score before, for the daemon."""
    before = "0"
    try:
        before = _OOM_FILE.read_text().strip()
        _OOM_FILE.write_text(str(OOM_SCORE))
    except OSError as error:
        say(f"the kernel may end the relay when memory is short: {error.strerror}")
    return before


def _start_daemon(command: list[str], oom_score: str) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """The daemon, our end of the channel, our end of the control pair."""
    ours, theirs = channel.pair()
    control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, their_control:
        environment = {
            **os.environ,
            channel.CHANNEL_VARIABLE: str(theirs.fileno()),
            channel.CONTROL_VARIABLE: str(their_control.fileno()),
            channel.OOM_VARIABLE: oom_score,
        }
        pass_fds = [theirs.fileno(), their_control.fileno()]
        return subprocess.Popen(command, pass_fds=pass_fds, env=environment), ours, control


def _supervise(process: subprocess.Popen[bytes], ended: threading.Event) -> int:
    """Waits for the daemon's end; after the mount's end only so long."""
    pidfd = os.pidfd_open(process.pid)
    deadline = None
    while not select.select([pidfd], [], [], 0.5)[0]:
        if ended.is_set():
            deadline = deadline or time.monotonic() + GRACE_S
            if time.monotonic() > deadline:
                say("the daemon does not end; killing it")
                process.kill()
    return process.wait()


def main(command: list[str]) -> int:
    sys.setswitchinterval(
        0.0002
    )  # both threads wait for the kernel most of the time; neither should wait for the other
    process, end, control = _start_daemon(command, _protect())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: process.send_signal(received))
    ended = threading.Event()
    try:
        wanted, device = channel.receive_control(control)
    except EOFError:
        return _status(process.wait())  # it could not mount, and said why
    if device is None:
        process.kill()
        return _status(process.wait())

    def on_end() -> None:
        ended.set()
        channel.send_control(control, {"state": "ended"})

    pump = Pump(
        device,
        end,
        max_background=wanted["max_background"],
        passthrough=wanted["passthrough"],
        on_serving=lambda passthrough: channel.send_control(control, {"state": "serving", "passthrough": passthrough}),
        on_end=on_end,
        say=say,
    )
    pump.start()
    return _status(_supervise(process, ended))


def _status(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


if __name__ == "__main__":
    sys.stdout.flush()
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # the threads may sit in the kernel
