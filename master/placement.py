"""Which worker gets a new block."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..common.errors import NoSpace


class Candidate(NamedTuple):
    worker_id: str
    node_id: str
    available_bytes: int  # for one block


def choose(candidates: Iterable[Candidate], *, prefer_node: str, size_bytes: int, avoid: Collection[str] = ()) -> str:
    """The preferred node's worker if it has room, else the one with the most room; ``avoid`` only if there is no other.

    Raises:
        NoSpace: no live worker has room for ``size_bytes``.
    """
    known = list(candidates)
    fit = [one for one in known if one.available_bytes >= max(1, size_bytes)]
    if not fit:
        if not known:
            raise NoSpace("no worker is alive; start one with: hearth worker --master ADDRESS --disk DIR")
        most = max(one.available_bytes for one in known)
        raise NoSpace(f"no worker has {size_bytes} bytes free; of {len(known)} the emptiest has {most}")

    def rank(one: Candidate) -> tuple[bool, bool, int, str]:
        return (one.worker_id not in avoid, one.node_id == prefer_node, one.available_bytes, one.worker_id)

    return max(fit, key=rank).worker_id
