"""The master, asked from trio: gRPC's own threads carry the calls, none of ours hops.

One call waits at most ``timeout_s`` in all, retries included: through a restart of the master it waits, then it fails
with EIO. A mutation keeps its number through every retry. A stale session is replaced once, whoever finds out first,
after ``on_stale`` has dropped every cache.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc
import trio

from ..client.retry import RetryPolicy, attempt_timeout_s
from ..client.session import Session, Ticket
from ..common.credentials import Connect
from ..common.errors import DeadlineExceeded, HearthError, StaleEpoch, StaleSession, Unavailable, from_rpc_error
from ..common.telemetry import TRACE_KEY, get_logger, new_trace_id
from ..proto import master_pb2 as pb
from ..proto.master_pb2_grpc import MasterStub

log = get_logger(__name__)

MAX_IN_FLIGHT = 64


class HasContext(Protocol):
    @property
    def context(self) -> Any: ...


class MasterLink:
    """
    Attributes:
        away: the last attempt of any call got no answer.
    """

    def __init__(
        self, address: str, session: Session, timeout_s: float, attempt_timeout_s: float, connect: Connect
    ) -> None:
        self.address = address
        self.session = session
        self.channel = connect(address)
        self.stub = MasterStub(self.channel)
        self.on_stale: Callable[[], Awaitable[None]] | None = None
        self.on_session: Callable[[], None] | None = None
        self.stale_sessions = 0
        self.away = False
        self._failed_registrations = 0  # since the last one that succeeded: a master that is away fills no log
        self._timeout_s = timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._policy = RetryPolicy()
        self._registering = trio.Lock()
        self._slots = trio.Semaphore(MAX_IN_FLIGHT)

    def register_first(self, timeout_s: float) -> None:
        """Blocking, before the mount exists and before trio runs.

        Raises:
            Unavailable: nobody answers there. WrongCluster and others: the master refuses us.
        """
        begin = time.monotonic()
        while True:
            left = timeout_s - (time.monotonic() - begin)
            try:
                reply = self.stub.Register(self.session.register_request(), timeout=max(0.1, left))
                self.session.registered(reply)
                return
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error, f"master at {self.address}")
                if not error.retryable or left < 0.3:
                    raise error from None
                time.sleep(0.2)

    async def read(self, method: str, request: HasContext) -> Any:
        """A call that changes nothing.

        Raises:
            HearthError: the master's answer, or Unavailable / DeadlineExceeded after ``timeout_s``.
        """

        def prepare(ticket: Ticket) -> HasContext:
            request.context.CopyFrom(ticket.context())
            return request

        return await self._call(method, prepare)

    async def mutate(self, request: pb.MutateRequest) -> pb.MutateReply:
        """A change, applied exactly once. Raises as ``read``; after a timeout it may have happened or not."""
        number = self.session.begin()

        def prepare(ticket: Ticket) -> pb.MutateRequest:
            self.session.stamp(request, number, ticket)
            return request

        try:
            reply: pb.MutateReply = await self._call("Mutate", prepare)
            return reply
        finally:
            self.session.finish(number)

    async def _call(self, method: str, prepare: Callable[[Ticket], Any]) -> Any:
        begin = trio.current_time()
        attempt = 0
        async with self._slots:
            while True:
                attempt += 1
                ticket = self.session.ticket()
                limit = attempt_timeout_s(trio.current_time() - begin, self._timeout_s, self._attempt_timeout_s)
                try:
                    return await self._once(getattr(self.stub, method), prepare(ticket), limit, method)
                except HearthError as error:
                    elapsed = trio.current_time() - begin
                    delay = self._policy.delay_s(attempt, elapsed, self._timeout_s, error, random.random())
                    if delay is None:
                        raise
                    if isinstance(error, StaleSession | StaleEpoch):
                        await self.renew(ticket, self._timeout_s - elapsed)
                    await trio.sleep(delay)

    async def renew(self, seen: Ticket, timeout_s: float) -> None:
        """A new session, unless somebody got one since ``seen``. Failure leaves the old one; the caller's next attempt
        finds it stale again."""
        with trio.move_on_after(timeout_s):
            async with self._registering:
                if not self.session.is_current(seen):
                    return
                self.stale_sessions += 1
                if not self._failed_registrations:
                    log.warning("session-stale", session=f"{seen.session_id:016x}", epoch=seen.epoch)
                if self.on_stale is not None:
                    await self.on_stale()
                try:
                    request = self.session.register_request()
                    reply = await self._once(self.stub.Register, request, self._attempt_timeout_s, "Register")
                except HearthError as error:
                    self._failed_registrations += 1
                    if self._failed_registrations in (1, 10) or self._failed_registrations % 100 == 0:
                        log.warning("register-failed", failures=self._failed_registrations, reason=str(error))
                    return
                self._failed_registrations = 0
                self.session.registered(reply)
                log.info("session-renewed", session=f"{reply.session_id:016x}", epoch=reply.epoch)
                if self.on_session is not None:
                    self.on_session()

    async def _once(self, method: Any, request: Any, timeout_s: float, name: str) -> Any:
        """One attempt. gRPC calls back on a thread of its own; the result is picked up here."""
        token = trio.lowlevel.current_trio_token()
        answered = trio.Event()

        def wake(_: Any) -> None:
            try:
                token.run_sync_soon(answered.set)
            except trio.RunFinishedError:
                return  # the mount is gone, nobody waits

        what = f"{name} on the master at {self.address}"
        try:
            call = method.future(request, timeout=max(0.001, timeout_s), metadata=((TRACE_KEY, new_trace_id()),))
        except ValueError:  # the channel is closed
            raise Unavailable(f"{what}: the mount is ending") from None
        call.add_done_callback(wake)
        try:
            with trio.move_on_after(timeout_s + 1.0):  # gRPC's own deadline comes first
                await answered.wait()
                error = call.exception()
                if error is not None:
                    failure = from_rpc_error(error, what)
                    self.away = isinstance(failure, Unavailable | DeadlineExceeded)
                    raise failure
                self.away = False
                return call.result()
            self.away = True
            raise DeadlineExceeded(f"{what}: no answer within {timeout_s:g} s")
        finally:
            if not call.done():
                call.cancel()

    def close(self) -> None:
        self.channel.close()
