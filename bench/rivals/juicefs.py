"""JuiceFS on this machine: metadata in SQLite, objects in a directory, two mounts of one volume."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar

from ..service import NotStartedError, Service, processes_of_group

SETTLE_S = 15.0


class JuiceFs:
    """``best``: cached data in memory, writes acknowledged before they are objects, a minute of cached metadata."""

    NAME: ClassVar[str] = "juicefs"
    BINARY: ClassVar[str] = "juicefs"

    def __init__(self, binary: str, directory: Path, *, best: bool) -> None:
        self.binary, self.directory, self.best = binary, directory, best
        self.mountpoints = [directory / "mnt1", directory / "mnt2"]
        # A directory in memory: JuiceFS does not write back from its own kind of memory cache.
        self._memory = Path(tempfile.mkdtemp(prefix="hearth-bench-", dir="/dev/shm")) if best else None
        self._services: dict[str, Service] = {}
        version = subprocess.run([binary, "version"], capture_output=True, text=True, timeout=30, check=True).stdout
        self.version = version.split()[2].partition("+")[0] if len(version.split()) > 2 else version.strip()
        options = " ".join(self._options("CACHE"))
        kind = "a directory in memory" if best else "the same disk"
        self.settings = f"JuiceFS {self.version}, SQLite, file store; cache on {kind}: mount {options}"

    def _options(self, cache: str) -> list[str]:
        common = ["--cache-dir", cache, "--backup-meta", "0", "--max-fuse-io", "1M"]
        if not self.best:
            return [*common, "--cache-size", "2048"]
        metadata = ["attr-cache", "entry-cache", "dir-entry-cache", "negative-entry-cache", "open-cache"]
        return [
            *common,
            *("--cache-size", "3072", "--buffer-size", "1024", "--writeback", "--cache-large-write"),
            *(part for name in metadata for part in (f"--{name}", "60s")),
        ]

    def _cache(self, number: int) -> Path:
        return (self._memory or self.directory) / f"cache{number}"

    def start(self) -> None:
        """Raises: NotStartedError."""
        self.directory.mkdir(parents=True)
        address = f"sqlite3://{self.directory}/meta.db"
        format_ = ["format", address, "bench", "--storage", "file", "--bucket", f"{self.directory}/objects/"]
        made = subprocess.run(
            [self.binary, *format_, "--trash-days", "0"], capture_output=True, text=True, timeout=60, check=False
        )
        if made.returncode:
            raise NotStartedError(f"juicefs format: {made.stderr.strip().splitlines()[-1:]}")
        for number, place in enumerate(self.mountpoints, 1):
            options = self._options(os.fspath(self._cache(number)))
            service = Service(
                f"juicefs mount{number}",
                [self.binary, "mount", address, os.fspath(place), "--no-syslog", *options],
                self.directory / f"mount{number}.log",
                mountpoint=place,
            )
            self._services[f"mount{number}"] = service
            service.start_mount()

    def settle(self) -> None:
        """Waits until nothing more is to be uploaded, and for removed objects to be gone."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and (self._staged() or self._objects() > 64):
            time.sleep(0.1)

    def _staged(self) -> bool:
        places = (self._cache(number) for number in (1, 2))
        return any(file.is_file() for place in places for file in place.glob("*/rawstaging/**/*"))

    def _objects(self) -> int:
        """Objects of data: there are none once all files were removed."""
        return sum(len(files) for _, _, files in os.walk(self.directory / "objects/bench/chunks"))

    def processes(self) -> dict[str, list[int]]:
        return {name: processes_of_group(service.pid) for name, service in self._services.items()}

    def close(self) -> None:
        for service in reversed(self._services.values()):
            service.close()
        self._services.clear()
        if self._memory:
            shutil.rmtree(self._memory, ignore_errors=True)
