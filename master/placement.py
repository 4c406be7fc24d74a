"""Which worker gets a new block."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..common.errors import NoSpace


class Candidate(NamedTuple):
    worker_id: str
    node_id: str
    available_bytes: int  # for one block


SPREAD_BYTES = 8 << 20
"""Blocks of unknown size count as so much while one call is placed, so that they spread over equal workers."""


def choose(
    candidates: Iterable[Candidate],
    count: int = 1,
    *,
    prefer_node: str,
    size_bytes: int,
    avoid: Collection[str] = (),
) -> list[str]:
    """A worker for each of ``count`` blocks: the preferred node's while it has room, then the one with the most room;
    those to avoid only if there is no other.

    Raises:
        NoSpace: no live worker has room for a block of ``size_bytes``.
    """
    known = list(candidates)
    need, step = max(1, size_bytes), size_bytes or SPREAD_BYTES
    room = {one.worker_id: one.available_bytes for one in known}
    ranked = [
        (one.worker_id in avoid, one.node_id != prefer_node, -one.available_bytes, one.worker_id)
        for one in known
        if one.available_bytes >= need
    ]
    if not known:
        raise NoSpace("no worker is alive; start one with: hearth worker --master ADDRESS --disk DIR")
    heapq.heapify(ranked)
    chosen: list[str] = []
    while len(chosen) < count:
        if not ranked:
            raise NoSpace(
                f"no worker has {need} bytes free for block {len(chosen) + 1} of {count}; "
                f"of {len(known)} the emptiest has {max(room.values())}"
            )
        avoided, elsewhere, _, worker_id = heapq.heappop(ranked)
        chosen.append(worker_id)
        room[worker_id] = max(0, room[worker_id] - (step if room[worker_id] > step else need))
        if room[worker_id] >= need:
            heapq.heappush(ranked, (avoided, elsewhere, -room[worker_id], worker_id))
    return chosen
