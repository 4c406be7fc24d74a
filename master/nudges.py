"""Streams by which the master asks workers for a heartbeat before its time: there is an order for them to fetch."""

from __future__ import annotations

import asyncio
from typing import Any

from ..proto import master_pb2

IDLE_S = 30.0
"""So often a stream that has nothing to say says something: its end is noticed."""


class Nudges:
    """One stream per worker; a newer one replaces the older. Everything runs in the loop's thread."""

    def __init__(self) -> None:
        self._wakes: dict[str, asyncio.Event] = {}
        self._closed = False

    def nudge(self, worker_id: str) -> None:
        """A worker without a stream fetches its orders with its next heartbeat."""
        wake = self._wakes.get(worker_id)
        if wake is not None:
            wake.set()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for wake in self._wakes.values():
            wake.set()

    async def serve(self, worker_id: str, context: Any) -> None:
        """Until the worker goes, another stream of it comes, or the master stops."""
        self.nudge(worker_id)
        wake = self._wakes[worker_id] = asyncio.Event()
        try:
            while not self._closed and self._wakes.get(worker_id) is wake:
                await context.write(master_pb2.Nudge())
                wake.clear()
                try:
                    await asyncio.wait_for(wake.wait(), IDLE_S)
                except TimeoutError:
                    continue
        finally:
            if self._wakes.get(worker_id) is wake:
                del self._wakes[worker_id]
