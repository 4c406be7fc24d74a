"""Protocol messages to commands, records to protocol messages. Nothing else touches both."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Set

from ..common.errors import InvalidArgument, NameTooLong, TooBig
from ..common.types import NAME_MAX
from ..proto import common_pb2, master_pb2
from . import commands
from .attributes import TIME_MAX_NS
from .lookups import Hit
from .membership import DiskState
from .records import Inode, Ordered, Reply
from .sessions import Invalidation

LOOKUP_NAMES_MAX = 16_384
BATCH_ITEMS_MAX = 4_096

Addresses = Callable[[Iterable[str]], list[common_pb2.WorkerAddress]]
"""Worker ids to the addresses a client may try, best first; without those that are lost."""


# ------------------------------------------------------------------ requests


def names(packed: common_pb2.PackedNames, limit: int) -> list[bytes]:
    """Raises: InvalidArgument, NameTooLong, TooBig."""
    width = packed.width
    if width > NAME_MAX:
        raise NameTooLong(f"names of {width} bytes; the limit is {NAME_MAX}")
    data = packed.packed
    if width == 0 and data:
        raise InvalidArgument("packed names without a width")
    if width and (packed.names or len(data) % width):
        raise InvalidArgument(f"{len(data)} bytes are not whole names of {width} bytes, or names come both ways")
    count = len(data) // width if width else len(packed.names)
    if count > limit:
        raise TooBig(f"{count} names in one call; the limit is {limit}")
    if width:
        return list(struct.unpack(f"{width}s" * count, data))  # five times as fast as slices
    return list(packed.names)


def operation(request: master_pb2.MutateRequest) -> str:
    """Name of the command that ``command`` makes of it."""
    return "".join(part.capitalize() for part in (request.WhichOneof("op") or "").split("_"))


Place = Callable[[str, int, Iterable[str], int], list[str]]
"""``place(prefer_node, size_bytes, avoid, count)`` chooses workers for new blocks. Raises: NoSpace."""


def command(request: master_pb2.MutateRequest, place: Place, live: tuple[str, ...]) -> commands.AnyCommand:
    """The command in a request.

    Raises:
        InvalidArgument, NameTooLong, TooBig: of what the message holds.
        NoSpace: no worker has room for a block.
    """
    kind = request.WhichOneof("op")
    if kind is None:
        raise InvalidArgument("a mutation without an operation, or one that this version does not know")
    if kind in _SIMPLE:
        return _SIMPLE[kind](getattr(request, kind))
    if kind == "create":
        return _create(request.create, place)
    if kind == "allocate":
        return _allocate(request.allocate, place)
    return _put_many(request.put_many, live)


def published_blocks(request: master_pb2.MutateRequest) -> list[int]:
    """Blocks that become files' by it."""
    kind = request.WhichOneof("op")
    if kind == "publish":
        return [request.publish.block] if request.publish.block else []
    return [block for block in request.put_many.blocks if block] if kind == "put_many" else []


def published_in(request: master_pb2.MutateRequest, reply: Reply) -> tuple[int, ...]:
    """Directories in which it published something. (Those of ``publish_many`` are not known: nobody waits for it.)"""
    kind = request.WhichOneof("op")
    if kind == "put_many":
        return (request.put_many.parent,)
    return reply.attributes.parents if kind == "publish" and reply.attributes is not None else ()


def _create(op: master_pb2.Create, place: Place) -> commands.Create:
    worker = place(op.prefer_node, 0, (), 1)[0] if op.allocate else ""
    return commands.Create(op.parent, op.name, op.mode, op.uid, op.gid, op.exclusive, worker)


def _allocate(op: master_pb2.Allocate, place: Place) -> commands.Allocate:
    if not 0 < op.count <= BATCH_ITEMS_MAX:
        raise InvalidArgument(f"cannot allocate {op.count} blocks at once; 1 to {BATCH_ITEMS_MAX}")
    avoid = tuple(op.avoid_workers)
    return commands.Allocate(tuple(place(op.prefer_node, op.size_hint_bytes, avoid, op.count)))


