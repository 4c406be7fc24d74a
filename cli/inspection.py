"""One inode as ``hearth stat`` shows it: what the master has, and what each replica says of itself."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator
from typing import Any

from ..common import checksums
from ..common.errors import HearthError
from ..common.types import BlockKey, file_type
from ..proto import common_pb2 as common
from ..proto import worker_pb2
from . import endpoint

Ask = Callable[[str, BlockKey], worker_pb2.ControlReply]


def describe(path: str, entry: common.Entry, ask: Ask = endpoint.replica) -> dict[str, Any]:
    """The record that ``--json`` prints."""
    attributes = entry.attributes
    record: dict[str, Any] = {
        "path": path,
        "type": file_type(attributes.mode),
        "inode": attributes.inode,
        "mode": f"{stat.S_IMODE(attributes.mode):04o}",
        "links": attributes.nlink,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "size_bytes": attributes.size_bytes,
        "version": attributes.version,
        "mtime_ns": attributes.mtime_ns,
        "ctime_ns": attributes.ctime_ns,
        "block": None,
        "replicas": [],
    }
    if entry.symlink_target:
        record["target"] = entry.symlink_target.decode(errors="surrogateescape")
    for extent in entry.extents:
        key = BlockKey(extent.block, extent.generation)
        record["block"] = {
            "key": str(key),
            "length_bytes": extent.length_bytes,
            "valid_bytes": extent.valid_bytes,
            "sealed": extent.sealed,
            "digest": f"{extent.digest:016x}",
        }
        record["replicas"] = [_replica(worker, key, extent, ask) for worker in entry.replicas]
    return record


def _replica(worker: common.WorkerAddress, key: BlockKey, extent: common.Extent, ask: Ask) -> dict[str, Any]:
    record = {
        "worker": worker.worker_id,
        "node": worker.node_id,
        "address": worker.address,
        "suspect": worker.suspect,
        "checksums": [],
    }
    try:
        reply = ask(worker.address, key)
    except HearthError as error:
        return record | {"state": f"does not answer: {error}"}
    number = reply.errnos[0] if reply.errnos else errno.EPROTO
    if number:
        return record | {"state": reply.message or errno.errorcode.get(number, str(number))}
    file = reply.blocks[0]
    record["checksums"] = [f"{each:016x}" for each in checksums.unpack(file.checksums)]
    return record | {"state": judge(extent, file)}


def judge(extent: common.Extent, file: worker_pb2.BlockFile) -> str:
    """``ok``, or how the replica's list differs from what the master has."""
    if file.length_bytes != extent.length_bytes:
        return f"has {file.length_bytes} bytes, not {extent.length_bytes}"
    if extent.digest and checksums.digest(file.checksums, file.length_bytes) != extent.digest:
        return "its checksums are not those of this version"
    return "ok"


def lines(record: dict[str, Any]) -> Iterator[str]:
    yield f"{record['path']}: {record['type']}, {record['size_bytes']} bytes, version {record['version']}"
    owner = f"{record['uid']}:{record['gid']}"
    yield f"  inode {record['inode']}, mode {record['mode']}, owner {owner}, {record['links']} links"
    if "target" in record:
        yield f"  points to {record['target']}"
    block = record["block"]
    if block:
        seal = "sealed" if block["sealed"] else "not sealed"
        yield f"  block {block['key']}, {block['valid_bytes']} of {block['length_bytes']} bytes valid, {seal}"
        yield f"  digest {block['digest']}"
        if not record["replicas"]:
            yield "  no replica on a live worker: cannot be read"
    for replica in record["replicas"]:
        suspect = " (suspect)" if replica["suspect"] else ""
        where = f"{replica['worker']}, node {replica['node']}, {replica['address']}{suspect}"
        yield f"  replica on {where}: {replica['state']}"
        for number, checksum in enumerate(replica.get("checksums", ())):
            yield f"    MiB {number}: {checksum}"
