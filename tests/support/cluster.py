"""A whole HearthFS cluster of real daemons on this machine, for tests, the demo and the benchmarks.

    with Cluster(tmp_path, workers=2, mounts=2) as cluster:
        cluster.mountpoint(1).joinpath("x").write_bytes(b"hello")
        cluster.kill("master")
        cluster.restart("master")

Daemons are named "master", "worker1", "mount1", …; node N ("nodeN") has workerN and mountN. Each is the ``hearth``
command in a process of its own with its log below ``tmp_path/log``. Whatever happens, leaving the block ends exactly
the processes it started and takes away the mounts it made.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hearthfs.cli import authority
from hearthfs.cli import mountpoint as mountpoints
from hearthfs.cli.supervisor import Daemon, hearth_command
from hearthfs.common.credentials import TLS_DIRECTORY_VARIABLE
from hearthfs.common.errors import HearthError

if TYPE_CHECKING:
    from hearthfs.client.client import Client

Overrides = Mapping[str, Mapping[str, object]]
PORTS = range(20_000, 32_000)  # below those that outgoing connections take
_given: set[int] = set()
OPEN: list[Cluster] = []
"""Clusters that are up now; a failed test's report shows their logs."""


def free_port() -> int:
    """A loopback port that nobody uses now and that this process has not handed out before."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


class Cluster:
    """Master, workers, mounts.

    Args:
        directory: for data, logs and mount points; made when missing, kept at the end.
        workers: how many nodes have a worker.
        mounts: how many nodes have a mount; a node beyond ``workers`` is client-only.
        disk: what block files lie on: "dir" (the directory's own filesystem), or "tmpfs". See also ``LoopDisk``, whose
            power can be cut.
        disk_bytes: size of a tmpfs, capacity of a "dir" one (0: no limit).
        disks: per worker.
        settings: extra settings by daemon or kind: ``{"master": {"session_lease_s": 1}, "worker2": {...}}``; they
            travel as environment variables.
        environment: variables for all daemons.
        telemetry: give each daemon a telemetry port; see ``telemetry_url``.
        tls: certificates of the cluster's own authority instead of the token; see ``certificate``.
        ready_s: how long one daemon may take until it is ready.
        start: start everything on entry; else the caller does, by name.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        workers: int = 2,
        mounts: int = 0,
        disk: str = "dir",
        disk_bytes: int = 0,
        disks: int = 1,
        settings: Overrides | None = None,
        environment: Mapping[str, str] | None = None,
        telemetry: bool = False,
        tls: bool = False,
        ready_s: float = 30.0,
        start: bool = True,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.workers, self.mounts = workers, mounts
        self.disk_kind, self.disk_bytes, self.disks = disk, disk_bytes, disks
        self.ready_s = ready_s
        self._settings: dict[str, dict[str, object]] = {name: dict(values) for name, values in (settings or {}).items()}
        self._environment = dict(environment or {})
        self.tls = tls
        if tls:
            authority.found(self.directory / "authority", "test", datetime.datetime.now(datetime.UTC))
        self._start = start
        self._sockets = Path(tempfile.mkdtemp(prefix="hearth-"))  # a socket's path has at most 107 bytes
        self._clients: list[Client] = []
        self._disk_mounts: list[Path] = []
        self._ports = {name: free_port() for name in self._names() if not name.startswith("mount")}
        self._telemetry_ports = {name: free_port() for name in self._names()} if telemetry else {}
        self.master_address = self.address("master")
        self._daemons = {name: self._daemon(name) for name in self._names()}

    def _names(self) -> list[str]:
        nodes = range(1, max(self.workers, self.mounts) + 1)
        return [
            "master",
            *(f"worker{node}" for node in nodes if node <= self.workers),
            *(f"mount{node}" for node in nodes if node <= self.mounts),
        ]

    # ------------------------------------------------------------ where things are

    def address(self, name: str) -> str:
        """host:port of the master or a worker."""
        return f"127.0.0.1:{self._ports[name]}"

    def telemetry_url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._telemetry_ports[name]}"

    def mountpoint(self, node: int = 1) -> Path:
        return self.directory / f"mnt{node}"

    def data(self, name: str = "master") -> Path:
        """Directory of the master's database, or of a worker's first disk."""
        return self.directory / name if name == "master" else self.disk(int(name.removeprefix("worker")))

    def disk(self, node: int, number: int = 1) -> Path:
        return self.directory / f"worker{node}-disk{number}"

    def socket(self, node: int = 1) -> Path | None:
        """Unix socket of the node's worker; None on a client-only node."""
        return self._sockets / f"worker{node}.sock" if node <= self.workers else None

    def certificate(self, name: str, days: float = 1.0) -> Path:
        """Directory with the certificate of that name ("admin", "node node1", "user 1000 1000"); made when missing."""
        directory = self.directory / "certificates" / name.replace(" ", "-")
        if not (directory / "cert.pem").exists():
            authority.issue(self.directory / "authority", directory, name, days, datetime.datetime.now(datetime.UTC))
        return directory

    def _shown(self, name: str) -> dict[str, str]:
        """Variables that tell a program what to show. ``name`` is as for ``certificate``."""
        return {TLS_DIRECTORY_VARIABLE: str(self.certificate(name))} if self.tls else {}

    def log(self, name: str) -> Path:
        return self.directory / "log" / f"{name}.log"

    def logs(self, last_bytes: int = 20_000) -> str:
        """The ends of all logs, for the report of a test that failed."""
        texts = []
        for name in self._daemons:
            if self.log(name).exists():
                text = self.log(name).read_bytes()[-last_bytes:].decode(errors="replace")
                texts.append(f"---- {name} ({self._state(name)})\n{text}")
        return "\n".join(texts)

    def _state(self, name: str) -> str:
        daemon = self._daemons[name]
        return f"pid {daemon.pid}" if daemon.running else f"exit status {daemon.exit_status}"

    # ------------------------------------------------------------ daemons

    def _daemon(self, name: str) -> Daemon:
        return Daemon(
            name, hearth_command(*self._arguments(name)), log=self.log(name), environment=self._variables(name)
        )

    def _arguments(self, name: str) -> list[str]:
        kind, node = name.rstrip("0123456789"), name.lstrip("abcdefghijklmnopqrstuvwxyz")
        telemetry = self._telemetry_ports.get(name)
        common = ["--telemetry-listen", f"127.0.0.1:{telemetry}"] if telemetry else []
        if kind == "master":
            return ["master", "--data", str(self.data()), "--listen", self.master_address, *common]
        common += ["--master", self.master_address, "--node-id", f"node{node}"]
        if kind == "worker":
            capacity = f":{self.disk_bytes}" if self.disk_kind == "dir" and self.disk_bytes else ""
            disks = [f"{self.disk(int(node), number)}{capacity}" for number in range(1, self.disks + 1)]
            options = ["--listen", self.address(name), "--socket", str(self.socket(int(node)))]
            return ["worker", *options, *common, *(part for disk in disks for part in ("--disk", disk))]
        path = self.socket(int(node))
        local = ["--worker-socket", str(path)] if path else []
        return ["mount", str(self.mountpoint(int(node))), "--foreground", *local, *common]

    def _variables(self, name: str) -> dict[str, str]:
        kind = name.rstrip("0123456789")
        chosen = {**self._settings.get(kind, {}), **self._settings.get(name, {})}
        own = {f"HEARTH_{kind.upper()}_{key.upper()}": str(value) for key, value in chosen.items()}
        node = name.lstrip("abcdefghijklmnopqrstuvwxyz")
        shown = self._shown("master" if kind == "master" else f"node node{node}")
        return {"HEARTH_CONFIG": os.devnull, "PYTHONFAULTHANDLER": "1", **shown, **self._environment, **own}

    def configure(self, name: str, **settings: object) -> None:
        """Changes settings of one daemon (or add a kind's: "worker"); they hold from its next start."""
        self._settings.setdefault(name, {}).update(settings)
        for daemon in [name] if name in self._daemons else [key for key in self._daemons if key.startswith(name)]:
            if self._daemons[daemon].running:
                raise RuntimeError(f"{daemon} runs; configure it while it is down")
            self._daemons[daemon].close()
            self._daemons[daemon] = self._daemon(daemon)

    def start(self, name: str) -> None:
        """Starts one daemon and waits until it is ready.

        Raises:
            Unavailable: it refused; the text is its own.
        """
        if name.startswith("mount"):
            self.mountpoint(int(name.removeprefix("mount"))).mkdir(exist_ok=True)
        if name.startswith("worker"):
            self._make_disks(int(name.removeprefix("worker")))
        self._daemons[name].start(self.ready_s)

    def pid(self, name: str) -> int:
        return self._daemons[name].pid

    def running(self, name: str) -> bool:
        return self._daemons[name].running

    def exit_status(self, name: str) -> int | None:
        """None while it runs, negative for a signal."""
        return self._daemons[name].exit_status

    def kill(self, name: str) -> None:
        """SIGKILL to the daemon's first process, and waits for its end."""
        self._daemons[name].kill()

    def term(self, name: str, grace_s: float = 15.0) -> int | None:
        """SIGTERM; returns the exit status. Fails when the daemon does not end in time."""
        daemon = self._daemons[name]
        if daemon.running:
            daemon.signal(signal.SIGTERM)
            with contextlib.suppress(ProcessLookupError):
                self.cont(name)
            if not daemon.wait(grace_s):
                daemon.signal(signal.SIGABRT)  # faulthandler writes where each thread hangs
                daemon.wait(1.0)
                daemon.kill()
                raise AssertionError(f"{name} did not end {grace_s:g} s after SIGTERM\n{self.logs()}")
        return self.exit_status(name)

    def stop(self, name: str) -> None:
        """SIGSTOP to the daemon's whole process group: it hangs."""
        os.killpg(self._daemons[name].pid, signal.SIGSTOP)

    def cont(self, name: str) -> None:
        """SIGCONT to all that ``stop`` stopped."""
        os.killpg(self._daemons[name].pid, signal.SIGCONT)

    def wait(self, name: str, timeout_s: float) -> bool:
        """Whether the daemon ended by itself within that time."""
        return self._daemons[name].wait(timeout_s)

    def move_master(self) -> None:
        """The master, which must be down, listens on another port from its next start. Who runs is not told: the other
        daemons get the new address when they are started again, clients when they are made."""
        self._ports["master"] = free_port()
        self.master_address = self.address("master")
        for name, daemon in self._daemons.items():
            if not daemon.running:
                self.configure(name)

    def restart(self, name: str) -> None:
        """Ends it if it runs (SIGTERM) and starts it again with the same data and address."""
        self._daemons[name].close()
        if name.startswith("mount"):
            self.unmount(int(name.removeprefix("mount")))
        self.configure(name)
        self.start(name)

    # ------------------------------------------------------------ work

    def client(self, node: int | None = 1, **settings: Any) -> Client:
        """An SDK client on that node (None: a node without a worker); closed with the cluster. With certificates it
        shows an operator's, unless another ``tls_directory`` is given."""
        from hearthfs.client.client import Client

        path = self.socket(node) if node is not None else None
        own = {"node_id": f"node{node}" if node is not None else "nowhere", "worker_socket": str(path) if path else ""}
        if self.tls:
            own["tls_directory"] = str(self.certificate("admin"))
        client = Client(self.master_address, **{**own, **settings})
        self._clients.append(client)
        return client

    def hearth(self, *arguments: str, timeout_s: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a ``hearth`` command against this cluster."""
        environment = {
            **os.environ,
            "HEARTH_CONFIG": os.devnull,
            "HEARTH_CLIENT_MASTER": self.master_address,
            **self._shown("admin"),
        }
        chosen: dict[str, Any] = {"env": environment, "capture_output": True, "text": True, "timeout": timeout_s}
        done: subprocess.CompletedProcess[str] = subprocess.run(  # callers look at the exit code
            hearth_command(*arguments), **chosen | options
        )
        return done

    def fsck(self) -> list[dict[str, Any]]:
        """What ``hearth fsck --json`` finds: an empty list when all is well."""
        done = self.hearth("fsck", "--json")
        if done.returncode not in (0, 3):
            raise AssertionError(f"fsck failed: {done.stderr}\n{self.logs()}")
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return findings

    # ------------------------------------------------------------ disks and mounts

    def _make_disks(self, node: int) -> None:
        for number in range(1, self.disks + 1):
            path = self.disk(node, number)
            if path in self._disk_mounts:
                continue
            path.mkdir(exist_ok=True)
            if self.disk_kind == "dir":
                continue
            _run("mount", "-t", "tmpfs", "-o", f"size={self.disk_bytes}", "hearth-test", str(path))
            self._disk_mounts.append(path)

    def unmount(self, node: int) -> None:
        """Takes the node's mount away by force, if it is there."""
        mountpoints.unmount(str(self.mountpoint(node)), force=True)

    # ------------------------------------------------------------ life

    def __enter__(self) -> Self:
        OPEN.append(self)
        try:
            if self._start:
                for name in self._daemons:
                    self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            print(self.logs())  # pytest shows it with the failure
        self.close()

    def close(self) -> None:
        """Ends all that was started. Mounts go first, while their daemons can still answer.

        Raises:
            AssertionError: a daemon did not end in time; all are gone all the same.
        """
        late = []
        for client in self._clients:
            with contextlib.suppress(HearthError):
                client.close()
        self._clients.clear()
        for name, daemon in reversed(self._daemons.items()):
            try:
                self.term(name)
            except AssertionError as error:
                late.append(str(error))
            daemon.close()
            if name.startswith("mount"):
                self.unmount(int(name.removeprefix("mount")))
        for path in reversed(self._disk_mounts):
            _run("umount", "--lazy", str(path))
        self._disk_mounts.clear()
        shutil.rmtree(self._sockets, ignore_errors=True)
        if self in OPEN:
            OPEN.remove(self)
        if late:
            raise AssertionError("\n".join(late))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
