"""Many whole files into caller-owned memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.errors import BlockCorrupt, BlockMissing, Busy, HearthError, InvalidArgument, NotFound, Stale, TooBig
from ..common.telemetry import get_logger
from ..proto import master_pb2 as pb
from . import packed_names, paths
from .batch import Group, byte_view, check_lengths, group, group_size
from .core import Core
from .deadline import Deadline
from .layout import Version
from .local_socket import MAX_BLOCKS
from .open_version import OpenVersion
from .packed_names import LookupResult
from .paths import Name, Path
from .reader import LocalBlock
from .workers import Lost

log = get_logger(__name__)


def lookup_many(
    core: Core, directory: Path, names: Sequence[Name], want_layout: bool, deadline: Deadline
) -> LookupResult:
    """One call for up to 8,192 names. A missing directory is all misses; so is a name that cannot be one."""
    return _lookup(core, paths.normalise(directory), paths.encode_all(names), want_layout, deadline)


def _lookup(
    core: Core, directory: bytes, names: Sequence[bytes], want_layout: bool, deadline: Deadline
) -> LookupResult:
    found: list[bool] = []
    versions: list[Version | None] = []
    replicate = False
    for part in packed_names.split(names):
        request = pb.LookupManyRequest(
            path=directory,
            names=packed_names.pack(part),
            want_layout=want_layout,
            prefer_node=core.workers.node_id,
        )
        some = packed_names.result(core.metadata.lookup_many(request, deadline), len(part), want_layout)
        found += some.found
        versions += some.versions
        replicate = some.replicate_on_read
    return LookupResult(found, versions, replicate)


@dataclass
class _Item:
    """One file on its way into ``view``. ``replicate``: a copy of it is to stay on this node."""

    index: int
    directory: bytes
    name: bytes
    version: Version
    view: memoryview
    replicate: bool


def get_many(
    core: Core,
    items: Sequence[Path],
    buffers: Sequence[object],
    directory: Path | None,
    deadline: Deadline,
    known: LookupResult | None = None,
) -> list[HearthError | None]:
    """Fills buffer i with the bytes of file i, all verified; None in the result for each that is complete.

    ``known``: what ``lookup_many`` with layouts said of these names in ``directory``; the master is then asked only
    about files whose bytes are where it said no more.

    An error is the item's own: NotFound (a miss: no such file, or none of its replicas lives), InvalidArgument (the
    file's size is not the buffer's), BlockCorrupt, Unavailable, DeadlineExceeded. The contents of its buffer are
    undefined then.

    Raises:
        InvalidArgument: not as many buffers as paths.
    """
    check_lengths(items, buffers)
    results: list[HearthError | None] = [None] * len(items)
    wanted: list[_Item] = []
    for each in group(items, directory, results):
        try:
            wanted += _located(core, each, buffers, results, deadline, known)
        except HearthError as error:
            for index in each.indexes:
                results[index] = error
    _read_all(core, wanted, results, deadline)
    return results


def _located(
    core: Core,
    each: Group,
    buffers: Sequence[object],
    results: list[HearthError | None],
    deadline: Deadline,
    known: LookupResult | None,
) -> list[_Item]:
    found = known.part(each.indexes) if known else _lookup(core, each.directory, each.names, True, deadline)
    wanted = []
    for name, index, version in zip(each.names, each.indexes, found.versions, strict=True):
        try:
            view = byte_view(buffers[index], writable=True)
            fitting = _fitting(each.directory, name, version, view)
            wanted.append(_Item(index, each.directory, name, fitting, view, found.replicate_on_read))
        except HearthError as error:
            results[index] = error
    return wanted


def _read_all(core: Core, wanted: list[_Item], results: list[HearthError | None], deadline: Deadline) -> None:
    silent = core.reader.local_worker_id() in core.workers.silence
    here = [item for item in wanted if item.version.key and core.reader.is_local(item.version) and not silent]
    local = {item.index for item in here}
    size = group_size(len(here), core.crew.threads, MAX_BLOCKS)

    def one(number: int) -> None:
        _read_group(core, here[number * size : (number + 1) * size], results, deadline)

    # A thread waits for the descriptors of one group while others read; who has nothing left to take helps inside.
    core.crew.for_each(-(-len(here) // size), one)
    _read_group(core, [item for item in wanted if item.index not in local], results, deadline, local=False)


def _read_group(
    core: Core, some: list[_Item], results: list[HearthError | None], deadline: Deadline, *, local: bool = True
) -> None:
    """Descriptors are held for a group per thread at a time, so that a batch of any size needs few."""
    blocks: list[LocalBlock | HearthError | None] = [None] * len(some)
    if local and some:
        try:
            blocks = list(core.reader.open_local([item.version for item in some], deadline))
        except (Busy, TooBig) as error:
            if len(some) > 1:  # out of descriptors, or of room in a message: fewer at a time
                half = len(some) // 2
                _read_group(core, some[:half], results, deadline)
                _read_group(core, some[half:], results, deadline)
                return
            log.info("read-by-network", block=str(some[0].version.key), reason=error.message)
        except Lost:
            pass  # by the network then; ``Workers`` has said so

    def one(position: int) -> None:
        item, block, brought = some[position], blocks[position], None
        try:
            if not local and item.replicate:
                block = brought = core.reader.bring_here(item.version, deadline)
            _read_one(core, item, block, deadline)
        except HearthError as error:
            results[item.index] = error
        finally:
            if brought is not None:
                brought.close()

    try:
        core.crew.for_each(len(some), one)
    finally:
        for block in blocks:
            if isinstance(block, LocalBlock):
                block.close()


def _read_one(core: Core, item: _Item, block: LocalBlock | HearthError | None, deadline: Deadline) -> None:
    """The version that was looked up; when its bytes are gone, the one that took its place meanwhile."""
    deadline.left_s(item.version.what)
    local = block if isinstance(block, LocalBlock) else None
    bad = [core.reader.local_worker_id()] if isinstance(block, BlockMissing | BlockCorrupt) else []
    try:
        OpenVersion(core.reader, item.version, local, bad=bad).read(0, item.view, deadline)
        return
    except (Stale, BlockMissing):
        (now,) = _lookup(core, item.directory, [item.name], True, deadline).versions
    opened = core.open_version(_fitting(item.directory, item.name, now, item.view), deadline)
    try:
        opened.read(0, item.view, deadline)
    finally:
        opened.close()


def _fitting(directory: bytes, name: bytes, version: Version | None, view: memoryview) -> Version:
    """Raises: NotFound, InvalidArgument."""
    if version is None:
        shown = paths.decode(paths.join(directory, name))
        raise NotFound(f"{shown!r} does not exist, or none of its replicas is reachable")
    if version.size_bytes != len(view):
        shown = paths.decode(paths.join(directory, name))
        raise InvalidArgument(f"{shown!r} has {version.size_bytes} bytes, its buffer {len(view)}")
    return version
