"""What the figures were measured on, as far as it matters to them; no names of hosts, no paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ..cli.mountpoint import MOUNTINFO
from ..common.version import VERSION


def facts(directory: Path) -> dict[str, Any]:
    """Of this machine, and of the filesystem that ``directory`` is on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": filesystem(os.path.realpath(directory), MOUNTINFO.read_text(errors="surrogateescape")),
        "python": platform.python_version(),
        "hearthfs": VERSION,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def filesystem(path: str, mountinfo: str) -> str:
    """The kind of filesystem that a path is on, from the text of mountinfo.

    >>> filesystem("/a/b", "1 0 8:1 / / rw - ext4 /dev/x rw")
    'ext4'
    """
    best, kind = "", "unknown"
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        place = fields[4].rstrip("/")
        if (path + "/").startswith(place + "/") and len(place) >= len(best):
            best, kind = place, fields[fields.index("-", 6) + 1]
    return kind
