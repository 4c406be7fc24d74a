"""What all calls stand on: the store, the writer, sessions, workers, and the checks that every request passes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..common import block_tokens
from ..common.clock import Clock
from ..common.errors import Busy, InvalidArgument, NotPermitted, StaleEpoch, StaleSession
from ..common.gate import caller
from ..common.telemetry import get_logger
from . import machine, records
from .commands import AnyCommand, BeginEpoch, EndSessions, Mkdir, RegisterSession, Request
from .committer import Applied, Committer, Job
from .membership import Member, Membership
from .nudges import Nudges
from .readable_names import ReadableNames
from .records import Cluster
from .sessions import Debt, Session, Sessions, unknown_session
from .settings import MasterSettings
from .tables import Store
from .view import View
from .watches import Watches

SESSIONS_MAX = 50_000
EPOCH_LEAP_MAX = 1 << 20
"""An epoch this far above ours is no epoch but noise."""
log = get_logger("hearthfs.master")


class Committed(NamedTuple):
    outcome: machine.Outcome
    debts: list[Debt]


class Core:
    """``on_stop(reason)``: the master cannot go on (durability in doubt, or replaced by a newer one).

    Attributes:
        observers: told of each commit, after caches and before callers.
    """

    def __init__(
        self,
        settings: MasterSettings,
        store: Store,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_stop: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.on_stop = on_stop
        self.started_ns = clock.wall_ns()
        self.cluster = Cluster("", 0)
        self.epoch = 0
        self.replaced_by = 0
        self.stopping = False
        self.unavailable_files = 0
        now_s = clock.wall_ns() / 1e9
        self.secrets = block_tokens.Secrets(settings.block_token_s, secrets.token_bytes, now_s, secrets.randbits(31))
        self.sessions = Sessions(settings.session_lease_s, settings.session_idle_s)
        self.readable = ReadableNames()
        self.membership = Membership(settings.worker_suspect_s, settings.worker_lost_s)
        self.nudges = Nudges()
        self.observers: list[Callable[[list[Applied]], None]] = []
        self.watches = Watches(self.sessions, clock, settings.session_lease_s, self._end_sessions)
        self.committer = Committer(
            store, loop, queue_commands=settings.queue_commands, on_commit=self._invalidate, on_fatal=on_stop
        )
        self._tasks: set[asyncio.Future[machine.Outcome]] = set()

    @contextmanager
    def view(self) -> Iterator[View]:
        """The last committed state. Nothing may be awaited inside."""
        with self.store.snapshot() as reader:
            yield View(reader)

    # ---------------------------------------------------------------- checks

    def check_epoch(self, epoch: int) -> None:
        """0 passes: the caller does not know it yet. Raises: StaleEpoch, InvalidArgument.

        Nodes and operators are believed that there is a newer master; a user's word stops nobody.
        """
        if self.replaced_by:
            raise StaleEpoch(f"this master (epoch {self.epoch}) was replaced by one of epoch {self.replaced_by}")
        if epoch > self.epoch + EPOCH_LEAP_MAX:
            raise InvalidArgument(f"{epoch} is not an epoch of this cluster, which is at {self.epoch}")
        if epoch > self.epoch and not caller().trusted:
            raise StaleEpoch(f"epoch {epoch} is not that of this master, which is at {self.epoch}: register again")
        if epoch > self.epoch:
            self.replaced_by = epoch
            self.on_stop(f"a newer master is at epoch {epoch}, this one at {self.epoch}: it was replaced and stops")
            raise StaleEpoch(f"this master (epoch {self.epoch}) was replaced by one of epoch {epoch}")
        if epoch and epoch < self.epoch:
            raise StaleEpoch(f"epoch {epoch} is over, the master is at {self.epoch}: register again")

    def session(self, session_id: int, epoch: int) -> Session:
        """The session of a request. Raises: StaleEpoch, StaleSession, InvalidArgument."""
        self.check_epoch(epoch)
        if epoch == 0:
            raise StaleSession("a request without a session: register first")
        found = self.sessions.find(session_id)
        if found is not None and found.owner != caller().name:
            raise StaleSession(unknown_session(session_id))  # as if there were none
        return self.sessions.require(session_id, self.clock.monotonic_s())

    # ---------------------------------------------------------------- start

    async def begin(self, cluster_id: str) -> None:
        """A new epoch; what the tables know of sessions and workers counts until they come back or time is up."""
        await self.submit_own(BeginEpoch(cluster_id))
        now_s = self.clock.monotonic_s()
        with self.view() as view:
            cluster, epoch = view.cluster(), view.epoch()
            assert cluster is not None
            assert epoch is not None
            self.cluster, self.epoch = cluster, epoch.epoch
            for session_id, stored in view.sessions():
                self.sessions.open(_session(session_id, stored, now_s, restored=True))
            for worker_id, worker in view.workers():
                self.membership.restore(
                    Member(
                        worker_id=worker_id,
                        node_id=worker.node_id,
                        address=worker.address,
                        incarnation=worker.incarnation,
                        disk_paths=worker.disks,
                        seen_s=now_s,
                        heard=False,
                        draining=worker.draining,
                    )
                )

    async def open_session(self, command: RegisterSession) -> Session:
        """Raises: Busy, InvalidArgument, and what a commit raises."""
        if len(self.sessions) >= SESSIONS_MAX:
            raise Busy(f"{len(self.sessions)} sessions are open; try again when some have ended")
        former = self.sessions.of_client(command.client_id)
        if former is not None and former.owner not in ("", caller().name):
            raise NotPermitted(f"client {command.client_id:016x} is somebody else's")
        await self.submit_own(command)
        stored = records.Session(
            client_id=command.client_id,
            node_id=command.node_id,
            kind=command.kind,
            name=command.name,
            holds_grants=command.holds_grants,
            epoch=self.epoch,
            opened_ns=self.clock.wall_ns(),
        )
        session = _session(command.session_id, stored, self.clock.monotonic_s(), restored=False)
        session.owner = caller().name
        ended = self.sessions.open(session)
        if ended:
            self.watches.ended(ended)
        return session

    # ---------------------------------------------------------------- commits

    async def submit(self, request: Request) -> Committed:
        """Raises: Busy, Unavailable, NoSpace, DataDamaged, Internal, InvalidArgument."""
        committed: Committed = await self.committer.submit(request)
        return committed

    async def submit_own(self, command: AnyCommand) -> machine.Outcome:
        """A command of the master itself, whose failure is raised. Raises: HearthError."""
        committed = await self.submit(Request(command, self.clock.wall_ns()))
        error = machine.error_of(committed.outcome.result)
        if error is not None:
            raise error
        return committed.outcome

    async def run(self, job: Job) -> object:
        return await self.committer.run(job)

    def _invalidate(self, applied: list[Applied], version: int) -> list[Committed | None]:
        """After a commit, before anybody is answered: our own and other sessions' caches are owed what it changed."""
        done = (outcome for _, outcome in applied if isinstance(outcome, machine.Outcome))
        self.readable.committed(version, (touch for outcome in done for touch in outcome.touched))
        result: list[Committed | None] = []
        for request, outcome in applied:
            if not isinstance(outcome, machine.Outcome):
                result.append(None)
                continue
            self._grant_new_directory(request, outcome)
            debts = self.watches.invalidate(outcome.touched, request.session_id) if outcome.touched else []
            result.append(Committed(outcome, debts))
        for observe in self.observers:
            observe(applied)
        return result

    def _grant_new_directory(self, request: Request, outcome: machine.Outcome) -> None:
        """Whoever makes a directory knows that it is empty, until it is told otherwise: nobody else can have found the
        directory before this commit, and what later commits change in it comes after this."""
        session = self.sessions.find(request.session_id)
        made = isinstance(request.command, Mkdir) and not outcome.result.error and not outcome.replayed
        if session is not None and made:
            self.sessions.grant(session, outcome.result.reply.inode)

    def _end_sessions(self, session_ids: tuple[int, ...]) -> None:
        """Sessions that ended by themselves leave the tables too, without anybody waiting for it."""
        if self.stopping or self.replaced_by:
            return
        task = asyncio.ensure_future(self.submit_own(EndSessions(session_ids)))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[machine.Outcome]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("ending-sessions-failed", error=str(task.exception()))


def _session(session_id: int, stored: records.Session, now_s: float, *, restored: bool) -> Session:
    return Session(
        session_id=session_id,
        client_id=stored.client_id,
        kind=stored.kind,
        node_id=stored.node_id,
        name=stored.name,
        holds_grants=stored.holds_grants,
        seen_s=now_s,
        renewed_s=now_s,
        everything=restored and stored.holds_grants,
        restored=restored,
    )
