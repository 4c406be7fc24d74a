"""The workers' calls: register, heartbeat, report. Only what changes the tables becomes a command."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..common.errors import Busy, InvalidArgument, NoSpace, NotFound, TooBig, Unavailable
from ..common.telemetry import get_logger
from ..proto import common_pb2, master_pb2
from . import codec, reports
from .capacity import Capacity
from .commands import DrainWorker, ForgetWorker, HeldBlock, RegisterWorker, ReportBadReplica, UpdateReplicas
from .core import Core
from .membership import Member
from .placement import Candidate, choose
from .registry import check_worker_id
from .repairer import Repairer
from .repairs import Running
from .tables import of_worker
from .view import View

DELETE_ORDERS_MAX = 1000
REPLICAS_SHOWN_MAX = 10_000
REPORT_RETRY_S = 30.0
log = get_logger("hearthfs.master")


@dataclasses.dataclass
class _Report:
    """How far a worker's full report has come."""

    incarnation: int
    first: int
    started_ns: int
    page_s: float


class Workers:
    def __init__(self, core: Core, repairer: Repairer, capacity: Capacity) -> None:
        self._core = core
        self._repairer = repairer
        self._capacity = capacity
        self._members = core.membership
        self._reports: dict[str, _Report] = {}

    async def register(self, request: master_pb2.RegisterWorkerRequest) -> None:
        """Raises: Conflict, InvalidArgument, and what a commit raises."""
        check_worker_id(request.worker_id)
        if not request.address or not request.incarnation:
            raise InvalidArgument(f"worker {request.worker_id!r} names no address or no incarnation")
        disks = codec.disks(request.disks)
        member = Member(
            worker_id=request.worker_id,
            node_id=request.node_id,
            address=request.address,
            incarnation=request.incarnation,
            disk_paths=tuple(disk.path for disk in disks),
            seen_s=self._core.clock.monotonic_s(),
            disks=disks,
        )
        self._members.register(member)  # first: two of them must not both wait for their commits
        self._reports.pop(request.worker_id, None)
        self._capacity.registered(request.worker_id)
        command = RegisterWorker(
            member.worker_id, member.node_id, member.address, member.incarnation, member.disk_paths
        )
        await self._core.submit_own(command)
        log.info("worker-registered", worker=member.worker_id, node=member.node_id, address=member.address)

    async def heartbeat(self, request: master_pb2.HeartbeatRequest) -> master_pb2.HeartbeatReply:
        core, now_s = self._core, self._core.clock.monotonic_s()
        reply = master_pb2.HeartbeatReply(epoch=core.epoch)
        member = self._members.heartbeat(request.worker_id, request.incarnation, codec.disks(request.disks), now_s)
        if member is None:
            reply.register = True
            return reply
        added = [codec.held_block(report) for report in request.added if not report.working]
        removed = [(key.block, key.generation) for key in request.removed]
        with core.view() as view:
            added, removed = _effective(view, member.worker_id, added, removed)
        await self._update(member.worker_id, added, removed)
        await self._capacity.heard(member, request)
        for result in request.copied:
            error = result.message or str(result.error_number) if result.error_number else ""
            await self._repairer.ended(member.worker_id, result.block, result.generation, error, result.bad_sources)
        with core.view() as view:
            for block, order in view.garbage(member.worker_id, DELETE_ORDERS_MAX):
                keys = reply.verify if order.doubted else reply.delete
                keys.add(block=block, generation=order.generation)
        self._capacity.reply(member, reply)
        reply.copy.extend(self._copy_order(running, now_s) for running in self._repairer.orders(member.worker_id))
        report = self._reports.get(member.worker_id)
        reply.report_all = member.needs_report and (report is None or now_s - report.page_s > REPORT_RETRY_S)
        return reply

    def _copy_order(self, running: Running, now_s: float) -> master_pb2.CopyOrder:
        facts = running.copy.facts
        return master_pb2.CopyOrder(
            block=facts.block,
            generation=facts.generation,
            length_bytes=facts.length_bytes,
            digest=facts.digest,
            sources=self.addresses(running.copy.sources),
            deadline_ms=max(1, int((running.deadline_s - now_s) * 1000)),
        )

    async def report(self, request: master_pb2.ReportBlocksRequest) -> master_pb2.ReportBlocksReply:
        """Raises: InvalidArgument (no report was started, order), TooBig, and what a commit raises."""
        core, now_s = self._core, self._core.clock.monotonic_s()
        member = self._members.find(request.worker_id)
        if member is None or member.incarnation != request.incarnation:
            raise InvalidArgument(f"worker {request.worker_id!r} must register before it reports")
        if len(request.blocks) > reports.REPORT_PAGE_MAX:
            raise TooBig(f"a page of {len(request.blocks)} blocks; the limit is {reports.REPORT_PAGE_MAX}")
        if request.start:
            self._reports[member.worker_id] = _Report(request.incarnation, 0, core.clock.wall_ns(), now_s)
        report = self._reports.get(member.worker_id)
        if report is None:
            raise InvalidArgument(f"worker {request.worker_id!r}: a report begins with a page that says so")
        reports.check_order([block.block for block in request.blocks], report.first)
        last = reports.LAST_BLOCK if request.end or not request.blocks else request.blocks[-1].block
        if not request.end and not request.blocks:
            return master_pb2.ReportBlocksReply()
        page = [(codec.held_block(block), block.working) for block in request.blocks]
        with core.view() as view:
            found = reports.compare(view, member.worker_id, page, report.first, last, report.started_ns)
        report.first, report.page_s = last + 1, now_s
        await self._update(member.worker_id, found.added, found.removed)
        if request.end:
            self._reports.pop(member.worker_id, None)
            self._members.reported(member, core.clock.monotonic_s())
        keys = [master_pb2.BlockKey(block=block, generation=generation) for block, generation in found.unknown]
        return master_pb2.ReportBlocksReply(unknown=keys)

    async def _update(self, worker_id: str, added: list[HeldBlock], removed: list[tuple[int, int]]) -> None:
        if added or removed:
            await self._core.submit_own(UpdateReplicas(worker_id, tuple(added), tuple(removed)))

    # ---------------------------------------------------------------- what others ask

    def place(self, prefer_node: str, size_bytes: int, avoid: Iterable[str], count: int) -> list[str]:
        """Live workers for new blocks, one for each.

        Raises:
            NoSpace: those that are alive have no room, or there is none.
            Unavailable: none is alive, but some may yet come back, as after a restart of the master.
        """
        alive = [member for worker_id in self._members.live() if (member := self._members.find(worker_id)) is not None]
        live = [member for member in alive if not member.draining]
        if alive and not live:
            raise NoSpace("all workers that are alive are being drained: hearth worker drain --stop ID")
        if not live and any(self._members.state(each.worker_id) == "suspect" for each in self._members):
            raise Unavailable("no worker has been heard of in the last seconds; try again")
        candidates = [Candidate(member.worker_id, member.node_id, member.available_bytes) for member in live]
        chosen = choose(candidates, count, prefer_node=prefer_node, size_bytes=size_bytes, avoid=tuple(avoid))
        for member in live:
            member.promised_bytes += size_bytes * chosen.count(member.worker_id)
        return chosen

    def addresses(self, worker_ids: Iterable[str]) -> list[common_pb2.WorkerAddress]:
        """Those that a reader may try: live ones first, then suspect ones."""
        result: list[tuple[bool, common_pb2.WorkerAddress]] = []
        for worker_id in worker_ids:
            member, state = self._members.find(worker_id), self._members.state(worker_id)
            if member is not None and state != "lost":
                suspect = state == "suspect"
                result.append((suspect, _address(member, suspect)))
        return [address for _, address in sorted(result, key=lambda item: item[0])]

    def statuses(self, now_s: float) -> list[master_pb2.WorkerStatus]:
        return [
            master_pb2.WorkerStatus(
                worker=_address(member, self._members.state(member.worker_id) == "suspect"),
                state=self._members.state(member.worker_id),
                heartbeat_age_ms=int((now_s - member.seen_s) * 1000),
                disks=[master_pb2.Disk(**dataclasses.asdict(disk)) for disk in member.disks],
                blocks=sum(disk.blocks for disk in member.disks),
                draining=member.draining,
                replicas=self._replicas(member) if member.draining else 0,
            )
            for member in self._members
        ]

    def _replicas(self, member: Member) -> int:
        """That files count on; at most REPLICAS_SHOWN_MAX."""
        with self._core.view() as view:
            return len(view.held(member.worker_id, 0, REPLICAS_SHOWN_MAX))

    # ---------------------------------------------------------------- what operators ask

    async def drain(self, worker_id: str, *, draining: bool) -> None:
        """Raises: NotFound."""
        await self._core.submit_own(DrainWorker(worker_id, draining))
        member = self._members.find(worker_id)
        if member is not None:
            member.draining = draining
        if not draining:
            self._repairer.release(worker_id)
        log.info("worker-draining" if draining else "worker-drained-no-more", worker=worker_id)

    async def forget(self, worker_id: str) -> None:
        """Raises: NotFound, Busy: it lives, and files count on it."""
        member = self._members.find(worker_id)
        if member is None:
            raise NotFound(f"worker {worker_id!r} is not known: hearth status lists those that are")
        if self._members.state(worker_id) == "lost":
            while True:
                with self._core.view() as view:
                    page = view.held(worker_id, 0, reports.REPORT_PAGE_MAX)
                if not page:
                    break
                await self._update(worker_id, [], [(block, held.generation) for block, held in page])
        elif not member.draining:
            raise Busy(f"worker {worker_id!r} is {self._members.state(worker_id)}: stop it, or drain it first")
        await self._core.submit_own(ForgetWorker(worker_id))
        self._members.forget(worker_id)
        log.info("worker-forgotten", worker=worker_id)

    async def recheck(self, replicas: Iterable[master_pb2.Replica], report_workers: Iterable[str]) -> None:
        for each in replicas:
            await self._core.submit_own(ReportBadReplica(each.block, each.generation, each.worker_id))
            self._core.nudges.nudge(each.worker_id)
        for worker_id in report_workers:
            member = self._members.find(worker_id)
            if member is not None:
                member.needs_report = True
                self._core.nudges.nudge(worker_id)

    def live_nodes(self) -> dict[str, str]:
        """Live workers and their nodes."""
        members = (self._members.find(worker_id) for worker_id in self._members.live())
        return {member.worker_id: member.node_id for member in members if member is not None}


def _address(member: Member, suspect: bool) -> common_pb2.WorkerAddress:
    return common_pb2.WorkerAddress(
        worker_id=member.worker_id, node_id=member.node_id, address=member.address, suspect=suspect
    )


def _effective(
    view: View, worker_id: str, added: list[HeldBlock], removed: list[tuple[int, int]]
) -> tuple[list[HeldBlock], list[tuple[int, int]]]:
    """Without what the tables say already: a heartbeat that is sent again costs no commit."""
    get = view.reader.get
    new = [block for block in added if get("worker_blocks", of_worker(worker_id, block.block)) is None]
    gone = [
        (block, generation)
        for block, generation in removed
        if get("worker_blocks", of_worker(worker_id, block)) is not None
        or get("garbage", of_worker(worker_id, block)) is not None
    ]
    return new, gone
