"""Keeps as many replicas of each file as its directory asks for, empties workers that are drained, evens them out.

It finds blocks in three ways: commands that were just applied name them (``noticed``), workers that are lost or
draining are walked through, and every ``repair_scan_s`` all blocks are. ``repair_plan`` decides; what was decided is
soft, and the workers fetch their orders with heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from ..common.telemetry import get_logger
from . import commands, machine, metrics
from .committer import Applied
from .core import Core
from .directory_policy import PREFIX, REPLICAS, DirectoryPolicy
from .membership import Member, State
from .records import Inode
from .repair_plan import BlockFacts, Copy, Drop, Limits, Plan, WorkerFacts, needs_work, plan, standing, uneven
from .repairs import Repairs, Running
from .tables import PAGE_ROWS, from_u64
from .view import View

STEP_S = 0.25
PLAN_BLOCKS = 200
"""Blocks looked at in one step: some milliseconds."""
WALK_BLOCKS = 200
WALK_SHARE = 0.2
"""Of the loop's time that walking through tables may take."""
ROOM_STEPS_MAX = 40
"""A walk that finds more than there is room for waits so many steps with each page."""
WALK_AGAIN_S = 15.0
"""A worker that still has blocks of which others are wanted is walked through again after so long."""
SCAN_REST_S = 5.0
"""Between the end of one look at all blocks and the next one, whatever happens."""
NOTICED_MAX = 100_000
POLICIES_MAX = 100_000
MOVES_MAX = 2000
"""Blocks that are picked at one time to even workers out."""
MOVES_REST_S = 3.0
"""After one lot has moved, heartbeats tell how full workers are before the next is picked."""
log = get_logger("hearthfs.master.repair")


