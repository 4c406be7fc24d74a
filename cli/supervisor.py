"""Daemons as child processes: started one after the other, each ready when it says so, all ended with their parent.

Readiness is sd_notify's ``READY=1`` (common.notify), so nothing is guessed from ports or log lines. A daemon that is
``tied`` holds the read end of a pipe as its standard input and asks the kernel for a SIGTERM when the other end closes:
it stops even when its parent was killed with -9.

Invariant: a child that ended stays a zombie until ``start`` or ``close`` reaps it, so its pid and process group cannot
belong to anybody else when they are signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from ..common.errors import DeadlineExceeded, HearthError, Unavailable

TIE_VARIABLE = "HEARTH_STOP_WITH_PARENT"
ERROR_PREFIX = "hearth: "
"""Starts the one line that a daemon writes to stderr when it cannot start."""


def hearth_command(*arguments: str) -> list[str]:
    """The command line that runs ``hearth`` with this interpreter, wherever the script is installed."""
    return [sys.executable, "-P", "-m", "hearthfs.cli.main", *arguments]


def stop_with_parent() -> None:
    """Called in a daemon: if its parent tied it, SIGTERM when the parent is gone."""
    if not os.environ.pop(TIE_VARIABLE, ""):
        return
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # gone before we asked to be told
        os.kill(os.getpid(), signal.SIGTERM)


class Daemon:
    """One child process in a session of its own.

    Args:
        name: for messages.
        command: argv.
        log: file that gets stdout and stderr, appended.
        environment: variables on top of this process's own.
        tied: end it when this process ends; False for one that lives on.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        tied: bool = True,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._environment = dict(environment or {})
        self._tied = tied
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1

    def start(self, ready_s: float = 30.0) -> None:
        """Starts the process and waits until it is ready.

        Raises:
            Unavailable: it ended before; the text is its own last word.
            DeadlineExceeded: it was not ready in time and was killed.
        """
        if self.running:
            raise Unavailable(f"{self.name} runs already, pid {self.pid}")
        self._reap()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ready:
            address = f"hearth-{os.getpid()}-{secrets.token_hex(8)}"
            ready.bind("\0" + address)
            self._spawn("@" + address)
            try:
                self._wait_ready(ready, time.monotonic() + ready_s, ready_s)
            except HearthError:
                self.kill()
                self._reap()
                raise

    def _spawn(self, notify_socket: str) -> None:
        environment = {**os.environ, **self._environment, "NOTIFY_SOCKET": notify_socket}
        if self._tied:
            environment[TIE_VARIABLE] = "1"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE if self._tied else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self._process.pid)

    def _wait_ready(self, ready: socket.socket, deadline: float, ready_s: float) -> None:
        poller = select.poll()
        poller.register(ready, select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(f"{self.name} was not ready after {ready_s:g} s; its log is {self.log}")
            events = dict(poller.poll(left * 1000))
            if ready.fileno() in events:
                if b"READY=1" in ready.recv(4096).split(b"\n"):
                    return
            elif self._pidfd in events:
                raise Unavailable(self._last_word())

    def _last_word(self) -> str:
        """The error line of a process that ended before it was ready."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            lines = [line for line in log.read()[-65536:].decode(errors="replace").splitlines() if line.strip()]
        for line in reversed(lines):
            if line.startswith(ERROR_PREFIX):
                return f"{self.name}: {line.removeprefix(ERROR_PREFIX)}"
        last = lines[-1] if lines else "no output"
        return f"{self.name} ended before it was ready (exit status {self.exit_status}): {last}; its log is {self.log}"

    @property
    def pid(self) -> int:
        """Raises Unavailable when it was never started."""
        if self._process is None:
            raise Unavailable(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self.exit_status is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        if self._process is None:
            return None
        end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    @property
    def pidfd(self) -> int:
        """Readable once the process ended."""
        return self._pidfd

    def signal(self, number: int) -> None:
        """Sends a signal to the process itself, not to its children."""
        if self._process is not None:
            os.kill(self._process.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within that time."""
        if self._process is None:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def kill(self, timeout_s: float = 10.0) -> None:
        """SIGKILL, and waits until the process is gone.

        Raises:
            DeadlineExceeded: it hangs in the kernel.
        """
        self.signal(signal.SIGKILL)
        if not self.wait(timeout_s):
            raise DeadlineExceeded(f"{self.name} (pid {self.pid}) did not end {timeout_s:g} s after SIGKILL")

    def stop(self, grace_s: float = 10.0) -> bool:
        """SIGTERM, then SIGKILL after the grace period; False when that was needed."""
        if not self.running:
            return True
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process gets its SIGTERM only when it goes on
        if self.wait(grace_s):
            return True
        self.kill()
        return False

    def _reap(self) -> None:
        """Ends what is left of its process group, then lets go of the pid."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        os.close(self._pidfd)
        self._process, self._pidfd = None, -1

    def close(self, grace_s: float = 10.0) -> None:
        """Stops it and its children for good. Safe to call twice."""
        self.stop(grace_s)
        self._reap()

    def release(self) -> None:
        """Lets a daemon that is not tied live on; it is init's from now on."""
        if self._process is not None:
            os.close(self._pidfd)
            self._process.returncode = 0  # its child is nobody's to wait for: we are about to exit
            self._process, self._pidfd = None, -1


class Supervisor:
    """Several daemons: started in order, stopped in reverse, also when one of them fails to start."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self.daemons = list(daemons)

    def start(self, before: Callable[[str], None] = lambda _: None) -> Iterator[Daemon]:
        """Starts them one by one and yields each when it is ready. ``before`` is called with a daemon's name ahead of
        its start."""
        for daemon in self.daemons:
            before(daemon.name)
            daemon.start()
            yield daemon

    def wait_any(self) -> Daemon:
        """Blocks until a daemon ended, and returns it."""
        poller = select.poll()
        for daemon in self.daemons:
            poller.register(daemon.pidfd, select.POLLIN)
        ended = {fd for fd, _ in poller.poll()}
        return next(daemon for daemon in self.daemons if daemon.pidfd in ended)

    def close(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
