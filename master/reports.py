"""What a worker says it has, against what the tables say: pure comparison of one page of a full report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..common.errors import InvalidArgument
from .commands import HeldBlock
from .records import Held
from .tables import PAGE_ROWS, from_u64, of_worker, rows
from .view import View

REPORT_PAGE_MAX = 16_384
LAST_BLOCK = (1 << 64) - 1
MARGIN_NS = 60_000_000_000
"""A replica this young is not dropped for missing in a report: the worker may have listed its files before."""


@dataclass
class Differences:
    added: list[HeldBlock] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)
    unknown: list[tuple[int, int]] = field(default_factory=list)


def check_order(blocks: Sequence[int], first: int) -> None:
    """Raises: InvalidArgument: not ascending, or below where the report has come to."""
    previous = first - 1
    for block in blocks:
        if block <= previous:
            raise InvalidArgument(f"full report: block {block:016x} after {previous:016x}; they must ascend")
        previous = block


def compare(
    view: View,
    worker_id: str,
    page: Sequence[tuple[HeldBlock, bool]],
    first: int,
    last: int,
    started_ns: int,
) -> Differences:
    """``page`` lists all that the worker has of blocks ``first`` to ``last``, with whether each is still working."""
    result = Differences()
    held = _held(view, worker_id, first, last)
    reported = {block.block for block, _ in page}
    good: dict[int, int] = {}
    for block, working in page:
        if not _is_known(view, block, working):
            result.unknown.append((block.block, block.generation))
            continue
        good[block.block] = block.generation
        if block.block not in held and _is_replica(view, block) and not _is_ordered(view, worker_id, block):
            result.added.append(block)
    for number, record in held.items():
        missing = number not in reported
        if good.get(number) != record.generation and not (missing and record.since_ns >= started_ns - MARGIN_NS):
            result.removed.append((number, record.generation))
    for key, _ in rows(view.reader, "garbage", of_worker(worker_id), of_worker(worker_id, first)):
        number = from_u64(key)
        if number > last:
            break
        if number not in reported:
            result.removed.append((number, 0))
    return result


def _is_known(view: View, block: HeldBlock, working: bool) -> bool:
    owned = view.find_working(block.block)
    if owned is not None and owned.generation == block.generation:
        return True
    return not working and _is_replica(view, block)


def _is_ordered(view: View, worker_id: str, block: HeldBlock) -> bool:
    """Whether the worker was told to delete it, or to look at it, and has not said yet that it did: until then it does
    not count."""
    order = view.find_garbage(worker_id, block.block)
    return order is not None and order.generation == block.generation


def _is_replica(view: View, block: HeldBlock) -> bool:
    """Whether it is, byte for byte, what a file has."""
    found = view.extent_of(block.block, block.generation)
    if found is None:
        return False
    extent = found[2]
    return block.length_bytes == extent.length_bytes and (not extent.digest or block.digest == extent.digest)


def _held(view: View, worker_id: str, first: int, last: int) -> dict[int, Held]:
    result: dict[int, Held] = {}
    start = first
    while page := view.held(worker_id, start):
        for number, record in page:
            if number > last:
                return result
            result[number] = record
        if len(page) < PAGE_ROWS or page[-1][0] == LAST_BLOCK:
            return result
        start = page[-1][0] + 1
    return result
