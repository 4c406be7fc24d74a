"""Which replicas to make and which to take away. Pure: what is known of blocks and workers in, orders out.

Laws:
- A replica counts while its worker is live or suspect and is not leaving it (draining, or being relieved of the block).
- Nobody is given a block that they have, or were told to delete or to look at and have not answered for.
- A replica leaves only when live workers that stay have as many as are wanted, or as many as there can be.
- What has fewer replicas comes first. No worker is sent more at a time than ``Limits`` allow, nor its last room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .membership import State


class BlockFacts(NamedTuple):
    """A sealed block of a file, as the tables have it."""

    block: int
    generation: int
    length_bytes: int
    digest: int
    workers: tuple[str, ...]
    wanted: int
    ordered: tuple[str, ...] = ()
    """Workers that were told to delete it, or to look at it, and have not said that they did."""


@dataclass
class WorkerFacts:
    """A worker, as its heartbeats have it. The ``*ing`` counts are of copies under way; ``plan`` adds its own."""

    worker_id: str
    node_id: str
    state: State
    draining: bool = False
    capacity_bytes: int = 0
    used_bytes: int = 0
    available_bytes: int = 0
    """For one more block."""
    incoming: int = 0
    incoming_bytes: int = 0
    outgoing: int = 0

    @property
    def accepts(self) -> bool:
        return self.state == "live" and not self.draining


class Limits(NamedTuple):
    """Of copies at one time, to one worker (twice as many from one). A single block may be larger than the bytes."""

    copies: int
    window_bytes: int
    headroom_share: float = 0.02
    """Of its capacity a worker keeps so much free of copies: writers come first."""


class Task(NamedTuple):
    """A block to look after.

    Attributes:
        leaving: workers that shall not have it any more, beside those that are draining.
        targets: only these may get it; None: any.
        failed: targets that were tried in vain; used again when there is no other.
    """

    facts: BlockFacts
    leaving: frozenset[str] = frozenset()
    targets: frozenset[str] | None = None
    failed: frozenset[str] = frozenset()


class Copy(NamedTuple):
    """``target`` is to fetch the block from one of ``sources``, in this order."""

    facts: BlockFacts
    sources: tuple[str, ...]
    target: str


class Drop(NamedTuple):
    """``worker_id`` gives its replica up if ``others`` live workers have one."""

    block: int
    generation: int
    worker_id: str
    others: int


@dataclass
class Plan:
    copies: list[Copy] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    """Blocks with nothing left to do, or that nobody can help now: no live replica."""
    waiting: list[int] = field(default_factory=list)
    """Blocks that no worker has room or a free slot for, or that all have already."""


class Standing(NamedTuple):
    """How a block stands.

    Attributes:
        counted: workers whose replica counts.
        sources: live workers to copy from; suspect ones if there is no live one.
        leaving: live workers that are to give their replica up.
        goal: as many as are wanted, or as many as there can be.
        missing: replicas fewer than are wanted.
    """

    counted: tuple[str, ...]
    sources: tuple[str, ...]
    leaving: tuple[str, ...]
    goal: int
    missing: int

    @property
    def short(self) -> int:
        """So many copies can be made."""
        return max(0, self.goal - len(self.counted))


def standing(facts: BlockFacts, workers: Mapping[str, WorkerFacts], leaving: Collection[str] = ()) -> Standing:
    """
    >>> two = {name: WorkerFacts(name, name, state) for name, state in (("a", "live"), ("b", "lost"), ("c", "live"))}
    >>> standing(BlockFacts(1, 1, 10, 5, ("a", "b"), wanted=2), two).short
    1
    """
    present = [workers[each] for each in facts.workers if each in workers and workers[each].state != "lost"]
    live = [each for each in present if each.state == "live"]
    stays = [each for each in present if not each.draining and each.worker_id not in leaving]
    accepting = sum(each.accepts and each.worker_id not in leaving for each in workers.values())
    goal = max(1, min(facts.wanted, accepting + sum(each.state == "suspect" for each in stays)))
    return Standing(
        counted=tuple(each.worker_id for each in stays),
        sources=tuple(each.worker_id for each in live or present),
        leaving=tuple(each.worker_id for each in live if each not in stays),
        goal=goal,
        missing=max(0, facts.wanted - len(stays)),
    )


def needs_work(facts: BlockFacts, workers: Mapping[str, WorkerFacts], leaving: Collection[str] = ()) -> bool:
    """Whether it is not as it should be and somebody has it to copy from."""
    found = standing(facts, workers, leaving)
    return bool(found.sources) and bool(found.missing or found.leaving)


def plan(tasks: Iterable[Task], workers: Mapping[str, WorkerFacts], limits: Limits) -> Plan:
    """At most one order for each block. ``workers`` is brought up to date with what is ordered."""
    result = Plan()
    ranked = [(standing(task.facts, workers, task.leaving), task) for task in tasks]
    ranked.sort(key=lambda item: len(item[0].counted))
    for found, task in ranked:
        facts = task.facts
        if not found.sources or not (found.missing or found.leaving):
            result.settled.append(facts.block)
        elif found.short:
            copy = _copy(task, found, workers, limits)
            if copy is None:
                result.waiting.append(facts.block)
            else:
                result.copies.append(copy)
        elif not found.leaving:
            result.waiting.append(facts.block)
        else:
            live = sum(workers[each].state == "live" for each in found.counted)
            if live >= found.goal:
                result.drops.append(Drop(facts.block, facts.generation, found.leaving[0], found.goal))
            else:  # one of those that stay is suspect: it comes back, or is lost
                result.waiting.append(facts.block)
    return result


def _copy(task: Task, found: Standing, workers: Mapping[str, WorkerFacts], limits: Limits) -> Copy | None:
    facts = task.facts
    sources = sorted(found.sources, key=lambda each: (workers[each].outgoing, each))
    if workers[sources[0]].outgoing >= 2 * limits.copies:
        return None
    nodes = {workers[each].node_id for each in found.counted}
    fitting = [each for each in workers.values() if _fits(each, task, limits)]
    if not fitting:
        return None
    target = min(
        fitting,
        key=lambda each: (
            each.worker_id in task.failed,
            each.node_id in nodes,
            -(each.available_bytes - each.incoming_bytes) / max(1, each.capacity_bytes),
            each.worker_id,
        ),
    )
    target.incoming += 1
    target.incoming_bytes += facts.length_bytes
    workers[sources[0]].outgoing += 1
    return Copy(facts, tuple(sources), target.worker_id)


def _fits(worker: WorkerFacts, task: Task, limits: Limits) -> bool:
    facts = task.facts
    if not worker.accepts or worker.worker_id in (*facts.workers, *facts.ordered, *task.leaving):
        return False
    if task.targets is not None and worker.worker_id not in task.targets:
        return False
    if worker.incoming >= limits.copies:
        return False
    if worker.incoming and worker.incoming_bytes + facts.length_bytes > limits.window_bytes:
        return False
    headroom = int(worker.capacity_bytes * limits.headroom_share)
    return worker.available_bytes - worker.incoming_bytes >= facts.length_bytes + headroom


class Relief(NamedTuple):
    """``worker_id`` holds so many bytes too many; those below the mean may take them."""

    worker_id: str
    excess_bytes: int
    targets: frozenset[str]


def uneven(workers: Iterable[WorkerFacts], percent: int) -> list[Relief]:
    """Workers that are more than ``percent`` of their capacity above the mean, the fullest first; empty: balanced, or
    nobody can take anything.

    >>> full, empty = WorkerFacts("a", "a", "live", False, 100, 90), WorkerFacts("b", "b", "live", False, 100, 10)
    >>> [(each.worker_id, each.excess_bytes, sorted(each.targets)) for each in uneven([full, empty], 10)]
    [('a', 30, ['b'])]
    """
    taking = [each for each in workers if each.accepts and each.capacity_bytes]
    if not taking:
        return []
    mean = sum(each.used_bytes for each in taking) / sum(each.capacity_bytes for each in taking)
    limit = mean + percent / 100
    targets = frozenset(each.worker_id for each in taking if each.used_bytes / each.capacity_bytes < mean)
    found = [
        Relief(each.worker_id, each.used_bytes - int(limit * each.capacity_bytes), targets)
        for each in taking
        if each.used_bytes > limit * each.capacity_bytes
    ]
    return sorted(found, key=lambda each: -each.excess_bytes) if targets else []
