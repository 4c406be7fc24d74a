"""What repair has in hand: blocks to look after and copies that are under way. Soft: a restart loses nothing that the
tables do not tell again. No clock, no network: time is an argument.

Laws:
- A block has one order at a time. It ends by the worker's word or by its deadline; then the block is looked at again.
- Each failure of a block doubles the pause before its next try, up to ``PAUSE_MAX_S``.
- Both collections are bounded; who is refused is found again by the next scan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from .repair_plan import BlockFacts, Copy, Plan, Task, WorkerFacts

NEEDS_MAX = 100_000
FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 60.0
WAITING_PAUSE_S = 2.0
"""A block that nobody can take is looked at again after so long, then after twice as long, up to PAUSE_MAX_S."""
COPY_S = 10.0
SLOW_BYTES_PER_S = 10 << 20
"""A copy may take COPY_S and as long as its bytes need at this speed."""


@dataclass
class Need:
    leaving: frozenset[str] = frozenset()
    targets: frozenset[str] | None = None
    failed: frozenset[str] = frozenset()
    failures: int = 0
    waits: int = 0
    not_before_s: float = 0.0


class Running(NamedTuple):
    copy: Copy
    deadline_s: float


class Repairs:
    """
    Attributes:
        ended: orders by how they ended: "ok", "failed", "late".
    """

    def __init__(self, needs_max: int = NEEDS_MAX) -> None:
        self._needs_max = needs_max
        self._needs: dict[int, Need] = {}
        self._running: dict[int, Running] = {}
        self.ended: Counter[str] = Counter()

    @property
    def room(self) -> int:
        """So many blocks more can be taken."""
        return self._needs_max - len(self._needs)

    @property
    def degraded(self) -> int:
        """Blocks that have too few replicas, as far as they have been found."""
        return sum(not need.leaving for need in self._needs.values())

    @property
    def moves(self) -> int:
        """Blocks that are to leave a worker."""
        return len(self._needs) - self.degraded

    def __len__(self) -> int:
        return len(self._needs)

    def __contains__(self, block: int) -> bool:
        return block in self._needs

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, block: int, leaving: Collection[str] = (), targets: frozenset[str] | None = None) -> bool:
        """A block that needs looking after; False: there is no room to remember it."""
        known = self._needs.get(block)
        if known is None:
            if self.room <= 0:
                return False
            known = self._needs[block] = Need()
        if leaving:
            known.leaving |= frozenset(leaving)
            known.targets = targets
        return True

    def changed(self, block: int) -> bool:
        """As ``add``; if it waited, what it waited for may have come."""
        need = self._needs.get(block)
        if need is not None and need.waits:
            need.waits, need.not_before_s = 0, 0.0
        return self.add(block)

    def due(self, now_s: float, limit: int) -> list[int]:
        """Blocks to look at now: not waiting, and no order for them under way."""
        waiting = (
            block for block, need in self._needs.items() if need.not_before_s <= now_s and block not in self._running
        )
        return list(islice(waiting, limit))

    def task(self, facts: BlockFacts) -> Task:
        need = self._needs[facts.block]
        return Task(facts, need.leaving, need.targets, need.failed)

    def load(self, workers: Iterable[WorkerFacts]) -> None:
        """Adds the copies under way to what is known of the workers."""
        known = {each.worker_id: each for each in workers}
        for running in self._running.values():
            target, source = known.get(running.copy.target), known.get(running.copy.sources[0])
            if target is not None:
                target.incoming += 1
                target.incoming_bytes += running.copy.facts.length_bytes
            if source is not None:
                source.outgoing += 1

    def adopt(self, plan: Plan, now_s: float) -> None:
        """What was planned is under way from now on."""
        for copy in plan.copies:
            deadline_s = now_s + COPY_S + copy.facts.length_bytes / SLOW_BYTES_PER_S
            self._running[copy.facts.block] = Running(copy, deadline_s)
            self._needs[copy.facts.block].waits = 0
        for block in plan.settled:
            self._needs.pop(block, None)
        for block in plan.waiting:
            need = self._needs[block]
            self._postpone(block, now_s + min(PAUSE_MAX_S, WAITING_PAUSE_S * 2 ** min(need.waits, 10)))
            need.waits += 1

    def _postpone(self, block: int, until_s: float) -> None:
        """To the end of the queue, so that those that can be helped are not behind those that cannot."""
        need = self._needs.pop(block, None)
        if need is not None:
            need.not_before_s = until_s
            self._needs[block] = need

    def wake(self) -> None:
        """Another worker takes blocks now: those that wait may have somewhere to go."""
        for need in self._needs.values():
            if need.waits:
                need.waits, need.not_before_s = 0, 0.0

    def forget(self, block: int) -> None:
        """The block is gone."""
        self._needs.pop(block, None)

    def orders(self, worker_id: str, now_s: float) -> list[Running]:
        """Copies that the worker is to make. Told again with each heartbeat until they end: an answer may be lost."""
        return [each for each in self._running.values() if each.copy.target == worker_id and each.deadline_s > now_s]

    def end(self, worker_id: str, block: int, generation: int, *, succeeded: bool, now_s: float) -> None:
        """What the worker says of an order; one that is not known any more is passed over."""
        running = self._running.get(block)
        if running is None or running.copy.target != worker_id or running.copy.facts.generation != generation:
            return
        del self._running[block]
        if succeeded:
            self.ended["ok"] += 1
            need = self._needs.get(block)
            if need is not None:
                need.failures, need.failed = 0, frozenset()
            return
        self._failed(running, "failed", now_s)

    def expire(self, now_s: float, gone: Collection[str] = ()) -> list[Running]:
        """Ends orders that are past their deadline, and those of targets that are ``gone``; returns them."""
        late = [each for each in self._running.values() if each.deadline_s <= now_s or each.copy.target in gone]
        for each in late:
            del self._running[each.copy.facts.block]
            self._failed(each, "late", now_s)
        return late

    def _failed(self, running: Running, how: str, now_s: float) -> None:
        self.ended[how] += 1
        block = running.copy.facts.block
        need = self._needs.get(block)
        if need is None:
            return
        need.failed |= {running.copy.target}
        pause_s = min(PAUSE_MAX_S, FIRST_PAUSE_S * 2 ** min(need.failures, 10))
        need.failures += 1
        self._postpone(block, now_s + pause_s)

    def release(self, worker_id: str) -> None:
        """The worker is not to be relieved any more."""
        for need in self._needs.values():
            if worker_id in need.leaving:
                need.leaving -= {worker_id}
                if not need.leaving:
                    need.targets = None
