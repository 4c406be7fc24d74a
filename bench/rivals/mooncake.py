"""Mooncake Store on this machine: a master, and agents that are its clients over TCP."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from ..service import NotStartedError, Service, answers, free_port, processes_of_group


class MooncakeMaster:
    """Default settings, on loopback. Objects live in the memory of clients, without checksums.

    Args:
        python: interpreter of the environment that Mooncake is installed in.
    """

    def __init__(self, python: str, directory: Path) -> None:
        self.python = python
        self._directory = directory
        self._service: Service | None = None
        self.address = ""
        self.version = ""

    def start(self) -> None:
        """Raises: NotStartedError: it is not installed, or misses a library (libibverbs1)."""
        question = (
            "import importlib.metadata as m, os, mooncake.store\n"
            "found = [d for d in m.distributions() if d.metadata['Name'].startswith('mooncake-transfer-engine')]\n"
            "print(os.path.dirname(mooncake.store.__file__)); print(found[0].version)"
        )
        asked = subprocess.run([self.python, "-c", question], capture_output=True, text=True, timeout=60, check=False)
        if asked.returncode:
            raise NotStartedError(f"Mooncake is not usable: {asked.stderr.strip().splitlines()[-1:]}")
        package, self.version = asked.stdout.split()
        port, metrics = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self._service = Service(
            "mooncake master",
            [
                f"{package}/mooncake_master", f"--rpc_port={port}", "--rpc_address=127.0.0.1", "--rpc_interface=lo",
                f"--metrics_port={metrics}", "--metrics_host=127.0.0.1",
            ],
            self._directory / "master.log",
        )  # fmt: skip
        self._service.start(lambda: answers(port))

    @property
    def settings(self) -> str:
        return f"Mooncake Store {self.version}, objects in memory, TCP, no checksums, default settings"

    def client(self, segment_bytes: int) -> dict[str, Any]:
        """Options of an agent of kind ``mooncake``."""
        return {"master": self.address, "address": f"127.0.0.1:{free_port()}", "segment_bytes": segment_bytes}

    def processes(self) -> dict[str, list[int]]:
        return {"master": processes_of_group(self._service.pid)} if self._service else {}

    def close(self) -> None:
        if self._service:
            self._service.close()
            self._service = None


def python_of(prefix: Path) -> str:
    """Interpreter of an environment."""
    return os.fspath(prefix / "bin" / "python")
