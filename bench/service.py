"""Other people's daemons as child processes: started, awaited by what they serve, ended with all they started."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PORTS = range(20_000, 32_000)  # below those that outgoing connections take; some programs add 10,000 for a second one
_given: set[int] = set()


class NotStartedError(Exception):
    """A rival's daemon did not come up; its last words are the text."""


def free_port() -> int:
    """A loopback port that nobody uses now and that this process has not handed out before."""
    while True:
        port = random.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


def answers(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes_of_group(group: int) -> list[int]:
    """Ids of the processes in a process group, as of now."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
    return found


def unmount(place: Path) -> None:
    """Takes whatever is mounted there away at once, if anything is."""
    for _ in range(4):
        if not os.path.ismount(place) and not _dead(place):
            return
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, timeout=30, check=False)


def _dead(place: Path) -> bool:
    """A mount whose daemon is gone is no mount to ``ismount``."""
    try:
        os.stat(place)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class Service:
    """One command in a process group of its own. The kernel ends it should we be killed.

    Args:
        name: for messages.
        log: gets stdout and stderr.
        mountpoint: taken away when the service ends.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        mountpoint: Path | None = None,
    ) -> None:
        self.name, self.command, self.log, self.mountpoint = name, list(command), log, mountpoint
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(self, ready: Callable[[], bool], timeout_s: float = 40.0) -> None:
        """Raises: NotStartedError."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        tie = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        if self.mountpoint:
            self.mountpoint.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*tie, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                self.close()
                raise NotStartedError(
                    f"{self.name} did not come up within {timeout_s:g} s: {''.join(last) or 'no output'}"
                )
            time.sleep(0.1)

    def start_mount(self, timeout_s: float = 40.0) -> None:
        """Ready when something is mounted.

        Raises:
            NotStartedError.
        """
        place = self.mountpoint
        assert place is not None, f"{self.name} mounts nothing"
        self.start(lambda: os.path.ismount(place), timeout_s)

    def _left(self, group: int) -> bool:
        """Whether any of its processes is still there; reaps the first."""
        return self._process is not None and (self._process.poll() is None or bool(processes_of_group(group)))

    def close(self, grace_s: float = 3.0) -> None:
        """Ends it and all it started; what it keeps is thrown away, so it need not be patient. Safe to call twice."""
        if self.mountpoint:
            unmount(self.mountpoint)
        if self._process is None:
            return
        group = self._process.pid
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
            deadline = time.monotonic() + grace_s
            while self._left(group) and time.monotonic() < deadline:
                time.sleep(0.05)
            if not self._left(group):
                break
        if self.mountpoint:
            unmount(self.mountpoint)
        self._process = None
