"""A directory of segments: goes on after the last whole one, and shows no file under its name before it is whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from ..common.errors import Conflict, DataDamaged, HearthError
from . import segment
from .journal import Stored
from .segment import Segment

PARTIAL_NAME = "segment.partial"


class Archive:
    """Held by one process at a time; a context manager.

    Args:
        directory: made when its parent exists.
        segment_bytes: a segment ends with the record that makes it as long as this, or longer.

    Raises (constructor):
        Conflict: somebody else archives into this directory.
        OSError: it cannot be made, read or written.
    """

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._last: tuple[str, Stored] | None = None  # cluster id; a long segment is not read again and again
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise Conflict(f"{directory}: another process archives into it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def last_record(self, cluster_id: str) -> Stored | None:
        """The newest record here, whose segment was read through (or written) by us. Raises: as ``Segment.records``."""
        if self._last is None or self._last[0] != cluster_id:
            segments = segment.listed(self._directory)
            if not segments:
                return None
            self._last = cluster_id, segments[-1].last_record(cluster_id)
        return self._last[1]

    def write(self, cluster_id: str, records: Iterable[Stored]) -> Iterator[Segment]:
        """Gives each segment when it is durable. When ``records`` fails, those that came are kept in one before it
        raises.

        Raises:
            DataDamaged: records with a gap between them.
            OSError: no room, and the like; nothing is left of the last segment.
        """
        source = iter(records)
        record, failure = _next(source, 0)
        path = self._directory / PARTIAL_NAME
        while record is not None:
            first = record.number
            try:
                with open(path, "wb", opener=_private) as file:
                    size_bytes = file.write(segment.header(cluster_id))
                    while True:
                        last = record
                        size_bytes += file.write(segment.packed(last))
                        record, failure = _next(source, last.number + 1)
                        if record is None or size_bytes >= self._segment_bytes:
                            break
                    _sync(file)
                made = segment.named(self._directory, first, last.number)
                os.rename(path, made.path)
                os.fsync(self._fd)
                self._last = cluster_id, last
            finally:
                path.unlink(missing_ok=True)
            yield made
        if failure is not None:
            raise failure


def _next(source: Iterator[Stored], expected: int) -> tuple[Stored | None, HearthError | None]:
    """The next record, or why there is none: nothing for the end. ``expected`` 0: any number."""
    try:
        record = next(source, None)
    except HearthError as error:
        return None, error
    if record is not None and expected and record.number != expected:
        return None, DataDamaged(f"the master sent record {record.number} where {expected} belongs")
    return record, None


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
