"""A HearthFS cluster of its own for a benchmark: one master, two nodes with a worker and a mount each, all as the
``hearth`` command starts them, with default settings.
"""

from __future__ import annotations

import os
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..cli import mountpoint as mountpoints
from ..cli.supervisor import Daemon, hearth_command
from .service import free_port, processes_of_group

if TYPE_CHECKING:
    from ..client.client import Client


class Nodes:
    """Node N ("nodeN", from 1) has ``mountpoint(N)``, ``disk(N)`` and ``socket(N)``.

    Args:
        directory: for the database, the disks, logs and mount points.
        count: how many nodes.
        mounts: whether the nodes mount the filesystem; that needs /dev/fuse.
        settings: of daemons by kind, for what cannot be measured with the defaults; travel as environment variables.
    """

    def __init__(
        self,
        directory: Path,
        *,
        count: int = 2,
        mounts: bool = True,
        settings: dict[str, dict[str, object]] | None = None,
    ) -> None:
        self.directory = directory
        self.count = count
        self.mounts = mounts
        self.settings = settings or {}
        self.master_address = f"127.0.0.1:{free_port()}"
        self.daemons: dict[str, Daemon] = {}
        self._telemetry = f"127.0.0.1:{free_port()}"
        self._stack = ExitStack()

    def mountpoint(self, node: int = 1) -> Path:
        return self.directory / f"mnt{node}"

    def disk(self, node: int = 1) -> Path:
        return self.directory / f"disk{node}"

    def socket(self, node: int = 1) -> Path:
        return self._sockets / f"worker{node}.sock"

    def client(self, node: int = 1, **options: Any) -> Client:
        """An SDK client on that node; the caller closes it."""
        from ..client.client import Client

        return Client(self.master_address, node_id=f"node{node}", worker_socket=os.fspath(self.socket(node)), **options)

    def processes(self) -> dict[str, list[int]]:
        """Process ids by the daemons' names; a mount's relay is a process of the mount."""
        return {name: processes_of_group(daemon.pid) for name, daemon in self.daemons.items()}

    def mode(self) -> str:
        """How the first mount works here, by its own count of the open files that the kernel reads or writes itself."""
        if not self.mounts:
            return "no mount"
        probe = self.mountpoint() / ".bench-mode"
        with probe.open("wb") as file:
            file.write(b"x" * (1 << 20))
            file.flush()
            writes = self._passing()
        with probe.open("rb") as file:
            reads = self._passing()
        probe.unlink()
        pids = processes_of_group(self.daemons["mount1"].pid)
        relay = any(b"fuse_client.relay" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
        ways = [f"{what} {'by the kernel itself' if passing else 'through the daemon'}"
                for what, passing in (("reads", reads), ("writes", writes))]  # fmt: skip
        return f"default settings, {'behind the relay' if relay else 'no relay'}, {', '.join(ways)}"

    def _passing(self) -> bool:
        with urllib.request.urlopen(f"http://{self._telemetry}/metrics", timeout=10) as reply:
            return has_passing(reply.read().decode())

    def start(self, name: str) -> None:
        self.daemons[name].start()

    def __enter__(self) -> Self:
        try:
            self._sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-bench-")))
            self._add("master", ["--data", str(self.directory / "master"), "--listen", self.master_address])
            for node in range(1, self.count + 1):
                common = ["--master", self.master_address, "--node-id", f"node{node}"]
                local = str(self.socket(node))
                self.disk(node).mkdir(parents=True, exist_ok=True)
                listen = ["--listen", f"127.0.0.1:{free_port()}"]
                self._add(f"worker{node}", ["--disk", str(self.disk(node)), "--socket", local, *listen, *common])
                if self.mounts:
                    place = self.mountpoint(node)
                    place.mkdir(parents=True, exist_ok=True)
                    self._stack.callback(mountpoints.unmount, str(place), force=True)
                    own = ["--telemetry-listen", self._telemetry] if node == 1 else []
                    self._add(f"mount{node}", [str(place), "--foreground", "--worker-socket", local, *common, *own])
        except BaseException:
            self._stack.close()
            raise
        return self

    def _add(self, name: str, arguments: list[str]) -> None:
        kind = name.rstrip("0123456789")
        chosen = {
            f"HEARTH_{kind.upper()}_{key.upper()}": str(value) for key, value in self.settings.get(kind, {}).items()
        }
        daemon = Daemon(
            name,
            hearth_command(kind, *arguments),
            log=self.directory / "log" / f"{name}.log",
            environment={"HEARTH_CONFIG": os.devnull, **chosen},
        )
        self.daemons[name] = daemon
        self._stack.callback(daemon.close)
        daemon.start()

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.daemons.clear()


def has_passing(metrics: str) -> bool:
    """Whether a mount's metrics count any open file that the kernel reads or writes by itself.

    >>> has_passing("# HELP x\\nhearth_mount_passthrough_opens 1.0"), has_passing("hearth_mount_passthrough_opens 0.0")
    (True, False)
    """
    for line in metrics.splitlines():
        if line.startswith("hearth_mount_passthrough_opens "):
            return float(line.split()[1]) > 0
    return False
