"""What the master does by itself, each task on its own timer: one that fails is logged, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from ..common.telemetry import get_logger
from . import journal, metrics
from .capacity import Capacity
from .commands import DropWorking, ForgetClients
from .core import Core
from .expiry import Expiry
from .repairer import Repairer
from .settling import Settling
from .tables import PAGE_ROWS, Batch
from .view import View

MEMBERSHIP_PERIOD_S = 0.25
CLIENTS_PERIOD_S = 5.0
JOURNAL_PERIOD_S = 10.0
READERS_PERIOD_S = 60.0
UNAVAILABLE_PERIOD_S = 5.0
CAPACITY_PERIOD_S = 0.25
ITEMS_PER_ROUND_MAX = 1000
log = get_logger("hearthfs.master")


class Upkeep:
    def __init__(self, core: Core, repairer: Repairer, capacity: Capacity) -> None:
        self._core = core
        self._repairer = repairer
        self._capacity = capacity
        self._expiry = Expiry(core, lambda files, size_bytes: capacity.count("ttl", files, size_bytes))
        self._settling = Settling(core)
        self._tasks: list[asyncio.Task[None]] = []
        self._counted_for: object = None

    def start(self) -> None:
        lease_s = self._core.settings.session_lease_s
        for period_s, task in (
            (min(MEMBERSHIP_PERIOD_S, lease_s / 5), self.expire_sessions),
            (MEMBERSHIP_PERIOD_S, self.age_workers),
            (CLIENTS_PERIOD_S, self.clean_clients),
            (JOURNAL_PERIOD_S, self.trim_journal),
            (READERS_PERIOD_S, self.clear_readers),
            (UNAVAILABLE_PERIOD_S, self.count_unavailable),
            (CAPACITY_PERIOD_S, self._capacity.watch_quotas),
            (self._core.settings.lookup_lease_s, self._capacity.turn_reads),
            (CAPACITY_PERIOD_S, self._expiry.step),
            (CAPACITY_PERIOD_S, self._settling.step),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(period_s, task)))
        self._tasks.append(asyncio.create_task(self._repairer.run()))
        self._tasks.append(asyncio.create_task(self._expiry.load()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, period_s: float, task: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await task()
            except Exception as error:
                metrics.UPKEEP_FAILURES.labels(task.__name__).inc()
                log.warning("upkeep-failed", task=task.__name__, error=str(error))

    async def expire_sessions(self) -> None:
        self._core.watches.expire()
        metrics.SESSIONS.set(len(self._core.sessions))
        metrics.GRANTS.set(self._core.sessions.grants)

    async def age_workers(self) -> None:
        changed = self._core.membership.tick(self._core.clock.monotonic_s())
        for member, state in changed:
            log.warning("worker-state", worker=member.worker_id, node=member.node_id, state=state)
        for state in ("live", "suspect", "lost"):
            members = self._core.membership
            metrics.WORKERS.labels(state).set(sum(members.state(m.worker_id) == state for m in members))

    async def clean_clients(self) -> None:
        """Working blocks and results of clients that have had no session for long enough."""
        core, now_ns = self._core, self._core.clock.wall_ns()
        working_before = now_ns - int(core.settings.working_grace_s * 1e9)
        results_before = now_ns - int(core.settings.client_memory_s * 1e9)
        with core.view() as view:
            away = {number: c.seen_ns for number, c in view.clients() if not c.session_id}
            owned = ((block, working.client_id) for block, working in view.working_blocks())
            blocks = [block for block, client in owned if client in away and away[client] < working_before]
        forgotten = [number for number, seen_ns in away.items() if seen_ns < results_before]
        if blocks:
            await core.submit_own(DropWorking(tuple(blocks[:ITEMS_PER_ROUND_MAX])))
            log.info("working-blocks-dropped", count=len(blocks[:ITEMS_PER_ROUND_MAX]))
        if forgotten:
            await core.submit_own(ForgetClients(tuple(forgotten[:ITEMS_PER_ROUND_MAX])))

    async def trim_journal(self) -> None:
        keep = self._core.settings.journal_retention_records

        def trim(batch: Batch) -> int:
            with batch.step() as txn:
                return journal.trim(txn, keep)

        trimmed: object = PAGE_ROWS
        while trimmed == PAGE_ROWS:
            trimmed = await self._core.run(trim)
        with self._core.view() as view:
            metrics.JOURNAL.labels("oldest").set(journal.oldest_number(view.reader))
            metrics.JOURNAL.labels("newest").set(journal.last_number(view.reader))

    async def clear_readers(self) -> None:
        cleared = self._core.store.clear_readers()
        if cleared:
            metrics.READERS_CLEARED.inc(cleared)
            log.warning("dead-readers-cleared", count=cleared)

    async def count_unavailable(self) -> None:
        """Files without a live replica: counted anew only when workers or tables changed, a page at a time."""
        core = self._core
        with core.view() as view:
            sequence = journal.last_number(view.reader)
            without = view.counters().without_replica
        states = tuple(sorted((m.worker_id, core.membership.state(m.worker_id)) for m in core.membership))
        if self._counted_for == (sequence, states):
            return
        live = set(core.membership.live())
        away = [worker_id for worker_id, _ in states if worker_id not in live]
        seen: set[int] = set()
        for worker_id in away:
            start = 0
            while True:
                with core.view() as view:
                    page = view.held(worker_id, start)
                    seen.update(_unavailable(view, (block for block, _ in page), live))
                if len(page) < PAGE_ROWS:
                    break
                start = page[-1][0] + 1
                await asyncio.sleep(0)
        core.unavailable_files = without + len(seen)
        metrics.UNAVAILABLE.set(core.unavailable_files)
        self._counted_for = (sequence, states)


def _unavailable(view: View, blocks: Iterator[int], live: set[str]) -> Iterator[int]:
    for number in blocks:
        block = view.find_block(number)
        found = view.extent_of(number, block.generation) if block else None
        if found is not None and live.isdisjoint(found[2].workers):
            yield number
