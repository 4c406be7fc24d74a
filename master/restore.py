"""A new data directory from a backup and the journal's segments: the tables as they were after one record.

Nothing has the name that a master looks for before all is done, so a restore that fails or is killed leaves nothing
that could be started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..common.errors import DataDamaged, InvalidArgument, NotEmpty, NotFound
from . import journal, machine, segment
from .commands import Request, Restored
from .journal import Stored
from .segment import Segment
from .store import FILE_NAME, RESTORING_NAME, LmdbStore
from .tables import Transaction, u64
from .view import View

EPOCHS_PASSED = 1 << 16
"""More starts than the lost time had; fewer than a running master takes for noise (``core.EPOCH_LEAP_MAX``)."""
NUMBERS_PASSED = 1 << 40
"""More inodes, cookies or blocks than it gave out: a million in a second for twelve days."""
BATCH_RECORDS = 1000
BATCH_BYTES = 8 << 20


class Reached(NamedTuple):
    cluster_id: str
    backup_sequence: int
    sequence: int  # of the last record that was replayed; the one that marks the restore comes after it


def restore(
    backup: Path, segments: Path | None, to: int | None, data: Path, now_ns: int, *, exact: bool = False
) -> Reached:
    """Makes ``data``, which is empty or absent, a master's data directory.

    Args:
        backup: what ``hearth backup`` wrote.
        segments: directory of segments; None: the backup only.
        to: number of the last record to replay; None: all that there are.
        now_ns: stands in the record that marks the restore.
        exact: the tables of that record and nothing more: to look at. A master that starts on it beside workers and
            clients that know the lost time may give out numbers again.

    Raises:
        NotEmpty: there is something in ``data``.
        InvalidArgument: the backup is newer than ``to``, or of another time than the segments.
        NotFound: segments are missing in between, or end before ``to``.
        DataDamaged, NewerFormat, WrongCluster: backup or segments cannot be used; the text says which.
        OSError
    """
    is_new = _make(data)
    work = data / RESTORING_NAME  # while it is there, no master starts on ``data``
    try:
        work.mkdir(mode=0o700)
        _sync(data)
        _copy(backup, work / FILE_NAME)
        try:
            reached = _fill(work, segments, to, now_ns, exact)
        except DataDamaged as error:
            raise DataDamaged(str(error).replace(str(work / FILE_NAME), str(backup))) from None
        _sync(work / FILE_NAME)
        os.rename(work / FILE_NAME, data / FILE_NAME)
        shutil.rmtree(work)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                data.rmdir()
        raise
    _sync(data)
    _sync(data.parent)
    return reached


def _make(data: Path) -> bool:
    """Whether the directory had to be made. Raises: NotEmpty, OSError."""
    is_new = False
    with contextlib.suppress(FileExistsError):
        data.mkdir(mode=0o700)
        is_new = True
    there = [path.name for path in data.iterdir() if path.name != "lost+found"]
    if there:
        raise NotEmpty(f"{data}: is not empty ({', '.join(sorted(there)[:3])}); restore into a new directory")
    return is_new


def _copy(backup: Path, target: Path) -> None:
    with backup.open("rb") as source, target.open("xb") as copy:
        target.chmod(0o600)
        shutil.copyfileobj(source, copy, 1 << 20)


def _fill(work: Path, segments: Path | None, to: int | None, now_ns: int, exact: bool) -> Reached:
    store = LmdbStore(work)
    try:
        store.verify()
        with store.snapshot() as reader:
            cluster, start = View(reader).cluster(), journal.last_number(reader)
        if cluster is None:
            raise DataDamaged(f"{work / FILE_NAME}: has no cluster in it; is it a backup of a master?")
        if to is not None and to < start:
            raise InvalidArgument(f"the backup has all up to record {start}: for --to {to} take an older one")
        reached = start
        if segments is not None:
            reached = _replay(store, segments, cluster.cluster_id, start, to)
        if to is not None and reached < to:
            raise NotFound(f"the backup and the segments end at record {reached}, there is no {to}")
        if not exact:
            with store.batch() as batch:
                outcome = machine.apply(batch, Request(Restored(EPOCHS_PASSED, NUMBERS_PASSED), now_ns))
            error = machine.error_of(outcome.result)
            if error is not None:
                raise error
    finally:
        store.close()
    return Reached(cluster.cluster_id, start, reached)


def _replay(store: LmdbStore, directory: Path, cluster_id: str, start: int, to: int | None) -> int:
    """The number of the last record replayed; ``start`` when there was none. Raises: as ``restore``."""
    reached = start
    records = _records(segment.listed(directory), cluster_id, start, to)
    record = next(records, None)
    while record is not None:
        with store.batch() as batch:
            count = size_bytes = 0
            while record is not None and count < BATCH_RECORDS and size_bytes < BATCH_BYTES:
                if record.number <= start:
                    with batch.step() as txn:
                        _compare(txn, record, directory)
                else:
                    replayed = journal.decode(record.body)
                    if replayed.number != record.number:
                        raise DataDamaged(f"{directory}: record {record.number} says that it is {replayed.number}")
                    machine.replay(batch, replayed)
                    reached = record.number
                count, size_bytes = count + 1, size_bytes + len(record.body)
                record = next(records, None)
    with store.snapshot() as reader:
        if journal.last_number(reader) != reached:
            raise DataDamaged(f"replaying record {reached} of {directory} made {journal.last_number(reader)} of it")
    return reached


def _records(segments: list[Segment], cluster_id: str, start: int, to: int | None) -> Iterator[Stored]:
    """All from the first segment that reaches beyond the backup, which may begin before its end.

    Raises:
        NotFound: records are missing in between.
        DataDamaged, NewerFormat, WrongCluster: of a segment.
    """
    reached = start
    for each in segments:
        if each.last < start or (to is not None and reached >= to):
            continue
        if each.first > reached + 1:
            raise NotFound(
                f"{each.path.parent}: records {reached + 1} to {each.first - 1} are missing before {each.path.name}; "
                f"take a backup that has them, or restore --to {reached}"
            )
        for record in each.records(cluster_id):
            if record.number <= start or record.number == reached + 1:
                yield record
                reached = max(reached, record.number)
            if to is not None and reached >= to:
                break


def _compare(txn: Transaction, record: Stored, directory: Path) -> None:
    """Raises: InvalidArgument: the backup's journal has another record of this number."""
    body = txn.get("journal", u64(record.number))
    if body is not None and body != record.body:
        raise InvalidArgument(
            f"record {record.number} in {directory} is not the backup's: one of them is from before a restore, "
            "the other from after it; take a backup and segments of the same time"
        )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
