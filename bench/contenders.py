"""Who is compared, and where: directories of the same kind of work, with the settings that the report names."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from .nodes import Nodes
from .rivals.juicefs import JuiceFs
from .rivals.seaweedfs import SeaweedFs

DISK_LIMIT_BYTES = 10 << 30


@dataclasses.dataclass(frozen=True)
class Contender:
    """A directory to work in. ``other``: the same directory, by another node's mount of the same filesystem."""

    label: str
    directory: Path
    settings: str
    other: Path | None = None
    settle: Callable[[], None] = lambda: None
    """Called after files were removed: gives their space back, ends what goes on in the background."""
    processes: Callable[[], Mapping[str, list[int]]] = dict
    """Process ids by the names of its daemons."""


class Lab:
    """All that a benchmark needs: the HearthFS cluster, a raw directory, the rivals that are installed.

    Everything lies below ``directory`` and is gone afterwards, whatever happens.

    Args:
        directory: on the disk to be measured.
        rounds: that count.
        quick: fewer and smaller files.
        rivals: prefix of a Python environment with the rivals' packages in it.
        want_rivals: False: HearthFS and raw only.
        mounts: False: no FUSE, so no mounts and no rivals.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rounds: int = 5,
        quick: bool = False,
        rivals: Path = Path(sys.prefix),
        want_rivals: bool = True,
        mounts: bool = True,
    ) -> None:
        self.directory = directory
        self.rounds, self.quick = rounds, quick
        self.rivals, self.want_rivals, self.mounts = rivals, want_rivals, mounts
        self.raw = directory / "raw"
        self.nodes = Nodes(directory / "hearthfs", mounts=mounts)
        self.contenders: list[Contender] = []
        self.missing: dict[str, str] = {}
        """Rivals that take no part, and why."""
        self.settings: dict[str, str] = {}
        """Of those that a section brings in."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self.raw.mkdir(parents=True)
            self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.contenders.append(Contender("raw", self.raw, "a plain directory"))
            self._stack.enter_context(self.nodes)
            if self.mounts:
                self._mounts()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _mounts(self) -> None:
        nodes = self.nodes
        self.contenders.append(
            Contender(
                "hearthfs",
                nodes.mountpoint(1),
                f"two nodes; mount: {nodes.mode()}",
                other=nodes.mountpoint(2),
                processes=nodes.processes,
            )
        )
        if not self.want_rivals:
            return
        for kind in (JuiceFs, SeaweedFs):
            for best in (False, True):
                label = f"{kind.NAME} best" if best else kind.NAME
                try:
                    rival = kind(self.binary(kind.BINARY), self.directory / label.replace(" ", "-"), best=best)
                    self._stack.callback(rival.close)
                    rival.start()
                except Exception as error:
                    self.missing[label] = str(error)
                    continue
                self.contenders.append(
                    Contender(
                        label,
                        rival.mountpoints[0],
                        rival.settings,
                        other=rival.mountpoints[1],
                        settle=rival.settle,
                        processes=rival.processes,
                    )
                )

    def binary(self, name: str) -> str:
        """Path of a rival's program.

        Raises:
            FileNotFoundError.
        """
        own = self.rivals / "bin" / name
        found = os.fspath(own) if own.exists() else shutil.which(name)
        if not found:
            raise FileNotFoundError(f"{name} is not installed (pip install 'hearthfs[bench]')")
        return found

    def check_disk(self) -> None:
        """Raises: RuntimeError: what was removed was not given back."""
        used = disk_bytes(self.directory)
        if used > DISK_LIMIT_BYTES:
            raise RuntimeError(f"the benchmark uses {used / 2**30:.1f} GiB of disk, more than {DISK_LIMIT_BYTES >> 30}")

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def disk_bytes(directory: Path) -> int:
    """What lies below a directory on its own filesystem; mounts below it are left out."""
    device = directory.stat().st_dev
    total = 0
    for place, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if _on(device, f"{place}/{name}")]
        for name in files:
            try:
                total += os.lstat(f"{place}/{name}").st_blocks * 512
            except OSError:
                continue
    return total


def _on(device: int, path: str) -> bool:
    try:
        return os.lstat(path).st_dev == device
    except OSError:
        return False
