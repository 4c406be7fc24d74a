"""Blocks: allocated to a client, published into a file, replicated, freed.

Laws:
- A block number is given out once. It is in ``working`` or in ``blocks`` or in neither, never in both.
- ``blocks`` has a row exactly for each extent of an inode; ``worker_blocks`` a row for each worker of each extent.
- What leaves a file or a client goes to ``garbage`` of each worker that has it, until that worker says it is gone.
- A doubted replica does not count: it lies in ``garbage`` too, until its worker has looked and says that it has it
  after all, or that it is gone.
- A generation is the epoch in which the block was allocated: after a restore from an older backup no key means two
  different contents.
"""

from __future__ import annotations

import msgspec

from ..common.errors import FileTooBig, InvalidArgument, IsADirectory, Stale
from ..common.types import FILE_MAX_BYTES
from . import quotas
from .change import Change
from .commands import (
    Allocate,
    Discard,
    DropReplicas,
    DropWorking,
    HeldBlock,
    Publication,
    ReportBadReplica,
    UpdateReplicas,
)
from .records import Block, Extent, Garbage, Held, Inode, Reply, Working, WorkingBlock
from .tables import of_worker, u64

MAX_ALLOCATE = 4096


def allocate(change: Change, command: Allocate) -> Reply:
    """Raises: InvalidArgument."""
    if not 0 < len(command.worker_ids) <= MAX_ALLOCATE:
        raise InvalidArgument(f"cannot allocate {len(command.worker_ids)} blocks at once; 1 to {MAX_ALLOCATE}")
    return Reply(blocks=tuple(allocate_one(change, worker_id) for worker_id in command.worker_ids))


def allocate_one(change: Change, worker_id: str) -> WorkingBlock:
    epoch = change.epoch()
    block, generation = change.next_block(), epoch.epoch if epoch else 1
    change.put("working", u64(block), Working(change.client_id, generation, worker_id, change.now_ns))
    return WorkingBlock(block, generation, worker_id)


def discard(change: Change, command: Discard) -> Reply:
    """Blocks that the client does not own (any more) are passed over: a discard may come twice."""
    if len(command.blocks) > MAX_ALLOCATE:
        raise InvalidArgument(f"cannot discard {len(command.blocks)} blocks at once; up to {MAX_ALLOCATE}")
    for block in command.blocks:
        working = change.find_working(block)
        if working is not None and working.client_id == change.client_id:
            drop_working(change, block, working)
    return Reply()


def drop_working(change: Change, block: int, working: Working) -> None:
    change.delete("working", u64(block))
    change.put("garbage", of_worker(working.worker_id, block), Garbage(working.generation))


def drop_orphans(change: Change, command: DropWorking) -> Reply:
    """Drops those of the blocks whose client still has no session."""
    for block in command.blocks:
        working = change.find_working(block)
        if working is None:
            continue
        client = change.find_client(working.client_id)
        if client is None or not client.session_id:
            drop_working(change, block, working)
    return Reply()


# ------------------------------------------------------------------ publishing


def publish(change: Change, item: Publication) -> Reply:
    """Makes a committed block (or for block 0: nothing but zeros) the content of a file.

    Raises:
        Stale: the inode is gone, has other content than the client means, or the client does not own the working block
            (any more).
        IsADirectory, InvalidArgument, FileTooBig.
    """
    inode = change.inode(item.inode)
    if inode.is_directory:
        raise IsADirectory(f"inode {item.inode} is a directory; it has no content")
    if not inode.is_regular:
        raise InvalidArgument(f"inode {item.inode} is not a regular file; it has no content")
    check_sizes(item.length_bytes, item.size_bytes)
    if not item.block and item.length_bytes:
        raise InvalidArgument(f"inode {item.inode}: {item.length_bytes} bytes without a block")
    current = inode.extents[0] if inode.extents else None
    if current is not None and item.block == current.block and item.generation == current.generation:
        return _publish_again(change, item, inode, current)
    if item.if_version and item.if_version != inode.version:
        raise Stale(f"inode {item.inode}: its content is version {inode.version} now, not {item.if_version}")
    working = take_working(change, item.block, item.generation) if item.block else None
    check_worker(change, item.worker_id)
    quotas.check_room(change, inode.quota, item.length_bytes - length_of(inode))
    new = replace_content(
        change,
        item.inode,
        inode,
        working,
        block=item.block,
        length_bytes=item.length_bytes,
        size_bytes=item.size_bytes,
        digest=item.digest,
        sealed=item.sealed,
        worker_id=item.worker_id,
        mtime_ns=item.mtime_ns or change.now_ns,
    )
    change.touch_inode(item.inode, new.parents, content=True)
    return Reply(inode=item.inode, attributes=new)


