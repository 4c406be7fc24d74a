"""A mount that goes on after the command that made it returned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .supervisor import Daemon, hearth_command


def default_log(mountpoint: Path) -> Path:
    """``/var/log/hearthfs/mount-mnt-kvcache.log``, or below the user's state directory."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    folder = Path("/var/log/hearthfs") if os.geteuid() == 0 else Path(home) / "hearthfs"
    return folder / f"mount-{str(mountpoint).strip('/').replace('/', '-') or 'root'}.log"


def mount_in_background(flags: Mapping[str, Any], config: Path | None, log_file: Path | None) -> str:
    """Starts the daemon and returns a line that says so, once it is ready.

    Raises:
        Unavailable: it ended before; the text is its own.
        DeadlineExceeded: it was not ready in time.
    """
    mountpoint = Path(flags["mountpoint"])
    log = (log_file or default_log(mountpoint)).absolute()
    daemon = Daemon(f"mount {mountpoint}", foreground_command(flags, config), log=log, tied=False)
    daemon.start(ready_s=60)
    pid = daemon.pid
    daemon.release()
    return f"mounted on {mountpoint} (pid {pid}, log {log})"


def foreground_command(flags: Mapping[str, Any], config: Path | None) -> list[str]:
    """The same mount as a command that stays in the foreground."""
    arguments = ["mount", str(flags["mountpoint"]), "--foreground"]
    for key, value in flags.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif key != "mountpoint":
            arguments += [f"--{name}", str(value)]
    if config:
        arguments += ["--config", str(config.absolute())]
    return hearth_command(*arguments)
