"""Keeps workers and quotas below their watermarks, by evicting files of cache directories.

One policy (``eviction``) for each worker and each quota hears of every block that comes, goes or is read. What it
chooses goes in three steps, each with a heartbeat of the workers that hold it: they are asked whether somebody has it
open or leased; if nobody has, the file is removed; and the reply orders the deletion of its block. Workers whose room
is short, and those that are waited for, are asked to heartbeat at once, so that all three take some tens of
milliseconds. Nothing here is stored: after a restart the policies begin with nothing and take what they need from the
tables.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..common.errors import HearthError, NoSpace
from ..common.telemetry import get_logger
from ..proto import master_pb2
from . import commands, evicting, machine, metrics
from .change import Stored
from .commands import Evict, Victim
from .committer import Applied
from .core import Core
from .directory_policy import PREFIX, DirectoryPolicy, canonical
from .eviction import COLD_END, Candidate, S3Fifo
from .membership import Member
from .placement import SPREAD_BYTES
from .reads import Reads
from .records import Block, Inode
from .view import View

ASKED_MAX = 1000
"""Blocks that one worker is asked about at a time, and that one command removes."""
LEAVING_MAX = 10 * ASKED_MAX
CHOICES_MAX = 10
"""A choice of which nothing may go is followed by another, so often."""
COLD_PAGE = 500
COLD_PAGES = 8
"""So many pages are taken in for one choice: some tens of milliseconds."""
FEW_POOLS = 8
READ_SLICE = 200
READ_LOOKUPS_MAX = 10_000
READS_MAX = 100_000
"""So many reads of one period are noted."""
ANSWER_S = 3.0
"""A worker that does not answer in this time is not waited for: who reads there keeps the bytes."""
REST_S = 0.5
"""After a choice that found nothing, or nothing that may go, so long passes until the next."""
SHORT_REST_S = 0.05
"""After one that found nothing among so many blocks as one choice looks at."""
MINUTE_NS = 60_000_000_000
FREEING_MAX = 100_000

Pool = str | int
"""A worker's id, or the number of a quota."""
T = TypeVar("T")
log = get_logger("hearthfs.master.capacity")


@dataclass
class _Leaving:
    """A chosen file, until it is known whether somebody uses it."""

    victim: Victim
    links: tuple[tuple[int, bytes], ...]
    size_bytes: int
    reason: str
    pools: list[Pool]
    waiting: set[str]
    since_s: float
    in_use: bool = False


@dataclass
class _Worker:
    """What is known of a worker's room beyond its heartbeat."""

    freeing: dict[int, int] = field(default_factory=dict)  # blocks whose deletion is ordered, and their bytes
    freeing_bytes: int = 0
    to_ask: dict[int, int] = field(default_factory=dict)  # block -> generation
    question: int = 0
    asked: dict[int, int] = field(default_factory=dict)
    wanted: dict[object, int] = field(default_factory=dict)  # who waits for room -> bytes