def _publish_again(change: Change, item: Publication, inode: Inode, current: Extent) -> Reply:
    """The same block: the request came twice, or an unsealed block has grown or was sealed. Raises: Stale."""
    if item.length_bytes == current.length_bytes and (current.sealed or not item.sealed):
        return Reply(inode=item.inode, attributes=inode)
    if current.sealed or not item.length_bytes:
        raise Stale(f"block {item.block:016x} is sealed with {current.length_bytes} bytes; it cannot change")
    grown_bytes = item.length_bytes - current.length_bytes
    quotas.check_room(change, inode.quota, grown_bytes)
    quotas.add(change, inode.quota, grown_bytes)
    grown = msgspec.structs.replace(
        current,
        length_bytes=item.length_bytes,
        valid_bytes=item.length_bytes,
        digest=item.digest,
        sealed=item.sealed,
    )
    new = msgspec.structs.replace(
        inode,
        extents=(grown,),
        size_bytes=item.size_bytes,
        mtime_ns=item.mtime_ns or change.now_ns,
        ctime_ns=change.now_ns,
        version=inode.version + 1,
    )
    change.put_inode(item.inode, new)
    change.touch_inode(item.inode, new.parents, content=True)
    return Reply(inode=item.inode, attributes=new)


def length_of(inode: Inode) -> int:
    """What a file counts with: what its block takes, holes at its end not."""
    return inode.extents[0].length_bytes if inode.extents else 0


def check_worker(change: Change, worker_id: str) -> None:
    """Raises: InvalidArgument: nobody of that name ever registered. (Empty: the worker it was allocated on.)"""
    if worker_id and change.find_worker(worker_id) is None:
        raise InvalidArgument(f"worker {worker_id!r} is not known")


def check_sizes(length_bytes: int, size_bytes: int) -> None:
    """Raises: FileTooBig, InvalidArgument."""
    if size_bytes > FILE_MAX_BYTES:
        raise FileTooBig(f"a file of {size_bytes} bytes; the limit is {FILE_MAX_BYTES}")
    if size_bytes < length_bytes:
        raise InvalidArgument(f"size {size_bytes} is less than the block's {length_bytes} bytes")


def take_working(change: Change, block: int, generation: int) -> Working:
    """The client's working block, which stays in its table until ``replace_content``. Raises: Stale."""
    working = change.find_working(block)
    if working is None or working.client_id != change.client_id or working.generation != generation:
        raise Stale(f"block {block:016x}.{generation} is not a working block of this client (any more)")
    return working


def replace_content(
    change: Change,
    number: int,
    inode: Inode,
    working: Working | None,
    *,
    block: int,
    length_bytes: int,
    size_bytes: int,
    digest: int,
    sealed: bool,
    worker_id: str,
    mtime_ns: int,
) -> Inode:
    """Puts the working block in place of the file's content and writes the inode; returns it."""
    free_extents(change, inode)
    extents: tuple[Extent, ...] = ()
    if working is not None:
        change.delete("working", u64(block))
        if length_bytes:
            holder = worker_id or working.worker_id
            extents = (Extent(block, working.generation, length_bytes, length_bytes, digest, sealed, (holder,)),)
            change.put("blocks", u64(block), Block(number, working.generation))
            change.put("worker_blocks", of_worker(holder, block), Held(working.generation, change.now_ns))
            change.count.blocks += 1
            quotas.add(change, inode.quota, length_bytes)
            change.stored(inode, extents[0], (holder,), quotas.chain(change, inode.quota))
        else:  # an empty file needs no block
            change.put("garbage", of_worker(working.worker_id, block), Garbage(working.generation))
    new = msgspec.structs.replace(
        inode,
        extents=extents,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        ctime_ns=change.now_ns,
        version=inode.version + 1,
    )
    change.put_inode(number, new)
    return new


