"""Watch streams: carries invalidations out, pings and acknowledgements in, and lets mutations wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ..common.clock import Clock
from ..common.errors import InvalidArgument, StaleSession
from ..common.telemetry import get_logger
from ..proto import master_pb2
from . import codec, metrics
from .change import Touch
from .sessions import Debt, Session, Sessions

log = get_logger("hearthfs.master")


class Watches:
    """``on_end`` gets the ids of sessions that ended by themselves. Everything runs in the loop's thread."""

    def __init__(
        self, sessions: Sessions, clock: Clock, lease_s: float, on_end: Callable[[tuple[int, ...]], None]
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._lease_s = lease_s
        self._on_end = on_end
        self._wakes: dict[int, asyncio.Event] = {}
        self._progress = asyncio.Event()
        self._closed = False

    def invalidate(self, touched: Sequence[Touch], by_session: int) -> list[Debt]:
        debts = self._sessions.invalidate(touched, by_session)
        for debt in debts:
            self._wake(debt.session_id)
        return debts

    def outstanding(self, by_session: int) -> list[Debt]:
        """What all other sessions owe now: for a repeated request, whose own debts are not known any more."""
        return [
            Debt(session.session_id, session.sent_event + bool(session.pending))
            for session in self._sessions
            if session.owes and session.session_id != by_session
        ]

    async def wait(self, debts: Sequence[Debt]) -> None:
        """Returns when each is paid: acknowledged, or its session over. At most about a lease."""
        started_s = self._clock.monotonic_s()
        while not all(self._sessions.is_paid(debt) for debt in debts):
            progress = self._progress
            fence_s = self._sessions.next_fence_s()
            timeout_s = self._lease_s if fence_s is None else max(0.0, fence_s - self._clock.monotonic_s()) + 0.01
            try:
                await asyncio.wait_for(progress.wait(), timeout_s)
            except TimeoutError:
                self.expire()
        metrics.INVALIDATION_SECONDS.observe(self._clock.monotonic_s() - started_s)

    def expire(self) -> None:
        ended = self._sessions.expire(self._clock.monotonic_s())
        if not ended:
            return
        for session in ended:
            log.warning(
                "session-ended",
                session=f"{session.session_id:016x}",
                client=session.name,
                node=session.node_id,
                reason="did not acknowledge an invalidation within its lease" if session.owes else "silent",
            )
            if session.owes or session.restored:
                metrics.FENCED.inc()
            self.ended(session.session_id)
        self._on_end(tuple(session.session_id for session in ended))

    def ended(self, session_id: int) -> None:
        """Closes the session's stream and lets those go on that waited for it."""
        self._wake(session_id)
        self._advance()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for wake in self._wakes.values():
            wake.set()

    def _wake(self, session_id: int) -> None:
        wake = self._wakes.get(session_id)
        if wake is not None:
            wake.set()

    def _advance(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def serve(self, session: Session, first: master_pb2.WatchRequest, context: Any) -> None:
        """Serves one stream until the client or the session ends, or a newer stream of the session replaces it.

        Raises:
            StaleSession: the session ended; the client must drop its caches and register again.
        """
        stream = self._sessions.attach(session)
        self._wake(session.session_id)  # the stream that this one replaces
        wake = self._wakes[session.session_id] = asyncio.Event()
        pongs = [0]
        wake.set()
        await context.write(master_pb2.WatchEvent())
        reader = asyncio.create_task(self._read(session, first, context, pongs, wake))
        try:
            while session.attached == stream and not reader.done() and not self._closed:
                await wake.wait()
                wake.clear()
                if self._sessions.find(session.session_id) is not session:
                    raise StaleSession(f"session {session.session_id:016x} ended or was fenced: register again")
                if session.attached == stream:
                    await self._write(session, context, pongs)
        except TimeoutError:
            return  # the client does not read: the lease decides about the session
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if self._wakes.get(session.session_id) is wake:
                del self._wakes[session.session_id]
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error

    async def _write(self, session: Session, context: Any, pongs: list[int]) -> None:
        pong, pongs[0] = pongs[0], 0
        event = self._sessions.next_event(session)
        if event is None and not pong:
            return
        message = master_pb2.WatchEvent(pong=pong)
        if event is not None:
            message.event = event[0]
            message.invalidations.extend(codec.invalidation(item) for item in event[1])
        await asyncio.wait_for(context.write(message), self._lease_s)

    async def _read(
        self, session: Session, first: master_pb2.WatchRequest, context: Any, pongs: list[int], wake: asyncio.Event
    ) -> None:
        try:
            message: Any = first
            while isinstance(message, master_pb2.WatchRequest):
                if message.ack_event > session.sent_event:
                    raise InvalidArgument(
                        f"event {message.ack_event} was never sent; the last was {session.sent_event}"
                    )
                now_s = self._clock.monotonic_s()
                if message.ack_event:
                    pongs[0] = self._sessions.ack(session, message.ack_event, now_s) or pongs[0]
                    self._advance()
                if message.ping:
                    pongs[0] = self._sessions.ping(session, message.ping, now_s) or pongs[0]
                wake.set()
                message = await context.read()  # grpc.aio.EOF at the end
        finally:
            wake.set()
