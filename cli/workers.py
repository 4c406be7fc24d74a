"""``hearth worker drain`` and ``rebalance``: moves what workers have to others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..proto import master_pb2 as pb

POLL_S = 0.5
WorkerId = Annotated[str, typer.Argument(metavar="WORKER", help="As `hearth status` shows it.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait at most; 0: as long as it takes.")]


def add_to(app: typer.Typer) -> None:
    for command in (drain, rebalance):
        app.command()(command)


def drain(
    worker: WorkerId,
    stop: Annotated[bool, typer.Option("--stop", help="Drain it no more: it gets new blocks again.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="It is empty or lost for good: list it no more. What only it had is lost.")
    ] = False,
    wait: Wait = False,
    timeout_s: Timeout = 0,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Empty a worker before it is taken away: no new blocks, what it has is copied to others and deleted there.

    Exit code 1 when --timeout passed.
    """
    from . import endpoint

    address = options.master_address(master, config)
    endpoint.drain(address, worker, stop=stop, forget=forget)
    if forget:
        typer.echo(f"{worker}: forgotten")
    elif stop:
        typer.echo(f"{worker}: drained no more")
    elif not wait:
        typer.echo(f"{worker}: draining; hearth status shows when it is empty")
    elif _wait(address, timeout_s, lambda reply: _is_empty(reply, worker)):
        typer.echo(f"{worker}: empty")
    else:
        typer.echo(f"hearth: {worker} is not empty after {timeout_s:g} s; hearth status shows what is left", err=True)
        raise typer.Exit(1)


def _is_empty(reply: pb.StatusReply, worker: str) -> bool:
    found = [each for each in reply.workers if each.worker.worker_id == worker]
    return all(each.draining and not each.replicas and not each.blocks for each in found)


def rebalance(
    percent: Annotated[int, typer.Option("--to-within", min=1, max=50, help="Percent above the mean that stay.")] = 5,
    stop: Annotated[bool, typer.Option("--stop", help="Move nothing more.")] = False,
    wait: Wait = False,
    timeout_s: Timeout = 0,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Move blocks from workers that are fuller than others to those below the mean, once.

    A KV cache reads fastest where it was written: do this when a disk is about to be full, not for its own sake.
    """
    from . import endpoint

    address = options.master_address(master, config)
    endpoint.rebalance(address, 0 if stop else percent)
    if stop:
        typer.echo("rebalancing stopped")
    elif not wait:
        typer.echo("rebalancing; hearth status shows when it is done")
    elif _wait(address, timeout_s, lambda reply: not reply.rebalance_percent):
        typer.echo("balanced")
    else:
        typer.echo(f"hearth: not balanced after {timeout_s:g} s", err=True)
        raise typer.Exit(1)


def _wait(address: str, timeout_s: float, is_done: Callable[[pb.StatusReply], bool]) -> bool:
    """Polls the master; False: not in time."""
    from . import endpoint

    end_s = time.monotonic() + timeout_s
    while not is_done(endpoint.status(address)):
        if timeout_s and time.monotonic() >= end_s:
            return False
        time.sleep(POLL_S)
    return True
