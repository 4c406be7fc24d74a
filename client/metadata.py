"""Blocking calls to the master: the one place that sends, times, repeats and translates errors.

What goes over the wire is in ``proto/master.proto``. A call that fails in a way that may pass is sent again within the
caller's deadline; a mutation keeps its number, so that it happens once.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import grpc

from ..common.errors import HearthError, StaleEpoch, StaleSession, Unavailable, from_rpc_error
from ..common.telemetry import TRACE_KEY, current_trace_id
from ..common.types import BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from ..proto.master_pb2_grpc import MasterStub
from .channels import check_process, open_channel
from .deadline import Deadline
from .retry import RetryPolicy, attempt_timeout_s
from .session import Session, Ticket

Reply = TypeVar("Reply")


class Metadata:
    """Thread-safe. ``learn`` sees every reply. ``sleep`` and ``chance`` (uniform in [0, 1)) are arguments for tests."""

    def __init__(
        self,
        master: str,
        session: Session,
        *,
        policy: RetryPolicy | None = None,
        attempt_limit_s: float = 10.0,
        connect: Callable[[str], grpc.Channel] = open_channel,
        learn: Callable[[Any], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.master = master
        self.session = session
        self._policy = policy or RetryPolicy()
        self._attempt_limit_s = attempt_limit_s
        self._learn = learn
        self._sleep = sleep
        self._chance = chance
        self._channel = connect(master)
        self._stub: Any = MasterStub(self._channel)
        self._closed = False
        self._pid = os.getpid()

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    # -- reads

    def lookup(self, parent: int, name: bytes, deadline: Deadline) -> common.Entry:
        return self._read("Lookup", pb.LookupRequest(parent=parent, name=name), deadline, common.Entry)

    def resolve(self, path: bytes, deadline: Deadline, *, follow: bool = True, access: int = 0) -> common.Entry:
        """``access``: what the caller must be allowed, as of access(2). Raises: NotFound, NotADirectory, SymlinkLoop,
        AccessDenied, and what every call may raise."""
        return self._read(
            "Resolve", pb.ResolveRequest(path=path, no_follow=not follow, access=access), deadline, common.Entry
        )

    def getattr(self, inode: int, deadline: Deadline) -> common.Entry:
        return self._read("Getattr", pb.GetattrRequest(inode=inode), deadline, common.Entry)

    def readdir(
        self, inode: int, page_entries: int, deadline: Callable[[], Deadline], *, want_entries: bool
    ) -> Iterator[pb.DirectoryEntry]:
        """All entries, page by page; each page has a deadline of its own."""
        after = 0
        while True:
            page = self._read(
                "Readdir",
                pb.ReaddirRequest(inode=inode, after_cookie=after, limit=page_entries, want_entries=want_entries),
                deadline(),
                pb.ReaddirReply,
            )
            yield from page.entries
            if page.end or not page.entries:
                return
            after = page.entries[-1].cookie

    def xattrs(self, inode: int, deadline: Deadline) -> dict[str, bytes]:
        return dict(self._read("GetXattrs", pb.GetXattrsRequest(inode=inode), deadline, pb.GetXattrsReply).xattrs)

    def statfs(self, deadline: Deadline, inode: int = 0) -> pb.StatfsReply:
        """``inode``: as far as its quotas leave."""
        return self._read("Statfs", pb.StatfsRequest(inode=inode), deadline, pb.StatfsReply)

    def lookup_many(self, request: pb.LookupManyRequest, deadline: Deadline) -> pb.LookupManyReply:
        return self._read("LookupMany", request, deadline, pb.LookupManyReply)

    def sign_blocks(self, keys: Sequence[BlockKey], deadline: Deadline) -> Sequence[bytes]:
        """New block tokens, empty where the caller has no right to the block."""
        blocks = [pb.BlockKey(block=key.block, generation=key.generation) for key in keys]
        return self._read("SignBlocks", pb.SignBlocksRequest(blocks=blocks), deadline, pb.SignBlocksReply).tokens

    # -- mutations

    def mutate(self, request: pb.MutateRequest, deadline: Deadline) -> pb.MutateReply:
        """Applies ``request.op`` exactly once, however often it had to be sent. After an error that is about the way
        to the master (Unavailable, DeadlineExceeded) it may have been applied or not."""
        number = self.session.begin()

        def send(ticket: Ticket, timeout_s: float) -> pb.MutateReply:
            self.session.stamp(request, number, ticket)
            return self._send("Mutate", request, timeout_s, pb.MutateReply)

        try:
            return self._persist(request.WhichOneof("op") or "Mutate", deadline, send)
        finally:
            self.session.finish(number)

    # -- how

    def ensure_registered(self, deadline: Deadline) -> Ticket:
        """The current session, registered for now if there is none."""
        return self._persist("Register", deadline, lambda ticket, _timeout_s: ticket)

    def _read(self, method: str, request: Any, deadline: Deadline, reply: type[Reply]) -> Reply:
        def send(ticket: Ticket, timeout_s: float) -> Reply:
            request.context.CopyFrom(ticket.context())
            return self._send(method, request, timeout_s, reply)

        return self._persist(method, deadline, send)

    def _persist(self, what: str, deadline: Deadline, send: Callable[[Ticket, float], Reply]) -> Reply:
        """Sends until it succeeds, fails for good, or the deadline leaves no room for another attempt."""
        attempt = 0
        stale: Ticket | None = None
        while True:
            attempt += 1
            deadline.left_s(f"{what} on master {self.master}")
            timeout_s = attempt_timeout_s(deadline.elapsed_s(), deadline.timeout_s, self._attempt_limit_s)
            ticket = self.session.ticket()
            try:
                if ticket.generation == 0 or (stale is not None and self.session.is_current(stale)):
                    ticket = self._register(ticket, timeout_s)
                return send(ticket, timeout_s)
            except HearthError as error:
                delay = self._policy.delay_s(attempt, deadline.elapsed_s(), deadline.timeout_s, error, self._chance())
                if delay is None or self._closed:
                    raise
                if isinstance(error, StaleSession | StaleEpoch):
                    stale = ticket
            self._sleep(delay)

    def _register(self, seen: Ticket, timeout_s: float) -> Ticket:
        def register(request: pb.RegisterRequest) -> pb.RegisterReply:
            return self._send("Register", request, timeout_s, pb.RegisterReply)

        return self.session.renew(seen, register, timeout_s)

    def _send(self, method: str, request: Any, timeout_s: float, reply: type[Reply]) -> Reply:
        check_process(self._pid)
        if self._closed:
            raise Unavailable("the client is closed")
        try:
            call = getattr(self._stub, method)
            answer = call(request, timeout=timeout_s, metadata=((TRACE_KEY, current_trace_id()),))
            assert isinstance(answer, reply)
            self._learn(answer)
            return answer
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"{method} on master {self.master}") from None
        except ValueError:  # what grpc raises on a channel that another thread closed meanwhile
            if self._closed:
                raise Unavailable("the client is closed") from None
            raise
