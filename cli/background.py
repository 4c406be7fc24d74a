"""A mount that goes on after the command that made it returned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .supervisor import Daemon, hearth_command

READY_S = 60.0


def default_log(mountpoint: Path) -> Path:
    """``/var/log/hearthfs/mount-mnt-kvcache.log``, or below the user's state directory."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    folder = Path("/var/log/hearthfs") if os.geteuid() == 0 else Path(home) / "hearthfs"
    return folder / f"mount-{str(mountpoint).strip('/').replace('/', '-') or 'root'}.log"


def mount_in_background(flags: Mapping[str, Any], config: Path | None, log_file: Path | None) -> str:
    """Starts the daemon and returns a line that says so, once it is ready. ``flags`` are those of MountSettings.

    Raises:
        Unavailable: it ended before; the text is its own.
        DeadlineExceeded: it was not ready in time.
    """
    mountpoint = Path(flags["mountpoint"]).absolute()
    log = (log_file or default_log(mountpoint)).absolute()
    command = ["mount", str(mountpoint), "--foreground", *(["--config", str(config.absolute())] if config else [])]
    daemon = Daemon("mount", hearth_command(*command), log=log, environment=as_variables(flags), tied=False)
    daemon.start(READY_S)
    pid = daemon.pid
    daemon.release()
    return f"mounted on {mountpoint} (pid {pid}, log {log})"


def as_variables(flags: Mapping[str, Any]) -> dict[str, str]:
    """The flags as environment variables of the daemon: any setting can be passed on so, not just those with an
    option."""
    return {f"HEARTH_MOUNT_{key.upper()}": str(value) for key, value in flags.items() if key != "mountpoint"}
