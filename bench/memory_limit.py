"""A memory control group for one process: its page cache counts, too. Version 2 where it is the one with the memory
controller, else version 1."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple, Self


class Hierarchy(NamedTuple):
    """Where groups are made, and the file of a group that takes its limit."""

    root: Path
    limit_file: str


def find(mountinfo: str) -> Hierarchy | None:
    """The hierarchy with the memory controller, from the text of mountinfo.

    >>> find("30 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory")
    Hierarchy(root=PosixPath('/sys/fs/cgroup/memory'), limit_file='memory.limit_in_bytes')
    """
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        separator = fields.index("-", 6)
        place, kind, options = Path(fields[4]), fields[separator + 1], fields[separator + 3].split(",")
        if kind == "cgroup" and "memory" in options:
            return Hierarchy(place, "memory.limit_in_bytes")
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                if "memory" in (place / "cgroup.subtree_control").read_text().split():
                    return Hierarchy(place, "memory.max")
    return None


def _here() -> Hierarchy | None:
    return find(Path("/proc/self/mountinfo").read_text())


def why_not() -> str:
    """Empty when a group can be made here."""
    hierarchy = _here()
    if hierarchy is None:
        return "no control group hierarchy with the memory controller enabled"
    if not os.access(hierarchy.root, os.W_OK):
        return f"{hierarchy.root} is not writable"
    return ""


class MemoryGroup:
    """A group with that limit; gone at the end."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        hierarchy = _here()
        assert hierarchy is not None, "ask why_not() first"
        self._limit_file = hierarchy.limit_file
        self.directory = hierarchy.root / f"hearth-bench-{os.getpid()}"

    def __enter__(self) -> Self:
        self.directory.mkdir()
        (self.directory / self._limit_file).write_text(str(self.limit_bytes))
        return self

    def add(self, pid: int) -> None:
        (self.directory / "cgroup.procs").write_text(str(pid))

    def __exit__(self, *_: object) -> None:
        for _attempt in range(50):  # its last process may not be reaped yet
            try:
                self.directory.rmdir()
                return
            except OSError:
                time.sleep(0.1)