class Capacity:
    """Everything runs in the loop's thread.

    Attributes:
        evicted_files, evicted_bytes: by reason, since the start.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.settings
        self._pools: dict[Pool, S3Fifo] = {}
        self._workers: dict[str, _Worker] = {}
        self._leaving: dict[int, _Leaving] = {}
        self._questions = 0
        self._over: set[Pool] = set()
        self._rests_until_s: dict[Pool, float] = {}
        self._cluster_over = False
        self._reads = Reads(READS_MAX)
        self._heard = asyncio.Event()
        self.evicted_files: Counter[str] = Counter()
        self.evicted_bytes: Counter[str] = Counter()
        core.observers.append(self._committed)

    def pool(self, key: Pool) -> S3Fifo:
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = S3Fifo(0)
            for each in self._pools.values():
                each.held_max = max(COLD_PAGE, self._settings.evict_held_blocks // len(self._pools))
        return found

    def _worker(self, worker_id: str) -> _Worker:
        return self._workers.setdefault(worker_id, _Worker())

    # ---------------------------------------------------------------- what happens

    def note_lookup(self, directory: int, names: Sequence[bytes], blocks: Iterable[int]) -> None:
        """These names were looked up, and these blocks found by somebody who will read them at once."""
        self._reads.note(blocks)
        self._reads.note_names(directory, names)

    def _committed(self, applied: list[Applied]) -> None:
        for request, outcome in applied:
            if not isinstance(outcome, machine.Outcome) or outcome.result.error:
                continue
            minute = request.now_ns // MINUTE_NS
            for event in outcome.moved:
                pools: tuple[Pool, ...] = (*event.workers, *event.quotas)
                if isinstance(event, Stored):
                    block = Candidate(event.block, event.size_bytes, event.depth, minute)
                    for key in pools:
                        self.pool(key).add(block, hash(event.file))
                    continue
                for key in pools:
                    if key in self._pools:
                        self._pools[key].remove(event.block)
                for worker_id in event.workers:
                    self._freed(worker_id, event.block, event.size_bytes)
            if isinstance(request.command, commands.SetXattr | commands.RemoveXattr):
                self._attribute_changed(request.command.name)

    def _freed(self, worker_id: str, block: int, size_bytes: int) -> None:
        worker = self._worker(worker_id)
        if len(worker.freeing) < FREEING_MAX:
            worker.freeing[block] = size_bytes
            worker.freeing_bytes += size_bytes

    def _attribute_changed(self, name: bytes) -> None:
        """What was passed over before may be evicted now."""
        if canonical(name).startswith(PREFIX):
            for pool in self._pools.values():
                pool.cold_from = 0

    def registered(self, worker_id: str) -> None:
        """A worker begins anew: it knows of no question and will tell all that it has."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            self._worker(worker_id).wanted = worker.wanted
            self._worker(worker_id).to_ask = worker.asked | worker.to_ask

    # ---------------------------------------------------------------- heartbeats

    async def heard(self, member: Member, request: master_pb2.HeartbeatRequest) -> None:
        """Before the reply is made: takes in what the worker says, removes what nobody uses, chooses what is to go."""
        worker = self._worker(member.worker_id)
        for key in request.removed:
            worker.freeing_bytes -= worker.freeing.pop(key.block, 0)
        self._reads.note(request.read_blocks)
        if worker.question and request.answered == worker.question:
            await self._answered(member.worker_id, set(request.in_use))
        need_bytes, reason = self._need(member, worker)
        if need_bytes > 0:
            self._choose(member.worker_id, need_bytes, reason)
        self._heard.set()

    def reply(self, member: Member, reply: master_pb2.HeartbeatReply) -> None:
        """The worker's questions. One that was not answered is asked again: the reply may have been lost."""
        worker = self._worker(member.worker_id)
        if not reply.delete and worker.freeing:
            worker.freeing.clear()
            worker.freeing_bytes = 0
        if not worker.question and worker.to_ask:
            self._questions += 1
            worker.question = self._questions
            for block in list(worker.to_ask)[:ASKED_MAX]:
                worker.asked[block] = worker.to_ask.pop(block)
        if worker.question:
            reply.question = worker.question
            for block, generation in worker.asked.items():
                reply.may_evict.add(block=block, generation=generation)
        capacity_bytes, _, _ = _space(member)
        reply.reserve_bytes = int(capacity_bytes * (1 - self._settings.evict_above))
        pool = self.pool(member.worker_id)
        reply.makes_room = bool(len(pool) or pool.wants_cold or worker.freeing_bytes)

    def _need(self, member: Member, worker: _Worker) -> tuple[int, str]:
        """How many bytes should be chosen on it now, beyond those that are chosen already, and why."""
        settings, key = self._settings, member.worker_id
        capacity_bytes, used_bytes, available_bytes = _space(member)
        pending = worker.freeing_bytes + (self._pools[key].leaving_bytes if key in self._pools else 0)
        left = used_bytes - pending
        self._watch_cluster()
        if left > settings.evict_above * capacity_bytes:
            self._over.add(key)
        needs = [(0, "worker")]
        if key in self._over:
            needs.append((left - int(settings.evict_to * capacity_bytes), "worker"))
            if needs[-1][0] <= 0:
                self._over.discard(key)
        if self._cluster_over:
            needs.append((left - int(settings.evict_cluster_to * capacity_bytes), "cluster"))
        wanted = sum(worker.wanted.values())
        if wanted:
            needs.append((wanted - available_bytes - pending, "worker"))
        return max(needs)

    def _watch_cluster(self) -> None:
        capacity = used = 0
        for worker_id in self._core.membership.live():
            member = self._core.membership.find(worker_id)
            if member is not None:
                capacity_bytes, used_bytes, _ = _space(member)
                capacity += capacity_bytes
                used += used_bytes - self._worker(worker_id).freeing_bytes
        metrics.CAPACITY_USED.set(used)
        metrics.CAPACITY_LIMIT.set(int(self._settings.evict_cluster_above * capacity))
        if used > self._settings.evict_cluster_above * capacity:
            self._cluster_over = True
        elif used <= self._settings.evict_cluster_to * capacity:
            self._cluster_over = False

    # ---------------------------------------------------------------- choosing

    def _choose(self, key: Pool, need_bytes: int, reason: str) -> None:
        """Chooses files of so many bytes, and has their workers asked."""
        now_s = self._core.clock.monotonic_s()
        if now_s < self._rests_until_s.get(key, now_s):
            return
        pool, minute = self.pool(key), self._core.clock.wall_ns() // MINUTE_NS
        pages = COLD_PAGES
        with self._core.view() as view:
            policies = _Memo(view)
            for _ in range(CHOICES_MAX):
                if need_bytes <= 0 or len(self._leaving) >= LEAVING_MAX:
                    return
                while pool.wants_cold and pages:
                    pages -= 1
                    self._take_in_cold(policies, key, pool)
                chosen = pool.choose(need_bytes, minute, self._reads.__contains__, ASKED_MAX)
                if not chosen:
                    if not pool.wants_cold or not pages:
                        self._rests_until_s[key] = now_s + (REST_S if pool.looked_at_all else SHORT_REST_S)
                        return
                    continue
                for block in chosen:
                    need_bytes -= self._leave(policies, key, pool, block, reason)
        self._rests_until_s[key] = now_s + REST_S

    def _leave(self, view: View, key: Pool, pool: S3Fifo, block: int, reason: str) -> int:
        """How many bytes go with this block; 0: it may not be evicted (any more), or goes already."""
        known = self._leaving.get(block)
        if known is not None:
            known.pools.append(key)
            return 0
        found = _evictable(view, block)
        if found is None:
            pool.remove(block)
            return 0
        number, inode = found
        extent = inode.extents[0]
        if self._looked_up(inode.links):
            pool.spared(block, self._core.clock.wall_ns() // MINUTE_NS)
            return 0
        live = set(self._core.membership.live())
        leaving = _Leaving(
            victim=Victim(number, block, extent.generation),
            links=inode.links,
            size_bytes=extent.length_bytes,
            reason=reason,
            pools=[key],
            waiting=live.intersection(extent.workers),
            since_s=self._core.clock.monotonic_s(),
        )
        self._leaving[block] = leaving
        for worker_id in leaving.waiting:
            self._worker(worker_id).to_ask[block] = extent.generation
            if worker_id != key:
                self._core.nudges.nudge(worker_id)
        return extent.length_bytes

    def _looked_up(self, links: tuple[tuple[int, bytes], ...]) -> bool:
        return any(self._reads.has_name(directory, name) for directory, name in links)

    def _take_in_cold(self, view: View, key: Pool, pool: S3Fifo) -> None:
        listed = _held_by_worker if isinstance(key, str) else _counted_in
        page = list(listed(view, key, pool.cold_from))  # type: ignore[arg-type]  # each is given keys of its kind
        found = []
        for block, since_ns in page:
            if since_ns is None or block in pool:
                continue
            evictable = _evictable(view, block)
            if evictable is not None:
                inode = evictable[1]
                found.append(Candidate(block, inode.extents[0].length_bytes, inode.depth, since_ns // MINUTE_NS))
        pool.add_cold(found, page[-1][0] + 1 if len(page) == COLD_PAGE else COLD_END)

    # ---------------------------------------------------------------- removing

    async def _answered(self, worker_id: str, in_use: set[int]) -> None:
        worker = self._worker(worker_id)
        asked, worker.asked, worker.question = worker.asked, {}, 0
        ready = []
        for block in asked:
            leaving = self._leaving.get(block)
            if leaving is not None:
                leaving.waiting.discard(worker_id)
                leaving.in_use = leaving.in_use or block in in_use
                if not leaving.waiting:
                    ready.append(block)
        await self._finish(ready)

    async def _finish(self, blocks: list[int]) -> None:
        """Removes those of the files that nobody uses."""
        going: list[_Leaving] = []
        now_s = self._core.clock.monotonic_s()
        minute = self._core.clock.wall_ns() // MINUTE_NS
        for block in blocks:
            leaving = self._leaving.pop(block)
            if leaving.in_use or block in self._reads or self._looked_up(leaving.links):
                self._reads.note((block,))
                for key in leaving.pools:
                    self.pool(key).spared(block, minute)
                    self._rests_until_s[key] = now_s + REST_S
            else:
                going.append(leaving)
        for leaving in going:
            for key in leaving.pools:
                self._rests_until_s.pop(key, None)
        for start in range(0, len(going), ASKED_MAX):
            await self._remove(going[start : start + ASKED_MAX], minute)

    async def _remove(self, going: list[_Leaving], minute: int) -> None:
        try:
            outcome = await self._core.submit_own(Evict(tuple(leaving.victim for leaving in going)))
        except HearthError as error:
            for leaving in going:
                for key in leaving.pools:
                    self.pool(key).spared(leaving.victim.block, minute)
            log.warning("eviction-failed", files=len(going), error=str(error))
            return
        for leaving, number in zip(going, outcome.result.reply.errnos, strict=True):
            for key in leaving.pools:
                if number:
                    self.pool(key).remove(leaving.victim.block)
                else:
                    self.pool(key).evicted(leaving.victim.block, hash(leaving.links[0]))
            if not number:
                self.count(leaving.reason, 1, leaving.size_bytes)

    def count(self, reason: str, files: int, size_bytes: int) -> None:
        self.evicted_files[reason] += files
        self.evicted_bytes[reason] += size_bytes
        metrics.EVICTED_FILES.labels(reason).inc(files)
        metrics.EVICTED_BYTES.labels(reason).inc(size_bytes)

    # ---------------------------------------------------------------- by itself

    async def turn_reads(self) -> None:
        """The reads of the period that is over, for the policies of all that hold the blocks. With few policies all are
        told; what none of them holds is looked up, as far as there is time."""
        left = list(self._reads.turn())
        if len(self._pools) <= FEW_POOLS:
            left = [block for block in left if not sum(pool.read(block) for pool in self._pools.values())]
        for start in range(0, min(len(left), READ_LOOKUPS_MAX), READ_SLICE):
            with self._core.view() as view:
                memo = _Memo(view)
                for block in left[start : start + READ_SLICE]:
                    self._read(memo, block)
            await asyncio.sleep(0)

    def _read(self, view: View, block: int) -> None:
        found = _evictable(view, block)
        if found is None:
            return
        inode = found[1]
        extent = inode.extents[0]
        keys: tuple[Pool, ...] = (*extent.workers, *(number for number, _ in view.quota_chain(inode.quota)))
        for key in keys:
            pool = self.pool(key)
            if not pool.read(block):
                pool.add_read(Candidate(block, extent.length_bytes, inode.depth, inode.ctime_ns // MINUTE_NS))

    async def watch_quotas(self) -> None:
        """Cache directories at the limit of their quota evict what they have themselves."""
        settings = self._settings
        with self._core.view() as view:
            quotas = list(view.quotas())
            caches = {number for number, quota in quotas if quota.limit_bytes and view.policy(quota.directory).cache}
        for number, quota in quotas:
            left = quota.used_bytes - (self._pools[number].leaving_bytes if number in self._pools else 0)
            if number not in caches:
                continue
            if left > settings.evict_above * quota.limit_bytes:
                self._over.add(number)
            need_bytes = left - int(settings.evict_to * quota.limit_bytes)
            if number in self._over and need_bytes > 0:
                self._choose(number, need_bytes, "quota")
            else:
                self._over.discard(number)
        gone = [key for key in self._pools if isinstance(key, int) and key not in dict(quotas)]
        for key in gone:
            del self._pools[key]
            self._over.discard(key)
        for leaving in self._leaving.values():
            for worker_id in leaving.waiting:
                self._core.nudges.nudge(worker_id)
        await self.give_up_waiting()

    async def give_up_waiting(self) -> None:
        """Workers that have gone, or do not answer, are not waited for."""
        now_s = self._core.clock.monotonic_s()
        live = set(self._core.membership.live())
        for leaving in self._leaving.values():
            if now_s - leaving.since_s > ANSWER_S:
                leaving.waiting.clear()
            leaving.waiting &= live
        await self._finish([block for block, leaving in self._leaving.items() if not leaving.waiting])

    # ---------------------------------------------------------------- waiting for room

    async def with_room(self, request: master_pb2.MutateRequest, place: Callable[[], T]) -> T:
        """What ``place`` gives. When it finds no room and something can be evicted, it is tried again as heartbeats
        tell of more, for ``make_room_s`` at most.

        Raises:
            NoSpace, and what else ``place`` raises.
        """
        self._heard.clear()
        try:
            return place()
        except NoSpace as error:
            return await self._when_there_is_room(request, place, error)

    async def _when_there_is_room(self, request: master_pb2.MutateRequest, place: Callable[[], T], full: NoSpace) -> T:
        waiter = object()
        try:
            async with asyncio.timeout(self._settings.make_room_s):
                while True:
                    if not self._want(request, waiter):
                        raise full
                    await self._heard.wait()
                    self._heard.clear()
                    try:
                        return place()
                    except NoSpace as error:
                        full = error
        except TimeoutError:
            raise full from None
        finally:
            for worker in self._workers.values():
                worker.wanted.pop(waiter, None)

    def _want(self, request: master_pb2.MutateRequest, waiter: object) -> bool:
        """Asks for room on the workers that may give it, on the preferred node if there; whether there are any."""
        if request.WhichOneof("op") == "allocate":
            prefer_node, count = request.allocate.prefer_node, max(1, request.allocate.count)
            block_bytes = request.allocate.size_hint_bytes or SPREAD_BYTES
        else:
            prefer_node, count, block_bytes = request.create.prefer_node, 1, SPREAD_BYTES
        able = [member for member in self._members() if self._can_give(member, block_bytes)]
        near = [member for member in able if member.node_id == prefer_node]
        for member in near or able:
            capacity_bytes, _, _ = _space(member)
            most = int(self._settings.evict_to * capacity_bytes)
            self._worker(member.worker_id).wanted[waiter] = min(most, count * block_bytes)
            self._core.nudges.nudge(member.worker_id)
        return bool(able)

    def _members(self) -> Iterator[Member]:
        for worker_id in self._core.membership.live():
            member = self._core.membership.find(worker_id)
            if member is not None and not member.draining:
                yield member

    def _can_give(self, member: Member, block_bytes: int) -> bool:
        pool, worker = self.pool(member.worker_id), self._worker(member.worker_id)
        capacity_bytes, _, _ = _space(member)
        if block_bytes > self._settings.evict_to * capacity_bytes:
            return False
        if not len(pool) and pool.wants_cold:
            with self._core.view() as view:
                memo = _Memo(view)
                for _ in range(COLD_PAGES):
                    if pool.wants_cold:
                        self._take_in_cold(memo, member.worker_id, pool)
        return bool(len(pool) or pool.wants_cold or worker.freeing_bytes)


class _Memo(View):
    """Remembers what directories ask for, as long as one look at the tables lasts."""

    def __init__(self, view: View) -> None:
        super().__init__(view.reader)
        self._known: dict[int, DirectoryPolicy] = {}

    def policy(self, directory: int) -> DirectoryPolicy:
        if directory not in self._known:
            self._known[directory] = super().policy(directory)
        return self._known[directory]


def _space(member: Member) -> tuple[int, int, int]:
    """(capacity, used, available) of its disks that work."""
    disks = [disk for disk in member.disks if not disk.failed]
    return (
        sum(disk.capacity_bytes for disk in disks),
        sum(disk.used_bytes for disk in disks),
        sum(disk.available_bytes for disk in disks),
    )


def _evictable(view: View, block: int) -> tuple[int, Inode] | None:
    """(number, inode) of the block's file, if it may be evicted."""
    found = view.find_block(block)
    inode = view.find_inode(found.inode) if found is not None else None
    if found is None or inode is None or not inode.extents or inode.extents[0].block != block:
        return None
    return (found.inode, inode) if evicting.may_go(view, found.inode, inode) else None


def _held_by_worker(view: View, worker_id: str, start: int) -> Iterator[tuple[int, int | None]]:
    """(block, since when it is there) from number ``start`` on, a page of them."""
    for block, held in view.held(worker_id, start, COLD_PAGE):
        yield block, held.since_ns


def _counted_in(view: View, quota: int, start: int) -> Iterator[tuple[int, int | None]]:
    """The same of all blocks; None for those of which the quota knows nothing."""
    for block, record in view.published(start, COLD_PAGE):
        yield block, _counted_since(view, record, quota)


def _counted_since(view: View, block: Block, quota: int) -> int | None:
    inode = view.find_inode(block.inode)
    if inode is None or quota not in (number for number, _ in view.quota_chain(inode.quota)):
        return None
    return inode.ctime_ns