class Repairer:
    """Everything runs in the loop's thread.

    Attributes:
        scanned_ns: when the last look at all blocks ended; 0: not yet.
    """

    def __init__(self, core: Core) -> None:
        settings = core.settings
        self._core = core
        self.repairs = Repairs(settings.repair_blocks_max)
        self._limits = Limits(settings.repair_copies, settings.repair_window_bytes)
        self._policies: dict[int, DirectoryPolicy] = {}
        self._noticed: dict[int, None] = {}
        self._waiters: dict[int, list[asyncio.Event]] = {}
        self._wake = asyncio.Event()
        self._walked: dict[str, float] = {}
        self._taking: set[str] = set()
        self._scan_due_s = self._scan_rest_s = 0.0
        self._moves_from: dict[str, int] = {}
        self._moves_due_s = 0.0
        self._relieved: set[str] = set()
        self._asked_for = False  # any directory wants more than one replica, as of the last scan
        self.scanned_ns = 0
        core.observers.append(self.noticed)

    # ---------------------------------------------------------------- what is known

    def workers(self) -> dict[str, WorkerFacts]:
        """As the heartbeats have them, with the copies that are under way."""
        membership = self._core.membership
        facts = {each.worker_id: _worker_facts(each, membership.state(each.worker_id)) for each in membership}
        self.repairs.load(facts.values())
        return facts

    def policy(self, view: View, directory: int) -> DirectoryPolicy:
        known = self._policies.get(directory)
        if known is None:
            if len(self._policies) >= POLICIES_MAX:
                self._policies.clear()
            known = self._policies[directory] = view.policy(directory)
        return known

    def facts(self, view: View, block: int, *, with_orders: bool = False) -> BlockFacts | None:
        """None: it belongs to no file, or is not sealed: nobody but its writer can have it."""
        found = view.find_block(block)
        known = view.extent_of(block, found.generation) if found is not None else None
        if known is None or not known[2].sealed or not known[2].digest:
            return None
        _, inode, extent = known
        ordered = tuple(
            each.worker_id
            for each in (self._core.membership if with_orders else ())
            if each.worker_id not in extent.workers and view.find_garbage(each.worker_id, block) is not None
        )
        return BlockFacts(
            block,
            extent.generation,
            extent.length_bytes,
            extent.digest,
            extent.workers,
            self._wanted(view, inode),
            ordered,
        )

    def _wanted(self, view: View, inode: Inode) -> int:
        return self.policy(view, inode.links[0][0]).replicas if inode.links else 1

    # ---------------------------------------------------------------- what happened

    def noticed(self, applied: Sequence[Applied]) -> None:
        """After a commit: remembers the blocks that may need something now. Costs next to nothing where nobody asks for
        more than one replica."""
        for request, outcome in applied:
            if isinstance(outcome, machine.Outcome) and not outcome.result.error and not outcome.replayed:
                self._notice(request.command, outcome)

    def _notice(self, command: commands.AnyCommand, outcome: machine.Outcome) -> None:
        if isinstance(command, commands.PutMany):
            if self._asks(command.parent):
                self._look_at(command.blocks)
        elif isinstance(command, commands.Publish):
            attributes = outcome.result.reply.attributes
            if attributes is not None and any(map(self._asks, attributes.parents)):
                self._look_at((command.item.block,))
        elif isinstance(command, commands.PublishMany):
            self._look_at(item.block for item in command.items)
        elif isinstance(command, commands.ReportBadReplica):
            self._look_at((command.block,))
        elif isinstance(command, commands.UpdateReplicas):
            self._look_at(block for block, _ in command.removed)
            if self._asked_for:  # one that was doubted may be good, and others wanted
                self._look_at(held.block for held in command.added)
            self._arrived(held.block for held in command.added)
        elif isinstance(command, commands.SetXattr | commands.RemoveXattr) and command.name.startswith(PREFIX):
            self._policies.pop(command.inode, None)
            if command.name == REPLICAS:
                self._asked_for = True
                self._scan_due_s = 0.0
                self._wake.set()

    def _asks(self, directory: int) -> bool:
        known = self._policies.get(directory)
        if known is None:
            with self._core.view() as view:
                known = self.policy(view, directory)
        return known.replicas > 1

    def _look_at(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block and len(self._noticed) < NOTICED_MAX:
                self._noticed[block] = None
        if self._noticed:
            self._wake.set()

    def _arrived(self, blocks: Iterable[int]) -> None:
        if self._waiters:
            for block in blocks:
                for event in self._waiters.get(block, ()):
                    event.set()

    # ---------------------------------------------------------------- orders

    def orders(self, worker_id: str) -> list[Running]:
        return self.repairs.orders(worker_id, self._core.clock.monotonic_s())

    async def ended(self, worker_id: str, block: int, generation: int, error: str, bad_sources: Iterable[str]) -> None:
        """A worker's word on an order. Sources that had wrong bytes are doubted."""
        self.repairs.end(worker_id, block, generation, succeeded=not error, now_s=self._core.clock.monotonic_s())
        metrics.REPAIRS.labels("failed" if error else "ok").inc()
        if error:
            log.warning("copy-failed", block=f"{block:016x}", worker=worker_id, error=error)
        for source in bad_sources:
            log.warning("bad-replica", block=f"{block:016x}", worker=source, reason=f"{worker_id} could not copy it")
            await self._core.submit_own(commands.ReportBadReplica(block, generation, source))
        self._wake.set()

    # ---------------------------------------------------------------- waiting for replicas

    def makes_wait(self, directories: Iterable[int]) -> bool:
        """Whether any of these has its writers wait for replicas."""
        return any(self._asks(each) and self._policies[each].before_close for each in directories)

    async def wait_replicated(self, blocks: Sequence[int]) -> None:
        """Returns when each block, of a directory whose writers wait, has the replicas that there can be, or after
        ``replicate_wait_s``. The files are published either way."""
        deadline_s = time.monotonic() + self._core.settings.replicate_wait_s
        waiting = self._awaited(blocks)
        while waiting:
            event = asyncio.Event()
            for block in waiting:
                self._waiters.setdefault(block, []).append(event)
            try:
                self._wake.set()
                waiting = self._awaited(waiting)
                if waiting:
                    await asyncio.wait_for(event.wait(), max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                metrics.UNREPLICATED_CLOSES.inc()
                log.warning("closed-with-fewer-replicas", blocks=len(waiting))
                return
            finally:
                for block in set(blocks) & self._waiters.keys():
                    self._waiters[block] = [each for each in self._waiters[block] if each is not event]
                    if not self._waiters[block]:
                        del self._waiters[block]

    def _awaited(self, blocks: Iterable[int]) -> list[int]:
        """Those whose writers wait and that can have more replicas than they have."""
        workers = self.workers()
        with self._core.view() as view:
            asking = (each for each in self._each_facts(view, blocks) if self._is_waited_for(view, each))
            return [each.block for each in asking if standing(each, workers).short]

    def _is_waited_for(self, view: View, facts: BlockFacts) -> bool:
        found = view.extent_of(facts.block, facts.generation) if facts.wanted > 1 else None
        return found is not None and any(self.policy(view, each).before_close for each in found[1].parents[:1])

    # ---------------------------------------------------------------- the steps

    async def run(self) -> None:
        """Until it is cancelled."""
        walking = asyncio.create_task(self._repeat(self.walk, lambda: asyncio.sleep(STEP_S)))
        try:
            await self._repeat(self.step, self._next_step)
        finally:
            walking.cancel()
            await asyncio.gather(walking, return_exceptions=True)

    async def _repeat(self, work: Callable[[], Awaitable[None]], rest: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                metrics.UPKEEP_FAILURES.labels("repair").inc()
                log.warning("upkeep-failed", task="repair", error=str(error))
            await rest()

    async def _next_step(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), STEP_S)
        self._wake.clear()

    async def step(self) -> None:
        """Ends late orders, looks at what was noticed and at what is due, orders what can be ordered."""
        core, now_s = self._core, self._core.clock.monotonic_s()
        gone = {each.worker_id for each in core.membership if core.membership.state(each.worker_id) == "lost"}
        for late in self.repairs.expire(now_s, gone):
            metrics.REPAIRS.labels("late").inc()
            log.warning("copy-late", block=f"{late.copy.facts.block:016x}", worker=late.copy.target)
        noticed, self._noticed = self._noticed, {}
        for block in noticed:
            self.repairs.changed(block)
        result = self._plan(now_s)
        self.repairs.adopt(result, now_s)
        for copy in result.copies:
            self._ordered(copy)
        if result.drops:
            await self._drop(result.drops)
        metrics.DEGRADED.set(self.repairs.degraded)
        metrics.REPAIRING.set(self.repairs.running)

    def _plan(self, now_s: float) -> Plan:
        tasks = []
        due = self.repairs.due(now_s, PLAN_BLOCKS)
        if len(due) == PLAN_BLOCKS:
            self._wake.set()
        with self._core.view() as view:
            for block in due:
                facts = self.facts(view, block, with_orders=True)
                if facts is None:
                    self.repairs.forget(block)
                else:
                    tasks.append(self.repairs.task(facts))
        return plan(tasks, self.workers(), self._limits)

    def _ordered(self, copy: Copy) -> None:
        member = self._core.membership.find(copy.target)
        if member is not None:
            member.promised_bytes += copy.facts.length_bytes
        self._core.nudges.nudge(copy.target)
        log.debug("copy-ordered", block=f"{copy.facts.block:016x}", target=copy.target, sources=copy.sources)

    async def _drop(self, drops: Sequence[Drop]) -> None:
        live = self._core.membership.live()
        by_worker: dict[str, list[tuple[int, int, int]]] = {}
        for drop in drops:
            by_worker.setdefault(drop.worker_id, []).append((drop.block, drop.generation, drop.others))
        for worker_id, blocks in by_worker.items():
            await self._core.submit_own(commands.DropReplicas(worker_id, tuple(blocks), live))
            metrics.DROPPED.inc(len(blocks))
            self._core.nudges.nudge(worker_id)

    # ---------------------------------------------------------------- walking through the tables

    async def walk(self) -> None:
        """What the state of the workers, or the time, makes due."""
        now_s, membership = self._core.clock.monotonic_s(), self._core.membership
        states = {each.worker_id: membership.state(each.worker_id) for each in membership}
        taking = {each for each, facts in self.workers().items() if facts.accepts}
        if taking - self._taking:
            self.repairs.wake()
            self._scan_due_s = 0.0
        self._taking = taking
        for member in list(membership):
            if states[member.worker_id] == "lost" or member.draining:
                if self._walked.get(member.worker_id, -WALK_AGAIN_S) + WALK_AGAIN_S <= now_s:
                    self._walked[member.worker_id] = now_s
                    await self._walk_worker(member)
            else:
                self._walked.pop(member.worker_id, None)
        if now_s >= max(self._scan_due_s, self._scan_rest_s):
            self._scan_due_s = now_s + self._core.settings.repair_scan_s
            await self._walk_all()
            self._scan_rest_s = self._core.clock.monotonic_s() + min(SCAN_REST_S, self._core.settings.repair_scan_s)
        await self._move()

    async def _walk_worker(self, member: Member) -> None:
        start = 0
        while True:
            with self._core.view() as view:
                page = view.held(member.worker_id, start, WALK_BLOCKS)
            await self._take([block for block, _ in page], [member.worker_id] if member.draining else [])
            if len(page) < WALK_BLOCKS:
                return
            start = page[-1][0] + 1

    async def _walk_all(self) -> None:
        """Every block, if any directory asks for more than one replica."""
        started_s = time.monotonic()
        self._asked_for = await self._anybody_asks()
        if self._asked_for:
            start = b""
            while True:
                with self._core.view() as view:
                    page = view.reader.scan("blocks", b"", start, WALK_BLOCKS)
                await self._take([from_u64(key) for key, _ in page], [])
                if len(page) < WALK_BLOCKS:
                    break
                start = page[-1][0] + b"\0"
        self.scanned_ns = self._core.clock.wall_ns()
        metrics.SCAN_SECONDS.set(time.monotonic() - started_s)

    async def _anybody_asks(self) -> bool:
        start = b""
        while True:
            with self._core.view() as view:
                page = view.reader.scan("xattrs", b"", start)
            if any(key[8:] == REPLICAS and value != b"1" for key, value in page):
                return True
            if len(page) < PAGE_ROWS:
                return False
            start = page[-1][0] + b"\0"
            await asyncio.sleep(0)

    async def _take(self, blocks: Sequence[int], leaving: Sequence[str]) -> None:
        """Takes those that need something, then rests so that others have their share of the loop. Those that there is
        no room for after a while are found again the next time."""
        for _ in range(ROOM_STEPS_MAX):
            if self.repairs.room >= len(blocks):
                break
            await asyncio.sleep(STEP_S)
        begun_s = time.monotonic()
        workers = self.workers()
        with self._core.view() as view:
            for facts in self._each_facts(view, blocks):
                if needs_work(facts, workers, leaving):
                    self.repairs.add(facts.block, leaving)
        await asyncio.sleep((time.monotonic() - begun_s) * (1 / WALK_SHARE - 1))

    def _each_facts(self, view: View, blocks: Iterable[int]) -> Iterator[BlockFacts]:
        for block in blocks:
            facts = self.facts(view, block)
            if facts is not None:
                yield facts

    async def _move(self) -> None:
        """Picks blocks to even the workers out; says so in the tables when that is done."""
        with self._core.view() as view:
            percent = view.rebalance_percent()
        now_s = self._core.clock.monotonic_s()
        if self.repairs.moves:
            self._moves_due_s = now_s + MOVES_REST_S
        if not percent:
            while self._relieved:
                self.repairs.release(self._relieved.pop())
        if not percent or self.repairs.moves or now_s < self._moves_due_s:
            return
        workers = self.workers()
        reliefs = uneven(workers.values(), percent)
        if not reliefs:
            await self._core.submit_own(commands.Rebalance(0))
            log.info("rebalanced", percent=percent)
            return
        for relief in reliefs:
            self._relieved.add(relief.worker_id)
            self._relieve(relief.worker_id, relief.excess_bytes, relief.targets)

    def _relieve(self, worker_id: str, excess_bytes: int, targets: frozenset[str]) -> None:
        """Takes blocks off a worker, going through those it has from where the last time ended."""
        start = self._moves_from.get(worker_id, 0)
        with self._core.view() as view:
            page = view.held(worker_id, start, MOVES_MAX)
            self._moves_from[worker_id] = 0
            for block, _ in page:
                if excess_bytes <= 0:
                    self._moves_from[worker_id] = block
                    return
                facts = self.facts(view, block)
                if facts is not None and block not in self.repairs and not targets <= set(facts.workers):
                    self.repairs.add(block, [worker_id], targets)
                    excess_bytes -= facts.length_bytes

    def release(self, worker_id: str) -> None:
        """It is not drained any more."""
        self.repairs.release(worker_id)
        self._walked.pop(worker_id, None)


def _worker_facts(member: Member, state: State) -> WorkerFacts:
    disks = [disk for disk in member.disks if not disk.failed]
    return WorkerFacts(
        worker_id=member.worker_id,
        node_id=member.node_id,
        state=state,
        draining=member.draining,
        capacity_bytes=sum(disk.capacity_bytes for disk in disks),
        used_bytes=sum(disk.used_bytes for disk in disks),
        available_bytes=member.available_bytes,
    )
