"""Which paths of a batch share a directory, and what they are called in it. Pure.

``get_many``, ``put_many`` and ``lookup_many`` cost a few calls however many files they name, because each directory is
asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..common.errors import HearthError, InvalidArgument
from . import paths
from .paths import Name, Path


@dataclass
class Group:
    """The items of one directory: ``indexes[i]`` is the place in the batch of ``names[i]``."""

    directory: bytes
    names: list[bytes] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)


def group(items: Sequence[Path], directory: Path | None, results: list[HearthError | None]) -> list[Group]:
    """One group for each directory, in the order in which they come up. With ``directory``, items are names in it. An
    item that cannot be a path gets its error in ``results`` and no group.

    Raises:
        InvalidArgument, NameTooLong: ``directory`` itself.
    """
    groups: dict[bytes, Group] = {}
    base = paths.normalise(directory) if directory is not None else None
    for index, item in enumerate(items):
        try:
            parent, name = (base, _name(item)) if base is not None else paths.split(item)
        except HearthError as error:
            results[index] = error
            continue
        found = groups.get(parent)
        if found is None:
            found = groups[parent] = Group(parent)
        found.names.append(name)
        found.indexes.append(index)
    return list(groups.values())


def _name(item: Path) -> bytes:
    if not isinstance(item, str | bytes):
        raise InvalidArgument(f"{item!r} is not a name")
    name: Name = item
    return paths.check_name(name)


def group_size(count: int, threads: int, limit: int) -> int:
    """How many items of a batch share one request, so that each thread has two groups or more to do in turn and no
    request is over ``limit``; a few at least, because each group costs a request.

    >>> group_size(100, 2, 64), group_size(1000, 2, 64), group_size(5, 8, 64)
    (25, 64, 8)
    """
    return max(8, min(limit, -(-count // (2 * threads))))


def check_lengths(items: Sequence[object], buffers: Sequence[object]) -> None:
    """Raises: InvalidArgument."""
    if len(items) != len(buffers):
        raise InvalidArgument(f"{len(items)} paths and {len(buffers)} buffers; one buffer for each path")


def byte_view(buffer: object, *, writable: bool) -> memoryview:
    """The caller's memory as plain bytes.

    Raises:
        InvalidArgument: no contiguous buffer, or one that cannot be written.
    """
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]  # no type for "has a buffer" before 3.12
        if writable and view.readonly:
            raise InvalidArgument("the buffer is read-only; bytes are read into caller-owned, writable memory")
        return view.cast("B")
    except TypeError as error:
        raise InvalidArgument(f"not a contiguous buffer: {error}") from None
