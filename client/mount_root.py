"""From a path on this machine to the cluster that is mounted there.

A directory under which nothing is mounted (any more) must never be taken for the cache: writing there would fill the
machine's own disk. So the kernel's table of mounts decides, not what the directory looks like.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..common.errors import Unavailable
from ..common.types import CLUSTER_FILE
from . import paths
from .paths import Path

MOUNT_TYPE = b"fuse.hearthfs"
ANSWER_S = 5.0


@dataclass(frozen=True)
class MountRoot:
    """``path``: what the path that was asked for is called in the namespace. ``worker_socket``: empty on a node
    without a worker."""

    cluster_id: str
    master: str
    node_id: str
    worker_socket: str
    path: str


@dataclass(frozen=True)
class MountPoint:
    """``root``: the part of the namespace that is visible at ``point``: not ``/`` for a bind mount."""

    point: bytes
    root: bytes


def find(path: Path, mountinfo: str = "/proc/self/mountinfo") -> MountRoot:
    """
    Raises:
        Unavailable: no HearthFS mount is there, or it does not answer within seconds.
    """
    real = os.path.realpath(paths.encode(os.fspath(path)))
    with open(mountinfo, "rb") as file:
        mount = mount_of(real, file.read())
    shown = paths.decode(real)
    if mount is None:
        raise Unavailable(f"{shown!r} is not below a HearthFS mount; is `hearth mount` running?")
    relative = os.path.relpath(real, mount.point)
    inside = os.path.normpath(os.path.join(mount.root, relative))
    about = _ask(real, mount.point, shown)
    try:
        socket = next((each for each in about["worker_sockets"] if os.path.exists(each)), "")
        return MountRoot(about["cluster_id"], about["master"], about["node_id"], socket, paths.decode(inside))
    except (KeyError, TypeError):
        raise Unavailable(f"the mount at {paths.decode(mount.point)!r} does not say which cluster it shows") from None


def mount_of(path: bytes, mountinfo: bytes) -> MountPoint | None:
    """The HearthFS mount that ``path`` lies on; None when the innermost mount there is of another type. Of several
    on one point the last one listed covers the others.

    >>> mount_of(b"/mnt/a", b"36 25 0:31 / /mnt rw - fuse.hearthfs hearth rw\\n").point
    b'/mnt'
    """
    best: tuple[bytes, bytes, bytes] | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(b" - ")
        columns = fields.split(b" ")
        if len(columns) < 5 or not rest:
            continue
        root, point = (_unescape(column) for column in columns[3:5])
        if _covers(point, path) and (best is None or len(point) >= len(best[1])):
            best = (root, point, rest.split(b" ")[0])
    return MountPoint(best[1], best[0]) if best is not None and best[2] == MOUNT_TYPE else None


def _covers(point: bytes, path: bytes) -> bool:
    return path == point or path.startswith(point.rstrip(b"/") + b"/")


def _unescape(column: bytes) -> bytes:
    """The kernel writes space, tab, newline and backslash as three octal digits.

    >>> _unescape(b"/a\\\\040b")
    b'/a b'
    """
    first, *others = column.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in others)


def _ask(path: bytes, point: bytes, shown: str) -> dict[str, Any]:
    """Reads the cluster file at the mount's root, or at the first directory above ``path`` that shows it."""
    at = path
    while True:
        found = _within(ANSWER_S, partial(_read, at), shown)
        if found is not None:
            return found
        if at == point or at == b"/":
            raise Unavailable(f"no {CLUSTER_FILE} above {shown!r}: only a part of the namespace is mounted there")
        at = os.path.dirname(at)


def _read(directory: bytes) -> dict[str, Any] | None:
    try:
        with open(os.path.join(directory, CLUSTER_FILE.encode()), "rb") as file:
            content = json.loads(file.read())
            return content if isinstance(content, dict) else {}
    except (FileNotFoundError, NotADirectoryError):
        return None


def _within(limit_s: float, act: Callable[[], dict[str, Any] | None], shown: str) -> dict[str, Any] | None:
    """A mount whose daemon hangs blocks whoever touches it: that is a thread of no consequence."""
    answer: list[dict[str, Any] | None] = []
    problem: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(act())
        except (OSError, ValueError) as error:
            problem.append(error)

    thread = threading.Thread(target=run, name="hearth-mount-probe", daemon=True)
    thread.start()
    thread.join(limit_s)
    if answer:
        return answer[0]
    reason = problem[0] if problem else f"no answer within {limit_s:g} s"
    raise Unavailable(f"the mount above {shown!r} does not work: {reason}")
