# ruff: noqa: N802 (methods are named as in the .proto)
"""The gRPC service: each method unpacks, asks, packs; errors are mapped once, in ``_rpc``."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from ..common.errors import (
    DeadlineExceeded,
    HearthError,
    Internal,
    InvalidArgument,
    NotPermitted,
    NotSupported,
    TooBig,
    Unavailable,
    WrongCluster,
    to_trailing_metadata,
)
from ..common.gate import caller
from ..common.telemetry import TRACE_KEY, get_logger, trace
from ..common.types import PROTOCOL, BlockKey
from ..common.version import VERSION
from ..proto import master_pb2, master_pb2_grpc
from . import check, codec, commands, lookups, machine, metrics, permissions
from .backups import Backups
from .capacity import Capacity
from .core import Core
from .feed import Feed
from .journal import Stored, last_number, oldest_number
from .repairer import Repairer
from .rights import Rights
from .sessions import Session
from .view import View
from .workers import Workers

TEXT_MAX = 256
DETAILS_MAX = 1000
RESOLVE_TRIES = 8
FIRST_MESSAGE_S = 10.0
DUMP_MAX_S = 3600.0
DUMP_PAGE_ROWS = 500
"""Records in one message of a dump: at most about 700 bytes each, a symlink's 5 KiB."""
RECHECK_MAX = 4096
log = get_logger("hearthfs.master")


def _rpc(method: Callable[..., Awaitable[Any]]) -> Any:
    """Counts and times a call, binds its trace id, and turns its errors into gRPC statuses."""
    name = method.__name__
    seconds, succeeded = metrics.RPC_SECONDS.labels(name), metrics.RPCS.labels(name, "ok")

    @functools.wraps(method)
    async def call(self: MasterService, request: Any, context: Any) -> Any:
        started_s = time.perf_counter()
        result = "cancelled"
        try:
            with trace(_trace_id(context)):
                try:
                    reply = await method(self, request, context)
                    result = "ok"
                    return reply
                except HearthError as error:
                    result, failure = type(error).__name__, error
                except TimeoutError:
                    result, failure = "DeadlineExceeded", DeadlineExceeded(f"{name}: the caller was too slow")
                except (
                    grpc.aio.InternalError
                ):  # a message did not go out: the caller was killed, which is no fault here
                    result, failure = "Unavailable", Unavailable(f"{name}: the caller went away")
                except Exception:
                    log.exception("call-failed", method=name)
                    result, failure = (
                        "Internal",
                        Internal(f"{name} failed by a fault in the master; its log has the trace"),
                    )
            await context.abort(failure.code, str(failure)[:DETAILS_MAX], to_trailing_metadata(failure))
        finally:
            (succeeded if result == "ok" else metrics.RPCS.labels(name, result)).inc()
            seconds.observe(time.perf_counter() - started_s)

    return call


def _trace_id(context: Any) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == TRACE_KEY and isinstance(value, str):
            return value[:64]
    return None