def _put_many(op: master_pb2.PutMany, live: tuple[str, ...]) -> commands.PutMany:
    return commands.PutMany(
        parent=op.parent,
        names=tuple(names(op.names, BATCH_ITEMS_MAX)),
        mode=op.mode,
        uid=op.uid,
        gid=op.gid,
        blocks=tuple(op.blocks),
        generations=tuple(op.generations),
        lengths_bytes=tuple(op.lengths_bytes),
        digests=tuple(op.digests),
        worker_id=op.worker_id,
        keep_existing=op.keep_existing,
        live_workers=live if op.keep_existing else (),
        depths=tuple(op.depths),
    )


def _create_many(op: master_pb2.CreateMany) -> commands.CreateMany:
    listed = tuple(names(op.names, BATCH_ITEMS_MAX))
    return commands.CreateMany(op.parent, listed, op.mode, op.uid, op.gid, op.exclusive)


def _setattr(op: master_pb2.Setattr) -> commands.Setattr:
    given = {
        field: getattr(op, field)
        for field in ("mode", "uid", "gid", "size_bytes", "atime_ns", "mtime_ns")
        if op.HasField(field)
    }
    for field in ("atime_ns", "mtime_ns"):
        if not -TIME_MAX_NS <= given.get(field, 0) <= TIME_MAX_NS:
            raise InvalidArgument(f"{field} {given[field]} is out of range")
    return commands.Setattr(op.inode, **given)


def _publication(op: master_pb2.Publish) -> commands.Publication:
    return commands.Publication(
        inode=op.inode,
        block=op.block,
        generation=op.generation,
        length_bytes=op.length_bytes,
        digest=op.digest,
        sealed=op.sealed,
        worker_id=op.worker_id,
        size_bytes=op.size_bytes,
        mtime_ns=op.mtime_ns,
        if_version=op.if_version,
    )


def _publish_many(op: master_pb2.PublishMany) -> commands.PublishMany:
    if len(op.items) > BATCH_ITEMS_MAX:
        raise TooBig(f"{len(op.items)} files in one call; the limit is {BATCH_ITEMS_MAX}")
    return commands.PublishMany(tuple(_publication(item) for item in op.items))


_SIMPLE: dict[str, Callable[..., commands.AnyCommand]] = {
    "mkdir": lambda op: commands.Mkdir(op.parent, op.name, op.mode, op.uid, op.gid),
    "mknod": lambda op: commands.Mknod(op.parent, op.name, op.mode, op.uid, op.gid, op.rdev),
    "symlink": lambda op: commands.Symlink(op.parent, op.name, op.target, op.uid, op.gid),
    "link": lambda op: commands.Link(op.inode, op.parent, op.name),
    "unlink": lambda op: commands.Unlink(op.parent, op.name),
    "unlink_many": lambda op: commands.UnlinkMany(op.directory, tuple(names(op.names, BATCH_ITEMS_MAX))),
    "evict_many": lambda op: commands.EvictMany(op.directory, tuple(names(op.names, BATCH_ITEMS_MAX))),
    "rmdir": lambda op: commands.Rmdir(op.parent, op.name),
    "rename": lambda op: commands.Rename(op.parent, op.name, op.new_parent, op.new_name, op.flags),
    "setattr": _setattr,
    "set_xattr": lambda op: commands.SetXattr(op.inode, op.name, op.value, op.flags),
    "remove_xattr": lambda op: commands.RemoveXattr(op.inode, op.name),
    "discard": lambda op: commands.Discard(tuple(op.blocks)),
    "publish": lambda op: commands.Publish(_publication(op)),
    "publish_many": _publish_many,
    "create_many": _create_many,
    "report_bad_replica": lambda op: commands.ReportBadReplica(op.block, op.generation, op.worker_id),
}


def disks(listed: Iterable[master_pb2.Disk]) -> tuple[DiskState, ...]:
    return tuple(
        DiskState(d.path, d.capacity_bytes, d.used_bytes, d.available_bytes, d.failed, d.blocks) for d in listed
    )


def held_block(report: master_pb2.BlockReport) -> commands.HeldBlock:
    return commands.HeldBlock(report.block, report.generation, report.length_bytes, report.digest)


# ------------------------------------------------------------------ replies


Sign = Callable[[int, int], bytes]
"""``sign(block, generation)``: the caller's token for it."""


def no_tokens(*_: int) -> bytes:
    """For callers that need none."""
    return b""


