"""Tasks beside the handlers. A bug in one of them is a line in the log, never the end of the mount."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

from ..common.telemetry import get_logger

log = get_logger(__name__)

A = TypeVarTuple("A")


def start(nursery: trio.Nursery, function: Callable[[*A], Awaitable[object]], *args: *A) -> None:
    """``nursery.start_soon`` for a task whose failure must not cancel the others."""
    nursery.start_soon(_guarded, function, args)


def detach(function: Callable[[*A], Awaitable[object]], *args: *A) -> None:
    """The same for a task that belongs to nobody; it ends with trio's loop."""
    trio.lowlevel.spawn_system_task(_guarded, function, args)


async def _guarded(function: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
    try:
        await function(*args)
    except Exception as error:
        log.exception("background-task-failed", task=getattr(function, "__name__", "?"), reason=repr(error))


def call(function: Callable[[], object]) -> None:
    """For callbacks that trio runs by itself, where an exception would end the whole loop."""
    try:
        function()
    except Exception as error:
        log.exception("callback-failed", reason=repr(error))