def free_extents(change: Change, inode: Inode) -> None:
    """The file's block leaves it; the caller writes or deletes the inode."""
    for extent in inode.extents:
        quotas.add(change, inode.quota, -extent.length_bytes)
        change.freed(extent, extent.workers, quotas.chain(change, inode.quota))
        change.delete("blocks", u64(extent.block))
        change.count.blocks -= 1
        if not extent.workers:
            change.count.without_replica -= 1
        for worker_id in extent.workers:
            _release(change, worker_id, extent.block, extent.generation)


def _release(change: Change, worker_id: str, block: int, generation: int) -> None:
    change.delete("worker_blocks", of_worker(worker_id, block))
    change.put("garbage", of_worker(worker_id, block), Garbage(generation))


# ------------------------------------------------------------------ replicas


def update_replicas(change: Change, command: UpdateReplicas) -> Reply:
    for held in command.added:
        _add_replica(change, command.worker_id, held)
    for block, generation in command.removed:
        change.delete("garbage", of_worker(command.worker_id, block))
        _remove_replica(change, command.worker_id, block, generation)
    return Reply()


def _add_replica(change: Change, worker_id: str, held: HeldBlock) -> None:
    """Only what matches the file's extent becomes a replica; what nobody knows becomes garbage."""
    found = change.extent_of(held.block, held.generation)
    if found is None:
        working = change.find_working(held.block)
        if working is None or working.generation != held.generation:
            change.put("garbage", of_worker(worker_id, held.block), Garbage(held.generation))
        return
    number, inode, extent = found
    if worker_id in extent.workers:
        return
    if held.length_bytes != extent.length_bytes or (extent.digest and held.digest != extent.digest):
        change.put("garbage", of_worker(worker_id, held.block), Garbage(held.generation))
        return
    if not extent.workers:
        change.count.without_replica -= 1
    _put_workers(change, number, inode, extent, (*extent.workers, worker_id))
    change.delete("garbage", of_worker(worker_id, held.block))
    change.put("worker_blocks", of_worker(worker_id, held.block), Held(held.generation, change.now_ns))
    change.stored(inode, extent, (worker_id,))


def _remove_replica(change: Change, worker_id: str, block: int, generation: int) -> bool:
    found = change.extent_of(block, generation)
    if found is None or worker_id not in found[2].workers:
        return False
    number, inode, extent = found
    change.freed(extent, (worker_id,))
    change.delete("worker_blocks", of_worker(worker_id, block))
    left = tuple(other for other in extent.workers if other != worker_id)
    if not left:
        change.count.without_replica += 1
    _put_workers(change, number, inode, extent, left)
    return True


def _put_workers(change: Change, number: int, inode: Inode, extent: Extent, workers: tuple[str, ...]) -> None:
    new = msgspec.structs.replace(inode, extents=(msgspec.structs.replace(extent, workers=workers),))
    change.put_inode(number, new)
    change.touch_inode(number, inode.parents)


def report_bad_replica(change: Change, command: ReportBadReplica) -> Reply:
    """Drops the replica until its worker has looked at it, also when it is the last one: bad bytes are not served
    again, and good ones are not deleted on the word of somebody whose memory or network may be at fault."""
    if _remove_replica(change, command.worker_id, command.block, command.generation):
        doubted = Garbage(command.generation, doubted=True)
        change.put("garbage", of_worker(command.worker_id, command.block), doubted)
    return Reply()


def drop_replicas(change: Change, command: DropReplicas) -> Reply:
    """What has too few others stays: the tables may have changed since the command was made."""
    live = set(command.live_workers) - {command.worker_id}
    for block, generation, others in command.blocks:
        found = change.extent_of(block, generation)
        if found is None or len(live.intersection(found[2].workers)) < max(1, others):
            continue
        if _remove_replica(change, command.worker_id, block, generation):
            change.put("garbage", of_worker(command.worker_id, block), Garbage(generation))
    return Reply()
