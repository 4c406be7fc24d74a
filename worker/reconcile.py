"""After a start: makes index and disk agree, while the worker already serves.

Per disk: files without a record are counted at once and get one (their checksums are computed), records whose file is
gone are dropped and reported, files of another length are moved aside. Nothing here is needed before a block can be
read: opening does the same for the one block.
"""

from __future__ import annotations

from collections.abc import Callable

from ..common.errors import HearthError
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from .block_store import BlockStore
from .disk import Disk, real_bytes

log = get_logger("hearthfs.worker.reconcile")


def reconcile(store: BlockStore, stopping: Callable[[], bool]) -> None:
    """Works through all disks, or until ``stopping()``."""
    for disk in store.disks:
        try:
            _reconcile_disk(store, disk, stopping)
        except OSError as error:
            log.error("reconcile-failed", disk=str(disk.path), error=str(error))


def _reconcile_disk(store: BlockStore, disk: Disk, stopping: Callable[[], bool]) -> None:
    lost = 0
    unknown = []
    for key, status in disk.scan():
        if stopping():
            return
        record = disk.index.get(key)
        if record is None:
            unknown.append(key)
            disk.count_loose(key, real_bytes(status))
        elif record.length_bytes != status.st_size:
            lost += not _is_good(store, key)
    disk.counted = True
    for key in unknown:
        if stopping():
            return
        lost += not _is_good(store, key)
        if disk.index.get(key) is not None or not disk.has_block(key):
            disk.count_loose(key, None)
    for key, record in disk.index.records():
        if stopping():
            return
        if not disk.has_block(key):
            lost += not _is_good(store, key)
            if record is None:
                disk.index.drop(key)
    if unknown or lost:
        log.warning("reconciled", disk=str(disk.path), indexed=len(unknown), lost=lost)


def _is_good(store: BlockStore, key: BlockKey) -> bool:
    """Opening a block does all that is to be done for it."""
    try:
        store.open_read(key).close()
    except HearthError:
        return False
    return True