class MasterService(master_pb2_grpc.MasterServicer):
    def __init__(
        self, core: Core, workers: Workers, repairer: Repairer, capacity: Capacity, backups: Backups, feed: Feed
    ) -> None:
        self._core = core
        self._workers = workers
        self._repairer = repairer
        self._capacity = capacity
        self._backups = backups
        self._feed = feed

    def _session(self, request: Any) -> Session:
        return self._core.session(request.context.session_id, request.context.epoch)

    def _rights(self) -> Rights:
        return Rights(caller(), self._core.secrets, self._core.clock)

    def _block_secrets(self) -> list[master_pb2.BlockSecret]:
        """For workers only."""
        known = self._core.secrets.known(self._core.clock.wall_ns() / 1e9)
        return [master_pb2.BlockSecret(number=each.number, secret=each.secret) for each in known]

    # ---------------------------------------------------------------- sessions

    @_rpc
    async def Register(self, request: master_pb2.RegisterRequest, context: Any) -> master_pb2.RegisterReply:
        core = self._core
        core.check_epoch(0)
        self._check_peer(request.cluster_id, request.protocol)
        for text in (request.node_id, request.kind, request.name):
            if len(text) > TEXT_MAX:
                raise InvalidArgument(f"a text of {len(text)} characters; the limit is {TEXT_MAX}")
        if request.holds_grants and not caller().trusted:
            raise NotPermitted("only nodes hold grants: a mount needs its node's certificate")
        command = commands.RegisterSession(
            session_id=secrets.randbits(64) | 1,
            client_id=request.client_id,
            node_id=request.node_id,
            kind=request.kind,
            name=request.name,
            holds_grants=request.holds_grants,
        )
        session = await core.open_session(command)
        lease_s = core.settings.session_lease_s if session.holds_grants else core.settings.session_idle_s
        return master_pb2.RegisterReply(
            session_id=session.session_id,
            epoch=core.epoch,
            cluster_id=core.cluster.cluster_id,
            lease_ms=int(lease_s * 1000),
            protocol=min(request.protocol, PROTOCOL),
        )

    def _check_peer(self, cluster_id: str, protocol: int) -> None:
        """Raises: WrongCluster, NotSupported."""
        ours = self._core.cluster.cluster_id
        if cluster_id and cluster_id != ours:
            raise WrongCluster(f"this is the master of cluster {ours!r}, not of {cluster_id!r}")
        if protocol < PROTOCOL - 1:
            raise NotSupported(f"protocol {protocol} is too old; this master speaks {PROTOCOL - 1} and {PROTOCOL}")

    @_rpc
    async def Watch(self, request_iterator: Any, context: Any) -> None:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            first = await context.read()
        if not isinstance(first, master_pb2.WatchRequest):
            raise InvalidArgument("a watch stream begins with a message that names the session")
        session = self._session(first)
        if not session.holds_grants:
            raise InvalidArgument("this session holds no grants; there is nothing to watch")
        await self._core.watches.serve(session, first, context)
        if self._core.stopping:
            raise Unavailable("the master is stopping")

    # ---------------------------------------------------------------- reads

    @_rpc
    async def Lookup(self, request: master_pb2.LookupRequest, context: Any) -> Any:
        core, session, rights = self._core, self._session(request), self._rights()
        core.sessions.grant(session, request.parent)
        with core.view() as view:
            rights.search(view, request.parent)
            number, inode = lookups.lookup(view, request.parent, request.name)
            no_xattrs = not view.has_xattrs(number)
        if request.name in (b".", b".."):
            core.sessions.grant(session, number)
            with core.view() as view:
                number, inode = lookups.lookup(view, request.parent, request.name)
                no_xattrs = not view.has_xattrs(number)
        entry = codec.entry(number, inode, self._workers.addresses, rights.reading(inode), no_xattrs=no_xattrs)
        # Only for who holds grants: it may list every directory, and is told when a name comes.
        if request.names_max and session.holds_grants and rights.user is None and inode.is_directory:
            core.sessions.grant(session, number)  # before the names are read
            with core.view() as view:
                names = lookups.all_names(view, number, request.names_max)
            if names is not None:
                entry.names.names.extend(names)
                entry.names.inodes.extend(names.values())
                entry.names.SetInParent()
        return entry

    @_rpc
    async def Resolve(self, request: master_pb2.ResolveRequest, context: Any) -> Any:
        """Walks again until all directories on the way were granted before the walk that is answered."""
        core, session, rights = self._core, self._session(request), self._rights()
        granted: set[int] = set()
        for _ in range(RESOLVE_TRIES):
            walk = lookups.Walk()
            try:
                with core.view() as view:
                    try:
                        inode = lookups.resolve(view, request.path, request.no_follow, walk)
                    except HearthError:
                        rights.walked(view, walk, None, 0)
                        raise
                    rights.walked(view, walk, inode, request.access)
            except HearthError:
                if not session.holds_grants or walk.visited <= granted:
                    raise
            else:
                if not session.holds_grants or walk.visited <= granted:
                    return codec.entry(walk.inode, inode, self._workers.addresses, rights.reading(inode))
            granted |= walk.visited
            core.sessions.grant(session, *walk.visited)
        raise Unavailable(f"{request.path[:80]!r} changes too fast to be resolved; try again")

    @_rpc
    async def Getattr(self, request: master_pb2.GetattrRequest, context: Any) -> Any:
        core, session = self._core, self._session(request)
        core.sessions.grant(session, request.inode)
        rights = self._rights()
        with core.view() as view:
            inode = view.inode(request.inode)
            rights.reach(view, request.inode)
            no_xattrs = not view.has_xattrs(request.inode)
        sign = rights.reading(inode)
        return codec.entry(request.inode, inode, self._workers.addresses, sign, no_xattrs=no_xattrs)

    @_rpc
    async def Readdir(self, request: master_pb2.ReaddirRequest, context: Any) -> master_pb2.ReaddirReply:
        core, session = self._core, self._session(request)
        core.sessions.grant(session, request.inode)
        if request.after_cookie >= lookups.COOKIE_END:
            return master_pb2.ReaddirReply(end=True)
        rights = self._rights()
        with core.view() as view:
            rights.reach(view, request.inode, permissions.READ | (permissions.SEARCH if request.want_entries else 0))
            page, end = lookups.readdir(view, request.inode, request.after_cookie, request.limit, request.want_entries)
            some = request.want_entries and view.has_xattrs()
            have_xattrs = {ordered.inode for _, ordered, _ in page if some and view.has_xattrs(ordered.inode)}
        return codec.readdir_reply(page, end, self._workers.addresses, rights.reading, have_xattrs)

    @_rpc
    async def GetXattrs(self, request: master_pb2.GetXattrsRequest, context: Any) -> master_pb2.GetXattrsReply:
        core, session = self._core, self._session(request)
        core.sessions.grant(session, request.inode)
        with core.view() as view:
            view.inode(request.inode)
            self._rights().reach(view, request.inode, permissions.READ)
            found = view.xattrs(request.inode)
        return master_pb2.GetXattrsReply(xattrs={name.decode(): value for name, value in found.items()})

    @_rpc
    async def Statfs(self, request: master_pb2.StatfsRequest, context: Any) -> master_pb2.StatfsReply:
        self._session(request)
        totals = self._totals()
        if request.inode:
            with self._core.view() as view:
                _within_quota(totals, view, request.inode)
        return totals

    def _totals(self) -> master_pb2.StatfsReply:
        reply = master_pb2.StatfsReply()
        for member in self._core.membership:
            state = self._core.membership.state(member.worker_id)
            writable = state == "live" and not member.draining
            for disk in member.disks if state != "lost" else ():
                if not disk.failed:
                    reply.total_bytes += disk.capacity_bytes
                    reply.used_bytes += disk.used_bytes
                    reply.available_bytes += disk.available_bytes if writable else 0
        with self._core.view() as view:
            counters = view.counters()
        reply.inodes, reply.blocks = counters.inodes, counters.blocks
        return reply

    @_rpc
    async def LookupMany(self, request: master_pb2.LookupManyRequest, context: Any) -> master_pb2.LookupManyReply:
        self._session(request)
        rights = self._rights()
        names = codec.names(request.names, codec.LOOKUP_NAMES_MAX)
        replicas = lookups.Replicas(self._workers.live_nodes(), request.prefer_node)
        with self._core.view() as view:
            directory = request.directory
            if request.path:
                directory = lookups.resolve_directory(view, request.path)
            else:
                view.directory(directory)
            if directory:
                rights.search(view, directory)
            if request.want_layout or rights.user is not None:
                bitmap, hits = lookups.lookup_many(view, directory, names, replicas)
                bitmap, hits = rights.readable(view, bitmap, hits)
                count = len(hits)
            else:
                bitmap, count = lookups.find_many(view, directory, names, replicas, self._core.readable)
                hits = []
            replicate = request.want_layout and view.policy(directory).on_read
        self._capacity.note_lookup(directory, names, [extent.block for _, _, extent, _ in hits])
        metrics.LOOKUPS.labels("hit").inc(count)
        metrics.LOOKUPS.labels("miss").inc(len(names) - count)
        workers = self._workers.addresses(replicas.workers)
        reply = codec.lookup_many_reply(directory, bitmap, hits, workers, request.want_layout)
        reply.replicate_on_read = replicate
        if rights.user is not None and request.want_layout:
            reply.tokens.extend(map(rights.reading(None), reply.blocks, reply.generations))
        return reply

    @_rpc
    async def SignBlocks(self, request: master_pb2.SignBlocksRequest, context: Any) -> master_pb2.SignBlocksReply:
        session = self._session(request)
        if len(request.blocks) > codec.BATCH_ITEMS_MAX:
            raise TooBig(f"{len(request.blocks)} blocks in one call; the limit is {codec.BATCH_ITEMS_MAX}")
        keys = [BlockKey(each.block, each.generation) for each in request.blocks]
        with self._core.view() as view:
            return master_pb2.SignBlocksReply(tokens=self._rights().renewed(view, keys, session.client_id))

    # ---------------------------------------------------------------- mutations

    @_rpc
    async def Mutate(self, request: master_pb2.MutateRequest, context: Any) -> master_pb2.MutateReply:
        core, session, rights = self._core, self._session(request), self._rights()
        if request.client_id != session.client_id or not request.request_id:
            raise InvalidArgument(
                f"request {request.request_id} of client {request.client_id:016x} in a session of "
                f"client {session.client_id:016x}"
            )
        with core.view() as view:
            result = machine.find_result(
                view, request.client_id, request.request_id, request.acked_below, codec.operation(request)
            )
        if result is None:
            command = await self._capacity.with_room(
                request, lambda: codec.command(request, self._workers.place, core.membership.live())
            )
            if rights.user is not None:
                command = permissions.as_user(command, rights.user)
            committed = await core.submit(
                commands.Request(
                    command=command,
                    now_ns=core.clock.wall_ns(),
                    client_id=request.client_id,
                    request_id=request.request_id,
                    acked_below=request.acked_below,
                    session_id=session.session_id,
                    user=rights.user,
                )
            )
            result, debts = committed.outcome.result, committed.debts
        else:
            metrics.REPLAYED.inc()
            debts = core.watches.outstanding(session.session_id)
        if debts and not request.no_wait:
            await core.watches.wait(debts)
        error = machine.error_of(result)
        if error is not None:
            raise error
        if result.operation == commands.EvictMany.__name__:
            self._capacity.count("asked", result.reply.errnos.count(0), 0)
        if self._repairer.makes_wait(codec.published_in(request, result.reply)):
            await self._repairer.wait_replicated(codec.published_blocks(request))
        reply = result.reply
        return codec.mutate_reply(reply, self._workers.addresses, rights.reading(reply.attributes), rights.writing())

    # ---------------------------------------------------------------- workers

    @_rpc
    async def RegisterWorker(self, request: master_pb2.RegisterWorkerRequest, context: Any) -> Any:
        core = self._core
        self._rights().need_node(request.node_id)
        self._check_newer(request.context.epoch)
        self._check_peer(request.cluster_id, request.protocol)
        await self._workers.register(request)
        heartbeat_ms = int(core.settings.heartbeat_s * 1000)
        return master_pb2.RegisterWorkerReply(
            epoch=core.epoch,
            cluster_id=core.cluster.cluster_id,
            heartbeat_ms=heartbeat_ms,
            block_secrets=self._block_secrets(),
        )

    def _check_newer(self, epoch: int) -> None:
        """An older epoch is what one registers for. Raises: StaleEpoch: this master was replaced."""
        self._core.check_epoch(epoch if epoch > self._core.epoch else 0)

    @_rpc
    async def Heartbeat(self, request: master_pb2.HeartbeatRequest, context: Any) -> master_pb2.HeartbeatReply:
        self._check_worker(request.worker_id)
        self._core.check_epoch(request.context.epoch)
        reply = await self._workers.heartbeat(request)
        reply.block_secrets.extend(self._block_secrets())
        return reply

    def _check_worker(self, worker_id: str) -> None:
        """Raises: NotPermitted: it is on another node than the caller."""
        member = self._core.membership.find(worker_id)
        if member is not None:
            self._rights().need_node(member.node_id)

    @_rpc
    async def ReportBlocks(self, request: master_pb2.ReportBlocksRequest, context: Any) -> master_pb2.ReportBlocksReply:
        self._check_worker(request.worker_id)
        self._core.check_epoch(request.context.epoch)
        return await self._workers.report(request)

    @_rpc
    async def Nudges(self, request: master_pb2.NudgesRequest, context: Any) -> None:
        self._core.check_epoch(request.context.epoch)
        member = self._core.membership.find(request.worker_id)
        if member is None or member.incarnation != request.incarnation:
            raise InvalidArgument(f"worker {request.worker_id!r} must register before it is nudged")
        await self._core.nudges.serve(request.worker_id, context)

    # ---------------------------------------------------------------- operators

    @_rpc
    async def DrainWorker(self, request: master_pb2.DrainWorkerRequest, context: Any) -> master_pb2.DrainWorkerReply:
        if request.forget:
            await self._workers.forget(request.worker_id)
        else:
            await self._workers.drain(request.worker_id, draining=not request.stop)
        return master_pb2.DrainWorkerReply()

    @_rpc
    async def Rebalance(self, request: master_pb2.RebalanceRequest, context: Any) -> master_pb2.RebalanceReply:
        await self._core.submit_own(commands.Rebalance(request.percent))
        return master_pb2.RebalanceReply()

    @_rpc
    async def Recheck(self, request: master_pb2.RecheckRequest, context: Any) -> master_pb2.RecheckReply:
        if len(request.replicas) > RECHECK_MAX:
            raise TooBig(f"{len(request.replicas)} replicas in one call; the limit is {RECHECK_MAX}")
        await self._workers.recheck(request.replicas, request.report_workers)
        return master_pb2.RecheckReply()

    @_rpc
    async def Status(self, request: master_pb2.StatusRequest, context: Any) -> master_pb2.StatusReply:
        core, now_s = self._core, self._core.clock.monotonic_s()
        with core.view() as view:
            sequence, rebalance_percent = last_number(view.reader), view.rebalance_percent()
            oldest = oldest_number(view.reader)
        reply = master_pb2.StatusReply(
            cluster_id=core.cluster.cluster_id,
            epoch=core.epoch,
            version=VERSION,
            journal_sequence=sequence,
            journal_oldest=oldest,
            started_ns=core.started_ns,
            totals=self._totals(),
            unavailable_files=core.unavailable_files,
            degraded_files=self._repairer.repairs.degraded,
            repairing_files=self._repairer.repairs.running,
            repair_failures=sum(self._repairer.repairs.ended[how] for how in ("failed", "late")),
            rebalance_percent=rebalance_percent,
            scanned_ns=self._repairer.scanned_ns,
        )
        for reason, files in sorted(self._capacity.evicted_files.items()):
            reply.evicted.add(reason=reason, files=files, size_bytes=self._capacity.evicted_bytes[reason])
        reply.workers.extend(self._workers.statuses(now_s))
        for session in core.sessions if caller().trusted else ():
            reply.sessions.add(
                session_id=session.session_id,
                kind=session.kind,
                node_id=session.node_id,
                name=session.name,
                idle_ms=int((now_s - max(session.seen_s, session.renewed_s)) * 1000),
                grants=len(session.grants),
            )
        return reply

    @_rpc
    async def Dump(self, request: master_pb2.DumpRequest, context: Any) -> None:
        async with asyncio.timeout(DUMP_MAX_S):  # a snapshot keeps the file growing as long as it is open
            await self._dump(context, DUMP_PAGE_ROWS if request.pages else 1)

    async def _dump(self, context: Any, page_rows: int) -> None:
        page: list[master_pb2.DumpRecord] = []

        async def send() -> None:
            if page_rows == 1:
                await context.write(page[0])
            else:
                await context.write(master_pb2.DumpRecord(page=master_pb2.DumpPage(records=page)))
            page.clear()

        with self._core.store.snapshot() as reader:
            view, wanted = View(reader), _Wanted()
            checked = check.Check(view)
            for row in checked.rows():
                if row is None:
                    await asyncio.sleep(0)
                else:
                    page.append(self._dump_record(view, row, wanted))
                    if len(page) == page_rows:
                        await send()
            if page:
                await send()
            end = master_pb2.DumpEnd(
                journal_sequence=last_number(reader),
                dentries=checked.dentries,
                inodes=checked.inodes,
                blocks=checked.blocks,
                problems=checked.problems,
            )
        await context.write(master_pb2.DumpRecord(end=end))

    def _dump_record(self, view: View, row: check.Row, wanted: _Wanted) -> master_pb2.DumpRecord:
        if isinstance(row, check.DentryRow):
            dentry = master_pb2.DumpDentry(
                parent=row.parent, name=row.name, inode=row.dentry.inode, cookie=row.dentry.cookie
            )
            return master_pb2.DumpRecord(dentry=dentry)
        if isinstance(row, check.InodeRow):
            return master_pb2.DumpRecord(inode=codec.entry(row.number, row.inode, self._workers.addresses))
        client = view.find_client(row.client_id) if row.client_id else None
        block = master_pb2.DumpBlock(
            block=row.block,
            generation=row.generation,
            inode=row.inode,
            length_bytes=row.length_bytes,
            digest=row.digest,
            workers=row.workers,
            session_id=client.session_id if client else 0,
            client_id=row.client_id if client else 0,
            wanted_replicas=wanted.of(view, row.inode),
        )
        return master_pb2.DumpRecord(block=block)

    @_rpc
    async def Backup(self, request: master_pb2.BackupRequest, context: Any) -> None:
        expected_bytes = self._backups.expected_bytes()
        await context.write(master_pb2.BackupPart(expected_bytes=expected_bytes))

        async def send(piece: bytes) -> None:
            await context.write(master_pb2.BackupPart(data=piece))

        made = await self._backups.serve(send)
        end = master_pb2.BackupEnd(
            size_bytes=made.size_bytes,
            digest=made.digest,
            journal_sequence=made.journal_sequence,
            cluster_id=self._core.cluster.cluster_id,
        )
        await context.write(master_pb2.BackupPart(end=end))

    @_rpc
    async def Journal(self, request: master_pb2.JournalRequest, context: Any) -> None:
        async def send(page: list[Stored]) -> None:
            records = [master_pb2.JournalRecord(number=number, body=body) for number, body in page]
            await context.write(master_pb2.JournalPage(records=records))

        await self._feed.serve(send, request.after, request.newest, follow=request.follow)


class _Wanted:
    """How many replicas files should have, by directory, as one snapshot says."""

    def __init__(self) -> None:
        self._of_directory: dict[int, int] = {}

    def of(self, view: View, number: int) -> int:
        inode = view.find_inode(number)
        if inode is None or not inode.links:
            return 0
        directory = inode.links[0][0]
        if directory not in self._of_directory:
            self._of_directory[directory] = view.policy(directory).replicas
        return self._of_directory[directory]


def _within_quota(totals: master_pb2.StatfsReply, view: View, number: int) -> None:
    """Of the quotas in which the inode counts the nearest says how much there is, the tightest how much is left."""
    limits = [quota for _, quota in view.quota_chain(view.inode(number).quota) if quota.limit_bytes]
    if not limits:
        return
    left = min(max(0, quota.limit_bytes - quota.used_bytes) for quota in limits)
    totals.total_bytes, totals.used_bytes = limits[0].limit_bytes, limits[0].used_bytes
    totals.available_bytes = min(totals.available_bytes, left)
