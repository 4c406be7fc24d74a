"""Sessions, cache grants, invalidations and fencing: a state machine that is told the time.

Laws:
- A session with grants may cache what a read of it returned, from before the read's snapshot was taken until it is told
  otherwise or its lease ends. The master's end of a lease is never before the client's: the client counts from when it
  sent the ping that was answered, the master from when it received it.
- A ping is answered only while the session owes no acknowledgement. So "my lease was renewed" means "I was told of
  every change before".
- An invalidation is done when the session acknowledged it, or ended. A session that owes one past its lease is fenced:
  it ends. One that owes nothing and is merely silent keeps its grants (nothing that it caches has changed) until
  ``idle_s``.
- Sessions of an earlier start of the master hold a grant on everything: what they cached is not known any more. They
  end by registering again, or a lease after the start.
- All of it lives in one thread; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..common.errors import StaleSession
from .change import Touch

GRANTS_MAX = 200_000
"""A session with more grants counts as holding all: memory is bounded, its invalidations only become more."""
PENDING_MAX = 2_000
"""More invalidations than this wait as one for each directory and inode, without names."""
NAMES_PER_DIRECTORY_MAX = 64


class Invalidation(NamedTuple):
    directory: int
    name: bytes
    inode: int
    content: bool


class Debt(NamedTuple):
    """An acknowledgement that a mutation waits for."""

    session_id: int
    event: int


@dataclass
class Session:
    session_id: int
    client_id: int
    kind: str
    node_id: str
    name: str
    holds_grants: bool
    seen_s: float
    renewed_s: float
    """When the last answered ping came in."""
    everything: bool = False
    restored: bool = False
    attached: int = 0
    """Number of the stream that serves it; 0: none."""
    grants: set[int] = field(default_factory=set)
    pending: dict[Invalidation, None] = field(default_factory=dict)
    """To be sent with the next event."""
    unacked: dict[Invalidation, None] = field(default_factory=dict)
    """Sent; sent again when the stream is replaced."""
    sent_event: int = 0
    acked_event: int = 0
    held_ping: tuple[int, float] | None = None
    owner: str = ""
    """Who registered it, and may use it; empty: it was restored and is nobody's."""

    @property
    def owes(self) -> bool:
        return bool(self.pending) or self.acked_event < self.sent_event


