"""A piece of the journal in a file of its own, named ``<first:020d>-<last:020d>.journal``::

    8 bytes  magic "HearthJn"
    u32      version of the format, 1
    u32      length of the cluster id; the cluster id, UTF-8
    u64      xxh3-64 of all this
    then for each record from the first to the last, without gaps:
    u32      length of the body
    u64      number
    u64      xxh3-64 of the number's 8 bytes and the body
    n bytes  body, as in the journal table (``journal.decode``)

Numbers are big-endian. The name says where the file ends, so that a cut is noticed wherever it is.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import xxhash

from ..common.errors import DataDamaged, NewerFormat, WrongCluster
from .journal import Stored

MAGIC = b"HearthJn"
VERSION = 1
CLUSTER_ID_MAX = 256
"""Bytes; a header that says more is damaged."""
_NAME = re.compile(r"(\d{20})-(\d{20})\.journal")
_FIXED = struct.Struct(">8sII")
_RECORD = struct.Struct(">IQQ")
_U64 = struct.Struct(">Q")


def header(cluster_id: str) -> bytes:
    name = cluster_id.encode()
    start = _FIXED.pack(MAGIC, VERSION, len(name)) + name
    return start + xxhash.xxh3_64_digest(start)


def packed(record: Stored) -> bytes:
    digest = xxhash.xxh3_64_intdigest(_U64.pack(record.number) + record.body)
    return _RECORD.pack(len(record.body), record.number, digest) + record.body


class Segment(NamedTuple):
    """A file that has a segment's name; what is in it is seen when it is read."""

    path: Path
    first: int
    last: int

    def records(self, cluster_id: str) -> Iterator[Stored]:
        """Each is checked before it is given.

        Raises:
            DataDamaged: the file is cut or changed; the text says at which record.
            NewerFormat: a newer version wrote it.
            WrongCluster: it is another cluster's.
            OSError: it cannot be read.
        """
        with self.path.open("rb") as file:
            self._check_header(file, cluster_id)
            for number in range(self.first, self.last + 1):
                yield self._record(file, number)
            if file.read(1):
                raise DataDamaged(
                    f"{self.path}: goes on after record {self.last}, its last by its name; {self._remedy}"
                )

    def last_record(self, cluster_id: str) -> Stored:
        """Reads, and so checks, all of it. Raises: as ``records``."""
        (record,) = deque(self.records(cluster_id), maxlen=1)
        return record

    @property
    def _remedy(self) -> str:
        return "move it away and archive again, while the master has these records"

    def _check_header(self, file: IO[bytes], cluster_id: str) -> None:
        start = file.read(_FIXED.size)
        if start[: len(MAGIC)] != MAGIC or len(start) < _FIXED.size:
            raise DataDamaged(f"{self.path}: is no segment of a journal, or its beginning is damaged; {self._remedy}")
        _, version, length = _FIXED.unpack(start)
        rest = file.read(min(length, CLUSTER_ID_MAX) + 8)
        name, digest = rest[:-8], rest[-8:]
        if version == VERSION and (len(name) != length or xxhash.xxh3_64_digest(start + name) != digest):
            raise DataDamaged(f"{self.path}: its header is cut or damaged; {self._remedy}")
        if version != VERSION:
            raise NewerFormat(f"{self.path}: version {version} of the format, this program knows {VERSION}")
        if name.decode(errors="replace") != cluster_id:
            raise WrongCluster(
                f"{self.path}: is of cluster {name.decode(errors='replace')!r}, not of {cluster_id!r}; "
                "each cluster needs an archive of its own"
            )

    def _record(self, file: IO[bytes], number: int) -> Stored:
        start = file.read(_RECORD.size)
        if len(start) == _RECORD.size:
            length, found, digest = _RECORD.unpack(start)
            body = file.read(length)
            if found == number and xxhash.xxh3_64_intdigest(_U64.pack(number) + body) == digest and len(body) == length:
                return Stored(number, body)
        before = f"; hearth journal restore --to {number - 1} restores what is before it" if number > 1 else ""
        raise DataDamaged(
            f"{self.path}: cut or damaged at record {number} of {self.first} to {self.last}; {self._remedy}{before}"
        )


def named(directory: Path, first: int, last: int) -> Segment:
    return Segment(directory / f"{first:020d}-{last:020d}.journal", first, last)


def listed(directory: Path) -> list[Segment]:
    """All files with a segment's name, in order of their records. Raises: OSError."""
    found = []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            first, last = int(match[1]), int(match[2])
            if 0 < first <= last:
                found.append(Segment(path, first, last))
    return sorted(found, key=lambda segment: (segment.first, segment.last))
