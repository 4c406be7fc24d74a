"""SeaweedFS on this machine: master, volume server and filer in one process, two mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import ClassVar

from ..service import Service, answers, free_port, processes_of_group


class SeaweedFs:
    """``best``: larger chunks, the kernel's write-back cache, cached data in memory, ten minutes of cached metadata."""

    NAME: ClassVar[str] = "seaweedfs"
    BINARY: ClassVar[str] = "weed"

    def __init__(self, binary: str, directory: Path, *, best: bool) -> None:
        self.binary, self.directory, self.best = binary, directory, best
        self.mountpoints = [directory / "mnt1", directory / "mnt2"]
        self._memory = Path(tempfile.mkdtemp(prefix="hearth-bench-", dir="/dev/shm")) if best else None
        self._services: dict[str, Service] = {}
        self._master_port = free_port()
        version = subprocess.run([binary, "version"], capture_output=True, text=True, timeout=30, check=True).stdout
        words = version.split()
        self.version = words[2] if len(words) > 2 else version.strip()
        kind = "a directory in memory" if best else "the same disk"
        options = " ".join(self._options("CACHE"))
        self.settings = f"SeaweedFS {self.version}, one server with filer; cache on {kind}: mount {options}"

    def _options(self, cache: str) -> list[str]:
        common = [f"-cacheDir={cache}", "-cacheCapacityMB=1024"]
        if not self.best:
            return common
        return [*common, "-chunkSizeLimitMB=16", "-writebackCache", "-cacheMetaTtlSec=600", "-asyncDio"]

    def start(self) -> None:
        """Raises: NotStartedError."""
        data = self.directory / "data"
        data.mkdir(parents=True)
        ports = {name: free_port() for name in ("volume", "volume.grpc", "filer", "filer.grpc", "master.grpc")}
        socket = f"-filer.localSocket={self._temporary()}/filer.sock"
        server = Service(
            "weed server",
            [
                self.binary, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", socket,
                f"-master.port={self._master_port}", f"-master.port.grpc={ports['master.grpc']}",
                f"-volume.port={ports['volume']}", f"-volume.port.grpc={ports['volume.grpc']}",
                f"-filer.port={ports['filer']}", f"-filer.port.grpc={ports['filer.grpc']}",
                "-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-volume.max=0",
                "-volume.preStopSeconds=0",
            ],
            self.directory / "server.log",
        )  # fmt: skip
        self._services["server"] = server
        server.start(lambda: answers(ports["filer"]) and answers(ports["volume"]))
        filer = f"127.0.0.1:{ports['filer']}.{ports['filer.grpc']}"
        for number, place in enumerate(self.mountpoints, 1):
            cache = (self._memory or self.directory) / f"cache{number}"
            cache.mkdir(parents=True)
            service = Service(
                f"weed mount{number}",
                [
                    self.binary, "mount", f"-filer={filer}", f"-dir={place}", "-dirAutoCreate",
                    f"-localSocket={self._temporary()}/mount{number}.sock", *self._options(os.fspath(cache)),
                ],
                self.directory / f"mount{number}.log",
                mountpoint=place,
            )  # fmt: skip
            self._services[f"mount{number}"] = service
            service.start_mount()

    def _temporary(self) -> Path:
        """For sockets, whose paths must be short."""
        if not hasattr(self, "_sockets"):
            self._sockets = Path(tempfile.mkdtemp(prefix="hearth-bench-"))
        return self._sockets

    def settle(self) -> None:
        """Rewrites volumes whose files were removed; they would grow for ever."""
        url = f"http://127.0.0.1:{self._master_port}/vol/vacuum?garbageThreshold=0.05"
        with urllib.request.urlopen(url, timeout=60) as reply:
            reply.read()

    def processes(self) -> dict[str, list[int]]:
        return {name: processes_of_group(service.pid) for name, service in self._services.items()}

    def close(self) -> None:
        for service in reversed(self._services.values()):
            service.close()
        self._services.clear()
        for place in (self._memory, getattr(self, "_sockets", None)):
            if place:
                shutil.rmtree(place, ignore_errors=True)