class Sessions:
    """``lease_s``: how long grants outlive the last answered ping. ``idle_s``: how long a silent session lives."""

    def __init__(self, lease_s: float, idle_s: float) -> None:
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._sessions: dict[int, Session] = {}
        self._of_client: dict[int, int] = {}
        self._holders: dict[int, set[int]] = {}  # inode -> sessions with a grant on it
        self._all_holders: set[int] = set()
        self._streams = 0
        self.fenced = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    @property
    def grants(self) -> int:
        return sum(len(session.grants) for session in self._sessions.values())

    # ---------------------------------------------------------------- begin and end

    def open(self, session: Session) -> int:
        """Adds a session; returns the id of the client's former one, which ends, or 0."""
        former = self._of_client.get(session.client_id, 0)
        if former:
            self.end(former)
        self._sessions[session.session_id] = session
        self._of_client[session.client_id] = session.session_id
        if session.everything:
            self._all_holders.add(session.session_id)
        return former

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        if self._of_client.get(session.client_id) == session_id:
            del self._of_client[session.client_id]
        self._all_holders.discard(session_id)
        for inode in session.grants:
            self._drop_holder(inode, session_id)

    def _drop_holder(self, inode: int, session_id: int) -> None:
        holders = self._holders[inode]
        holders.discard(session_id)
        if not holders:
            del self._holders[inode]

    def find(self, session_id: int) -> Session | None:
        return self._sessions.get(session_id)

    def of_client(self, client_id: int) -> Session | None:
        return self._sessions.get(self._of_client.get(client_id, 0))

    def require(self, session_id: int, now_s: float) -> Session:
        """The session, which shows a sign of life. Raises: StaleSession."""
        session = self._sessions.get(session_id)
        if session is None:
            raise StaleSession(unknown_session(session_id))
        session.seen_s = now_s
        return session

    def expire(self, now_s: float) -> list[Session]:
        """Ends and returns those that owe an acknowledgement past their lease, or have been silent too long."""
        ended = []
        for session in self._sessions.values():
            over = now_s - session.renewed_s > self._lease_s
            if session.holds_grants and over and (session.owes or session.restored):
                ended.append(session)
                self.fenced += 1
            elif now_s - max(session.seen_s, session.renewed_s) > self._idle_s:
                ended.append(session)
        for session in ended:
            self.end(session.session_id)
        return ended

    def next_fence_s(self) -> float | None:
        """When ``expire`` will have something to fence, if nobody acknowledges until then."""
        owing = [s.renewed_s for s in self._sessions.values() if s.holds_grants and (s.owes or s.restored)]
        return min(owing) + self._lease_s if owing else None

    # ---------------------------------------------------------------- grants and invalidations

    def grant(self, session: Session, *inodes: int) -> None:
        """To be called before the snapshot of the read is taken."""
        if not session.holds_grants or session.everything:
            return
        for inode in inodes:
            if inode not in session.grants:
                session.grants.add(inode)
                self._holders.setdefault(inode, set()).add(session.session_id)
        if len(session.grants) > GRANTS_MAX:
            session.everything = True
            self._all_holders.add(session.session_id)
            for inode in session.grants:
                self._drop_holder(inode, session.session_id)
            session.grants.clear()

    def invalidate(self, touched: Iterable[Touch], by_session: int) -> list[Debt]:
        """Queues what each other session must forget; returns what the mutation has to wait for."""
        found: dict[int, list[Invalidation]] = {}
        for touch in touched:
            sessions = set(self._all_holders)
            for inode in touch.holders:
                sessions |= self._holders.get(inode, set())
            for session_id in sessions - {by_session}:
                invalidation = Invalidation(touch.directory, touch.name, touch.inode, touch.content)
                found.setdefault(session_id, []).append(invalidation)
        debts = []
        for session_id, invalidations in found.items():
            session = self._sessions[session_id]
            session.pending.update(dict.fromkeys(coalesced(invalidations)))
            if len(session.pending) > PENDING_MAX:
                session.pending = dict.fromkeys(without_names(session.pending))
            debts.append(Debt(session_id, session.sent_event + 1))
        return debts

    def is_paid(self, debt: Debt) -> bool:
        session = self._sessions.get(debt.session_id)
        return session is None or session.acked_event >= debt.event

    # ---------------------------------------------------------------- the stream

    def attach(self, session: Session) -> int:
        """A stream begins: the one before it is replaced, and what it left unacknowledged is sent again."""
        self._streams += 1
        session.attached = self._streams
        session.pending = session.unacked | session.pending
        session.unacked = {}
        session.held_ping = None
        return session.attached

    def next_event(self, session: Session) -> tuple[int, list[Invalidation]] | None:
        """Takes what is pending as one event: its number and invalidations."""
        if not session.pending:
            return None
        session.sent_event += 1
        invalidations = list(session.pending)
        session.unacked.update(session.pending)
        session.pending = {}
        return session.sent_event, invalidations

    def ping(self, session: Session, number: int, now_s: float) -> int:
        """The ping to answer now, or 0: it is answered when the session owes nothing."""
        session.seen_s = now_s
        session.held_ping = (number, now_s)
        return self._answer(session)

    def ack(self, session: Session, event: int, now_s: float) -> int:
        """All events up to ``event`` are dealt with; the ping to answer now, or 0."""
        session.seen_s = now_s
        session.acked_event = max(session.acked_event, min(event, session.sent_event))
        if session.acked_event == session.sent_event:
            session.unacked = {}
        return self._answer(session)

    def _answer(self, session: Session) -> int:
        if session.held_ping is None or session.owes:
            return 0
        number, received_s = session.held_ping
        session.held_ping = None
        session.renewed_s = max(session.renewed_s, received_s)
        return number


def unknown_session(session_id: int) -> str:
    return f"session {session_id:016x} is unknown, ended or fenced: register again"


def coalesced(invalidations: list[Invalidation]) -> list[Invalidation]:
    """Many names of one directory become "any name of it"; the inodes among them stay."""
    names: dict[int, int] = {}
    for item in invalidations:
        if item.directory:
            names[item.directory] = names.get(item.directory, 0) + 1
    crowded = {directory for directory, count in names.items() if count > NAMES_PER_DIRECTORY_MAX}
    if not crowded:
        return invalidations
    rest = [item for item in invalidations if item.directory not in crowded]
    inodes = [Invalidation(0, b"", i.inode, i.content) for i in invalidations if i.directory in crowded and i.inode]
    return [Invalidation(directory, b"", 0, False) for directory in sorted(crowded)] + inodes + rest


def without_names(invalidations: Iterable[Invalidation]) -> list[Invalidation]:
    result: dict[Invalidation, None] = {}
    for item in invalidations:
        if item.directory:
            result[Invalidation(item.directory, b"", 0, False)] = None
        if item.inode:
            result[Invalidation(0, b"", item.inode, item.content)] = None
    return list(result)
