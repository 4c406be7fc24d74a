"""The Watch stream: pings out, invalidations in, acks out. Blocking gRPC in threads of its own.

Law: an event is acknowledged only after the mount's caches and the kernel's are clean, which ``on_event`` reports by
calling ``acknowledge``. A stream that ended is never taken up again: ``on_lost`` is called once, and a new session gets
a new ``Watch``.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ..common.telemetry import get_logger
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from .lease import Lease

log = get_logger(__name__)

MAX_QUEUED = 1024

OnEvent = Callable[["Watch", pb.WatchEvent], None]
OnLost = Callable[["Watch", str], None]


class Watch:
    """Starts at once.

    Args:
        open_stream: ``MasterStub.Watch``.
        on_event: called on the stream's thread for each event with invalidations; must not wait for the master.
        on_lost: called on the stream's thread when the stream ended and nobody closed it.
    """

    def __init__(
        self, open_stream: Callable[..., Any], context: common.Context, lease: Lease, on_event: OnEvent, on_lost: OnLost
    ) -> None:
        self._lease = lease
        self._on_event = on_event
        self._on_lost = on_lost
        self._context = context
        self._out: queue.Queue[int | None] = queue.Queue(MAX_QUEUED)
        self._closed = threading.Event()
        self._call = open_stream(self._requests())
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def acknowledge(self, event: int) -> None:
        """All events up to this one are dealt with. From any thread."""
        try:
            self._out.put_nowait(event)
        except queue.Full:  # the stream is stuck; the lease runs out and the session with it
            self.close()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(queue.Full):
            self._out.put_nowait(None)
        self._call.cancel()

    def _requests(self) -> Iterator[pb.WatchRequest]:
        """gRPC takes these on a thread of its own."""
        yield pb.WatchRequest(context=self._context, ping=self._lease.ping())
        while not self._closed.is_set():
            try:
                acknowledged = self._out.get(timeout=self._lease.ping_interval_s)
            except queue.Empty:
                yield pb.WatchRequest(ping=self._lease.ping())
                continue
            if acknowledged is None:
                return
            # The ping that follows an ack at once renews the lease that was held back for it.
            yield pb.WatchRequest(ack_event=acknowledged, ping=self._lease.ping())

    def _run(self) -> None:
        reason = "the master ended it"
        try:
            for event in self._call:
                if event.pong:
                    self._lease.pong(event.pong)
                if event.event:
                    self._on_event(self, event)
        except grpc.RpcError as error:
            call: Any = error
            reason = f"{call.code().name}: {call.details()}"
        except Exception:
            log.exception("watch-failed")
            reason = "a bug, see the trace above"
        if not self._closed.is_set():
            self._closed.set()
            self._on_lost(self, reason)
