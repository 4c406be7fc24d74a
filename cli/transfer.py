"""Copies between local files and the cluster: whole files, or nothing under the final name."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ..common.errors import Exists, InvalidArgument, IsADirectory, NotADirectory, NotFound

if TYPE_CHECKING:
    from ..client.client import Client

PIECE_BYTES = 8 << 20
Advance = Callable[[int], None]


class Copy(NamedTuple):
    """One file to copy, or one directory to make (``size_bytes`` -1)."""

    source: str
    target: str
    size_bytes: int


def target_in(directory: bool, target: str, source: str) -> str:
    """Where ``cp`` would put it: inside an existing directory, else under that very name."""
    if not directory:
        return target
    name = source.rstrip("/").rpartition("/")[2]
    if not name:
        raise InvalidArgument(f"{source!r} has no name to give the copy; name the target in full")
    return f"{target.rstrip('/')}/{name}"


# ---------------------------------------------------------------- into the cluster


def plan_put(client: Client, sources: list[str], target: str, *, recursive: bool) -> list[Copy]:
    """Directories before what is in them.

    Raises:
        IsADirectory: a source is one and ``recursive`` is false.
        NotADirectory: several sources need a directory.
    """
    inside = client.isdir(target)
    if not inside and (len(sources) > 1 or target.endswith("/")):
        raise NotADirectory(f"{target}: is not a directory in the cluster; make it with: hearth mkdir -p {target}")
    return [copy for source in sources for copy in _local_tree(source, target_in(inside, target, source), recursive)]


def _local_tree(source: str, target: str, recursive: bool) -> Iterator[Copy]:
    if source == "-":
        yield Copy(source, target, 0)
        return
    status = os.stat(source)
    if not stat.S_ISDIR(status.st_mode):
        yield Copy(source, target, status.st_size)
        return
    if not recursive:
        raise IsADirectory(f"{source}: is a directory; copy it with --recursive")
    for folder, directories, names in os.walk(source):
        directories.sort()
        place = target + folder.removeprefix(source.rstrip("/")).rstrip("/")
        yield Copy(folder, place, -1)
        for name in sorted(names):
            path = f"{folder}/{name}"
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield Copy(path, f"{place}/{name}", os.lstat(path).st_size)


def put(client: Client, copy: Copy, advance: Advance, *, replace: bool) -> None:
    """Raises: Exists: the target is there and ``replace`` is false."""
    if copy.size_bytes < 0:
        client.makedirs(copy.target, exist_ok=True)
        return
    with contextlib.ExitStack() as stack:
        source = sys.stdin.buffer if copy.source == "-" else stack.enter_context(open(copy.source, "rb"))
        with client.open(copy.target, "wb" if replace else "xb") as target:
            _pump(source, target, advance)


# ---------------------------------------------------------------- out of the cluster


def plan_get(client: Client, sources: list[str], target: str, *, recursive: bool) -> list[Copy]:
    """Raises: IsADirectory, NotADirectory as ``plan_put``."""
    inside = target != "-" and Path(target).is_dir()
    if target != "-" and not inside and (len(sources) > 1 or target.endswith("/")):
        raise NotADirectory(f"{target}: is not a directory here")
    return [
        copy
        for source in sources
        for copy in _cluster_tree(client, source, target_in(inside, target, source), recursive)
    ]


def _cluster_tree(client: Client, source: str, target: str, recursive: bool) -> Iterator[Copy]:
    status = client.stat(source)
    if not stat.S_ISDIR(status.st_mode):
        yield Copy(source, target, status.st_size)
        return
    if not recursive:
        raise IsADirectory(f"{source}: is a directory; copy it with --recursive")
    for folder, _, entries in client.walk(source):
        place = target + folder.removeprefix(source.rstrip("/")).rstrip("/")
        yield Copy(folder, place, -1)
        for entry in entries:
            if entry.is_file():
                yield Copy(entry.path, f"{place}/{entry.name}", entry.stat.st_size)


def get(client: Client, copy: Copy, advance: Advance, *, replace: bool) -> None:
    """The local file appears under its name when it is complete.

    Raises:
        Exists: the target is there and ``replace`` is false.
    """
    if copy.target == "-":
        with client.open(copy.source, "rb") as source:
            _pump(source, sys.stdout.buffer, advance)
        sys.stdout.buffer.flush()
        return
    if copy.size_bytes < 0:
        os.makedirs(copy.target, exist_ok=True)
        return
    if not replace and os.path.lexists(copy.target):
        raise Exists(f"{copy.target}: is there already")
    part = f"{copy.target}.{secrets.token_hex(4)}.part"
    with client.open(copy.source, "rb") as source:
        try:
            with open(part, "xb") as target:
                _pump(source, target, advance)
            os.replace(part, copy.target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise


def _pump(source: IO[Any], target: IO[Any], advance: Advance) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    readinto: Callable[[memoryview], int] = getattr(source, "readinto")  # noqa: B009 - IO has none in its type
    while count := readinto(buffer):
        target.write(buffer[:count])
        advance(count)


# ---------------------------------------------------------------- within the cluster


def remove(
    client: Client, path: str, *, recursive: bool, force: bool, progress: Callable[[int, int], None] | None = None
) -> int:
    """Removes a file, or with ``recursive`` a tree from its leaves; returns how many names went.

    Raises:
        InvalidArgument: the root.
        IsADirectory, NotFound (without ``force``).
    """
    if path == "/":
        raise InvalidArgument("/: is the whole cluster; remove what is in it by name")
    try:
        directory = stat.S_ISDIR(client.lstat(path).st_mode)
    except NotFound:
        if force:
            return 0
        raise
    if not directory:
        client.remove(path)
        return 1
    if not recursive:
        raise IsADirectory(f"{path}: is a directory; remove it with --recursive")
    return client.rmtree(path, progress=progress)
