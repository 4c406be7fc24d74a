"""Many whole files from caller-owned memory: written side by side, then made visible by one call for each directory.

A file that exists keeps its attributes and gets a new version. Whatever fails leaves an item's old state untouched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..common.checksums import CHUNK_BYTES, checksum, pack
from ..common.errors import BlockMissing, HearthError, InvalidArgument, Stale, from_errno
from ..common.telemetry import get_logger
from ..proto import master_pb2 as pb
from ..proto import worker_pb2
from . import packed_names, paths
from .batch import Group, byte_view, check_lengths, group, group_size
from .core import Core, process_umask
from .deadline import Deadline
from .drafts import Allocated, Committed, LocalDraft, commit_error, committed, create_request, wire_key
from .local_socket import MAX_BLOCKS
from .paths import Path
from .writer import PLACES, Full

log = get_logger(__name__)

STEP_S = 5.0
SLOW_BYTES_PER_S = 50 << 20
"""A worker that is slower counts as one that hangs, as long as there is another to try."""


@dataclass(frozen=True)
class PutOptions:
    """``keep_existing``: a readable file of that name stays as it is. ``wait_for_caches``: return when no mount shows
    the old state any more. ``sync``: the bytes are on the disk, too. ``depths``: of each file, how deep it lies in its
    prompt; of files in a cache directory that are equally old the deepest is evicted first."""

    keep_existing: bool = False
    wait_for_caches: bool = True
    sync: bool = False
    mode: int = 0o666
    depths: Sequence[int] = ()


@dataclass(eq=False)
class _Item:
    index: int
    directory: int
    name: bytes
    view: memoryview
    block: Committed | None = None


def put_many(
    core: Core,
    items: Sequence[Path],
    buffers: Sequence[object],
    directory: Path | None,
    options: PutOptions,
    make_directory: Callable[[bytes], int],
    deadline: Deadline,
) -> list[HearthError | None]:
    """File i becomes the bytes of buffer i, whole; None in the result for each that did.

    An error is the item's own: NoSpace, IsADirectory, Exists (a name that is no file), Unavailable, DeadlineExceeded.

    Args:
        make_directory: gives a directory's inode, made when it is missing.

    Raises:
        InvalidArgument: not as many buffers (or depths) as paths.
    """
    check_lengths(items, buffers)
    if options.depths and len(options.depths) != len(items):
        raise InvalidArgument(f"{len(items)} paths and {len(options.depths)} depths; none, or one for each path")
    results: list[HearthError | None] = [None] * len(items)
    wanted: list[_Item] = []
    for each in group(items, directory, results):
        try:
            wanted += _items(each, make_directory(each.directory), buffers, results)
        except HearthError as error:
            for index in each.indexes:
                results[index] = error
    size = group_size(len(wanted), core.crew.threads, MAX_BLOCKS)

    def one(number: int) -> None:
        _Batch(core, options, deadline, results).put(wanted[number * size : (number + 1) * size])

    # A thread waits for master and worker over one group while others write.
    core.crew.for_each(-(-len(wanted) // size), one)
    return results


def _items(each: Group, directory: int, buffers: Sequence[object], results: list[HearthError | None]) -> list[_Item]:
    made = []
    for name, index in zip(each.names, each.indexes, strict=True):
        try:
            made.append(_Item(index, directory, name, byte_view(buffers[index], writable=False)))
        except HearthError as error:
            results[index] = error
    return made


class _Batch:
    """Up to 64 files on their way. ``results`` is the whole call's."""

    def __init__(self, core: Core, options: PutOptions, deadline: Deadline, results: list[HearthError | None]) -> None:
        self._core = core
        self._options = options
        self._deadline = deadline
        self._step = deadline
        self._results = results

    def put(self, items: list[_Item]) -> None:
        """Writes and publishes; what a worker refuses goes to another, twice. So does a block that the master gave up
        meanwhile, because this process was away for long: the bytes are still at hand."""
        avoid: list[str] = []
        left = items
        for attempt in range(1, PLACES + 1):
            last = attempt == PLACES
            least_s = STEP_S + sum(len(item.view) for item in left) / SLOW_BYTES_PER_S
            self._step = self._deadline if last else self._deadline.part(0.5, least_s)
            failed = self._write_all(left, avoid, last=last)
            failed += self._publish([item for item in left if item not in failed and not self._results[item.index]])
            left = failed
            if not left:
                return

    def _write_all(self, items: list[_Item], avoid: list[str], *, last: bool) -> list[_Item]:
        """Gives those items their committed block; returns those that may succeed elsewhere."""
        try:
            places = self._core.writer.allocate(
                len(items), max(len(item.view) for item in items), self._deadline, avoid
            )
        except HearthError as error:
            for item in items:
                self._results[item.index] = self._results[item.index] or error
            return []
        failed: list[_Item] = []
        by_worker: dict[str, list[tuple[_Item, Allocated]]] = {}
        for item, place in zip(items, places, strict=True):
            by_worker.setdefault(place.worker.worker_id, []).append((item, place))
        for worker_id, pairs in by_worker.items():
            errors = self._write_to(worker_id, pairs)
            self._core.writer.discard([place.key for (_, place), error in zip(pairs, errors, strict=True) if error])
            for (item, _), problem in zip(pairs, errors, strict=True):
                self._results[item.index] = problem
                if isinstance(problem, (*Full, BlockMissing)) and not last:
                    failed.append(item)
                    if worker_id not in avoid:
                        avoid.append(worker_id)
                        log.warning("put-moves", worker=worker_id, reason=problem.message)
        return failed

    def _write_to(self, worker_id: str, pairs: list[tuple[_Item, Allocated]]) -> list[HearthError | None]:
        """Bytes and checksums to one worker, then one commit for all."""
        errors: list[HearthError | None] = [None] * len(pairs)
        packed = [b""] * len(pairs)
        local = worker_id == self._core.workers.local_id()
        drafts = self._open_local(pairs, errors) if local else [None] * len(pairs)

        def one(position: int) -> None:
            item, place = pairs[position]
            try:
                if errors[position] is None:
                    packed[position] = self._write(item.view, place, drafts[position])
            except HearthError as error:
                errors[position] = error

        try:
            self._core.crew.for_each(len(pairs), one)
        finally:
            for draft in drafts:
                if draft is not None:
                    draft.close()
        self._commit([position for position, error in enumerate(errors) if error is None], pairs, packed, errors)
        return errors

    def _open_local(
        self, pairs: list[tuple[_Item, Allocated]], errors: list[HearthError | None]
    ) -> list[LocalDraft | None]:
        drafts: list[LocalDraft | None] = [None] * len(pairs)
        try:
            request = create_request([place.key for _, place in pairs])
            with self._core.workers.local_call(request, self._step.part(0.5, 2.0)) as reply:
                for position, (_, place) in enumerate(pairs):
                    errors[position] = reply.error(position)
                    if errors[position] is None:
                        file = reply.message.blocks[position]
                        drafts[position] = LocalDraft(
                            place, reply.take(position), file.length_bytes, file.limit_bytes, self._core.workers
                        )
        except HearthError as error:
            for draft in drafts:
                if draft is not None:
                    draft.close()
            errors[:] = [error] * len(pairs)
            return [None] * len(pairs)
        return drafts

    def _write(self, view: memoryview, place: Allocated, draft: LocalDraft | None) -> bytes:
        """Returns the packed checksums, computed from the caller's memory."""
        if draft is None:
            self._core.workers.write(place.worker, place.key, 0, view, self._step)
            return pack([checksum(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES)])
        draft.write(0, view, self._step)
        return draft.packed()

    def _commit(
        self,
        positions: list[int],
        pairs: list[tuple[_Item, Allocated]],
        packed: list[bytes],
        errors: list[HearthError | None],
    ) -> None:
        if not positions:
            return
        request = worker_pb2.ControlRequest(
            commit=worker_pb2.CommitBlocks(
                items=[
                    worker_pb2.CommitItem(
                        key=wire_key(pairs[position][1].key),
                        length_bytes=len(pairs[position][0].view),
                        checksums=packed[position],
                    )
                    for position in positions
                ],
                sync=self._options.sync,
            )
        )
        try:
            with self._core.workers.persist(pairs[0][1].worker, request, self._step) as reply:
                for order, position in enumerate(positions):
                    item, place = pairs[position]
                    errors[position] = commit_error(reply, order, place)
                    if errors[position] is None:
                        item.block = committed(place, len(item.view), packed[position], reply.message.blocks[order])
        except HearthError as error:
            for position in positions:
                errors[position] = error

    def _publish(self, items: list[_Item]) -> list[_Item]:
        """Returns those whose block was not known any more."""
        stale: list[_Item] = []
        by_call: dict[tuple[int, str], list[_Item]] = {}
        for item in items:
            assert item.block is not None
            by_call.setdefault((item.directory, item.block.worker_id), []).append(item)
        for (directory, worker_id), some in by_call.items():
            lost: list[_Item] = []
            try:
                reply = self._core.metadata.mutate(self._request(directory, worker_id, some), self._deadline)
                for item, number in zip(some, reply.errnos, strict=True):
                    if number:
                        error = from_errno(number, f"cannot put {paths.decode(item.name)!r}: {os.strerror(number)}")
                        self._results[item.index] = error
                        (stale if isinstance(error, Stale) else lost).append(item)
            except HearthError as problem:
                for item in some:
                    self._results[item.index] = problem
                lost = some
            self._core.writer.discard([item.block.key for item in lost if item.block is not None])
        return stale

    def _request(self, directory: int, worker_id: str, items: list[_Item]) -> pb.MutateRequest:
        blocks = [item.block for item in items if item.block is not None]
        put = pb.PutMany(
            parent=directory,
            names=packed_names.pack([item.name for item in items]),
            mode=self._options.mode & ~process_umask(),
            uid=os.geteuid(),
            gid=os.getegid(),
            blocks=[block.key.block for block in blocks],
            generations=[block.key.generation for block in blocks],
            lengths_bytes=[block.length_bytes for block in blocks],
            digests=[block.digest for block in blocks],
            worker_id=worker_id,
            keep_existing=self._options.keep_existing,
            depths=[self._options.depths[item.index] for item in items] if self._options.depths else (),
        )
        return pb.MutateRequest(put_many=put, no_wait=not self._options.wait_for_caches)
