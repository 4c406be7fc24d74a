"""What a client process knows of its session with the master: identity, epoch, request numbers. No I/O.

Laws:

- ``client_id`` names the process and never changes; the session under it may be replaced at any time.
- A mutation takes its number once and keeps it through every retry, also into a new session: (client_id, number) is
  what makes it happen exactly once.
- ``acked_below`` is below every number whose result is still awaited; it never goes back.
- ``generation`` grows by one with each registration. A caller notes it (``Ticket``) before a call; when the answer is
  StaleSession or StaleEpoch it asks for a registration only if the generation has not moved since: so any number of
  threads that fail together register once.

A blocking caller uses ``renew``; an asynchronous one does the same with ``is_current``, ``register_request``,
``registered`` under a lock of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..common.errors import DeadlineExceeded
from ..common.types import PROTOCOL
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb

Register = Callable[[pb.RegisterRequest], pb.RegisterReply]


@dataclass(frozen=True)
class Identity:
    """Who registers. ``cluster_id`` empty: any cluster, and then only that one."""

    node_id: str = ""
    kind: str = "sdk"
    name: str = ""
    cluster_id: str = ""
    holds_grants: bool = False


@dataclass(frozen=True)
class Ticket:
    """The session as it was when a call was prepared."""

    generation: int
    session_id: int
    epoch: int

    def context(self) -> common.Context:
        return common.Context(session_id=self.session_id, epoch=self.epoch)


class Session:
    """Thread-safe; every method but ``renew`` returns at once."""

    def __init__(self, identity: Identity, client_id: int | None = None) -> None:
        self.identity = identity
        self.client_id = client_id or secrets.randbits(64) or 1
        self._lock = threading.Lock()
        self._registering = threading.Lock()
        self._ticket = Ticket(0, 0, 0)
        self._cluster_id = identity.cluster_id
        self._lease_s = 0.0
        self._next_request = 1
        self._outstanding: dict[int, None] = {}  # in ascending order, as numbers are handed out

    # -- registration

    def ticket(self) -> Ticket:
        """The current session; generation 0 when there was none yet."""
        return self._ticket

    def context(self) -> common.Context:
        return self._ticket.context()

    def is_current(self, ticket: Ticket) -> bool:
        """Whether nobody registered since ``ticket`` was taken, so that it is the caller's turn."""
        return ticket.generation == self._ticket.generation

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def epoch(self) -> int:
        return self._ticket.epoch

    @property
    def lease_s(self) -> float:
        """How long grants last after the last answered ping was sent; 0 before the first registration."""
        return self._lease_s

    def register_request(self) -> pb.RegisterRequest:
        who = self.identity
        return pb.RegisterRequest(
            client_id=self.client_id,
            node_id=who.node_id,
            kind=who.kind,
            name=who.name,
            cluster_id=self._cluster_id,
            protocol=PROTOCOL,
            holds_grants=who.holds_grants,
        )

    def registered(self, reply: pb.RegisterReply) -> Ticket:
        """Takes over what the master answered. A client with caches has dropped them before it calls this."""
        with self._lock:
            self._ticket = Ticket(self._ticket.generation + 1, reply.session_id, reply.epoch)
            self._cluster_id = reply.cluster_id or self._cluster_id
            self._lease_s = reply.lease_ms / 1000
            return self._ticket

    def renew(self, seen: Ticket, register: Register, timeout_s: float) -> Ticket:
        """Registers, unless somebody did since ``seen``. Threads that come meanwhile wait for the one that does.

        Raises:
            DeadlineExceeded: another thread's registration took longer than ``timeout_s``.
            HearthError: whatever ``register`` raised; the session is as it was, the next caller tries again.
        """
        if not self._registering.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"another thread could not register with the master for {timeout_s:.1f} s")
        try:
            if self.is_current(seen):
                self.registered(register(self.register_request()))
            return self._ticket
        finally:
            self._registering.release()

    # -- mutations

    def begin(self) -> int:
        """The number of a new mutation. Every number is given back by ``finish``."""
        with self._lock:
            number = self._next_request
            self._next_request += 1
            self._outstanding[number] = None
            return number

    def finish(self, number: int) -> None:
        """The result has arrived, or nobody waits for it any longer."""
        with self._lock:
            self._outstanding.pop(number, None)

    @property
    def acked_below(self) -> int:
        with self._lock:
            return next(iter(self._outstanding), self._next_request)

    def stamp(self, request: pb.MutateRequest, number: int, ticket: Ticket) -> None:
        """Writes context, client and numbers into a mutation; again before each attempt, with the ticket of then."""
        request.context.CopyFrom(ticket.context())
        request.client_id = self.client_id
        request.request_id = number
        request.acked_below = self.acked_below
