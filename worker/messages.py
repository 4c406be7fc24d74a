"""Between this worker's records and the messages on the wire."""

from __future__ import annotations

import errno

from ..common.types import BlockKey
from ..proto import master_pb2, worker_pb2
from .block_store import BlockStore
from .copier import Result
from .index import BlockRecord
from .reports import Report


def key_from(message: master_pb2.BlockKey) -> BlockKey:
    return BlockKey(message.block, message.generation)


def key_message(key: BlockKey) -> master_pb2.BlockKey:
    return master_pb2.BlockKey(block=key.block, generation=key.generation)


def report_message(report: Report) -> master_pb2.BlockReport:
    return master_pb2.BlockReport(
        block=report.key.block,
        generation=report.key.generation,
        length_bytes=report.length_bytes,
        digest=report.digest,
        working=report.working,
    )


def copy_result_message(result: Result) -> master_pb2.CopyResult:
    error = result.error
    return master_pb2.CopyResult(
        block=result.key.block,
        generation=result.key.generation,
        error_number=(error.errno or errno.EIO) if error is not None else 0,
        message=error.message[:500] if error is not None else "",
        bad_sources=result.bad_sources,
    )


def block_file_message(record: BlockRecord | None) -> worker_pb2.BlockFile:
    """Empty for a block that has an errno instead."""
    if record is None:
        return worker_pb2.BlockFile()
    return worker_pb2.BlockFile(length_bytes=record.length_bytes, checksums=record.checksums, digest=record.digest)


def disk_messages(store: BlockStore) -> list[master_pb2.Disk]:
    messages = []
    for disk in store.disks:
        space = store.catalog.space_of(disk)
        messages.append(
            master_pb2.Disk(
                path=str(disk.path),
                capacity_bytes=space.capacity_bytes,
                used_bytes=space.used_bytes,
                available_bytes=max(0, space.available_bytes),
                failed=disk.failed,
                blocks=disk.blocks,
            )
        )
    return messages
