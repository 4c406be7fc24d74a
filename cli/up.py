"""``hearth up``: a whole cluster on this machine for as long as the command runs, everything below one directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..common.errors import Unavailable
from ..common.notify import notify
from . import mountpoint as mountpoints
from .supervisor import Daemon, Supervisor, hearth_command


class Plan(NamedTuple):
    """Where things go. ``mountpoint`` None: no mount. ``capacity`` empty: what the disk has."""

    data: Path
    mountpoint: Path | None
    listen: str
    worker_listen: str
    capacity: str = ""
    config: Path | None = None

    @property
    def socket(self) -> Path:
        return self.data / "worker.sock"

    def log(self, name: str) -> Path:
        return self.data / "log" / f"{name}.log"


def default_data() -> Path:
    """``/var/lib/hearthfs`` for root, else below the user's data directory."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path("/var/lib/hearthfs") if os.geteuid() == 0 else Path(home) / "hearthfs"


def daemons(plan: Plan) -> list[Daemon]:
    """Master, worker and mount, in the order in which they start."""
    config = ["--config", str(plan.config.absolute())] if plan.config else []
    disk = str(plan.data / "disk") + (f":{plan.capacity}" if plan.capacity else "")
    node = ["--node-id", "local", "--master", plan.listen]
    commands = {
        "master": ["--data", str(plan.data / "master"), "--listen", plan.listen],
        "worker": ["--disk", disk, "--listen", plan.worker_listen, "--socket", str(plan.socket), *node],
    }
    if plan.mountpoint:
        commands["mount"] = [str(plan.mountpoint), "--foreground", "--worker-socket", str(plan.socket), *node]
    return [
        Daemon(name, hearth_command(name, *arguments, *config), log=plan.log(name))
        for name, arguments in commands.items()
    ]


def run(plan: Plan, say: Callable[[str], None]) -> None:
    """Runs until SIGINT or SIGTERM; then, and when anything goes wrong, all are stopped again, the mount first.

    Raises:
        Unavailable: a daemon did not start, or ended.
    """
    plan.data.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Supervisor(daemons(plan)) as supervisor:
            try:
                for daemon in supervisor.start(before=lambda name: _prepare(name, plan)):
                    say(f"{daemon.name} is ready (pid {daemon.pid}, log {daemon.log})")
                say(_ready(plan))
                notify("READY=1")
                ended = supervisor.wait_any()
                raise Unavailable(f"{ended.name} ended, exit status {ended.exit_status}; its log is {ended.log}")
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping is bounded; a second Ctrl-C would only leave
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # daemons behind
                notify("STOPPING=1")
    except KeyboardInterrupt:
        say("stopped")


def _prepare(name: str, plan: Plan) -> None:
    """The mount point is ours: made when missing, and freed of a mount that a kill -9 left behind. By now the master
    runs on our data, so nobody else's mount can be alive there."""
    if name == "mount" and plan.mountpoint:
        mountpoints.unmount(str(plan.mountpoint), force=True)
        plan.mountpoint.mkdir(parents=True, exist_ok=True)


def _ready(plan: Plan) -> str:
    where = f", files are in {plan.mountpoint}" if plan.mountpoint else ""
    return f"HearthFS is up: master {plan.listen}{where}; Ctrl-C stops it"