def entry(
    number: int, inode: Inode, addresses: Addresses, sign: Sign = no_tokens, *, no_xattrs: bool = False
) -> common_pb2.Entry:
    message = common_pb2.Entry()
    fill_entry(message, number, inode, addresses, sign, no_xattrs=no_xattrs)
    return message


def fill_entry(
    message: common_pb2.Entry,
    number: int,
    inode: Inode,
    addresses: Addresses,
    sign: Sign = no_tokens,
    *,
    no_xattrs: bool = False,
) -> None:
    """Into an empty message where it stands: a message that is made first and then put there is copied."""
    known = message.attributes
    known.inode = number
    known.mode = inode.mode
    known.uid = inode.uid
    known.gid = inode.gid
    known.nlink = inode.nlink
    known.size_bytes = inode.size_bytes
    known.atime_ns = inode.atime_ns
    known.mtime_ns = inode.mtime_ns
    known.ctime_ns = inode.ctime_ns
    known.version = inode.version
    if inode.rdev:
        known.rdev = inode.rdev
    for extent in inode.extents:
        message.extents.add(
            block=extent.block,
            generation=extent.generation,
            length_bytes=extent.length_bytes,
            valid_bytes=extent.valid_bytes,
            digest=extent.digest,
            sealed=extent.sealed,
            token=sign(extent.block, extent.generation),
        )
        message.replicas.extend(addresses(extent.workers))
    if inode.target:
        message.symlink_target = inode.target
    message.parents.extend([parent for parent, _ in inode.links])
    message.no_xattrs = no_xattrs


def mutate_reply(
    reply: Reply, addresses: Addresses, sign: Sign = no_tokens, sign_working: Sign = no_tokens
) -> master_pb2.MutateReply:
    message = master_pb2.MutateReply(errnos=reply.errnos, inodes=reply.inodes, existed=reply.existed)
    if reply.attributes is not None:
        fill_entry(message.entry, reply.inode, reply.attributes, addresses, sign)
    for working in reply.blocks:
        worker = next(iter(addresses((working.worker_id,))), common_pb2.WorkerAddress(worker_id=working.worker_id))
        token = sign_working(working.block, working.generation)
        message.blocks.add(block=working.block, generation=working.generation, worker=worker, token=token)
    return message


def readdir_reply(
    page: Iterable[tuple[int, Ordered, Inode | None]],
    end: bool,
    addresses: Addresses,
    reading: Callable[[Inode], Sign],
    have_xattrs: Set[int],
) -> master_pb2.ReaddirReply:
    """``reading``: the caller's tokens for a file. ``have_xattrs``: the inodes that may have extended attributes."""
    reply = master_pb2.ReaddirReply(end=end)
    for cookie, ordered, inode in page:
        number = ordered.inode
        mode = ordered.type if inode is None else inode.mode
        item = reply.entries.add(name=ordered.name, inode=number, mode=mode, cookie=cookie)
        if inode is not None:
            fill_entry(item.entry, number, inode, addresses, reading(inode), no_xattrs=number not in have_xattrs)
    return reply


def lookup_many_reply(
    directory: int,
    bitmap: bytes,
    hits: list[Hit],
    workers: list[common_pb2.WorkerAddress],
    want_layout: bool,
) -> master_pb2.LookupManyReply:
    reply = master_pb2.LookupManyReply(found=bitmap, directory=directory)
    if want_layout:
        reply.inodes.extend([inode for inode, _, _, _ in hits])
        reply.blocks.extend([extent.block for _, _, extent, _ in hits])
        reply.generations.extend([extent.generation for _, _, extent, _ in hits])
        reply.lengths_bytes.extend([extent.length_bytes for _, _, extent, _ in hits])
        reply.digests.extend([extent.digest for _, _, extent, _ in hits])
        reply.sizes_bytes.extend([layout.size_bytes for _, layout, _, _ in hits])
        reply.worker_indexes.extend([worker for _, _, _, worker in hits])
        reply.valid_bytes.extend([extent.valid_bytes for _, _, extent, _ in hits])
        reply.workers.extend(workers)
    return reply


def invalidation(item: Invalidation) -> master_pb2.Invalidation:
    return master_pb2.Invalidation(directory=item.directory, name=item.name, inode=item.inode, content=item.content)
