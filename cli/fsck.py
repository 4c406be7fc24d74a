"""``hearth fsck``: asks the master and every worker what they have and says where they disagree.

With ``--repair`` it has the cluster mend what it can mend itself: replicas that are not what the master counts on are
looked at by their worker and made again from others, blocks that the master does not count on are reported anew.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from .consistency import Finding

REPAIR_S = 120.0
SETTLE_S = 3.0
"""Time for a heartbeat to carry what happened between the two snapshots: reports of blocks, orders to delete."""


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Operating")(fsck)


def fsck(
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
    settle_s: Annotated[
        float, typer.Option("--settle", min=0, help="Seconds until a finding is checked again, if there is any.")
    ] = SETTLE_S,
    repair: Annotated[bool, typer.Option("--repair", help="Mend replicas; then say what is left.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Seconds that --repair waits.")] = REPAIR_S,
) -> None:
    """Check the cluster: namespace, blocks, references. The cluster may be in use; without --repair nothing changes.

    Names of workers that do not answer and blocks without a replica are warnings. Exit code 3 when there is any
    finding.
    """
    from . import output

    address = options.master_address(master, config)
    with output.busy("checking", quiet=as_json):
        found = confirmed(address, settle_s)
        mended: list[Finding] = []
        if repair and found:
            left = repaired(address, found, settle_s, timeout_s)
            mended, found = [finding for finding in found if finding not in left], left
    if as_json:
        record = {"findings": [finding._asdict() for finding in found]}
        if repair:
            record["mended"] = [finding._asdict() for finding in mended]
        output.print_json(record)
    else:
        if mended:
            output.console().print(f"{len(mended)} findings mended")
        _print(found)
    if found:
        raise typer.Exit(3)


def confirmed(master: str, settle_s: float) -> list[Finding]:
    """Findings that two checks some seconds apart agree on: snapshots of a master and its workers are never of one
    moment, so what is on its way between them looks wrong once, and only once."""
    first = _check(master)
    if not first:
        return []
    time.sleep(settle_s)
    second = set(_check(master))
    return [finding for finding in first if finding in second]


def repaired(master: str, found: list[Finding], settle_s: float, timeout_s: float) -> list[Finding]:
    """Asks for what can be mended until nothing is left of that, or the time is up; what is left then."""
    from . import consistency, endpoint

    end_s = time.monotonic() + timeout_s
    while True:
        wanted = consistency.remedies(found)
        if wanted.replicas or wanted.report_workers:
            endpoint.recheck(master, wanted.replicas, wanted.report_workers)
        time.sleep(settle_s)
        found = confirmed(master, settle_s)
        if not any(finding.kind in consistency.MENDED for finding in found) or time.monotonic() >= end_s:
            return found


def _check(master: str) -> list[Finding]:
    from concurrent.futures import ThreadPoolExecutor

    from . import consistency, endpoint

    workers = endpoint.status(master).workers
    with ThreadPoolExecutor(max_workers=16) as pool:
        # Workers are asked before the master: a block that is published meanwhile is known to it already.
        lists = list(pool.map(endpoint.worker_blocks, [worker.worker.address for worker in workers]))
    reports = {worker.worker.worker_id: blocks for worker, blocks in zip(workers, lists, strict=True)}
    return consistency.check(endpoint.dump(master), reports)


def _print(found: list[Finding]) -> None:
    from . import output

    console = output.console()
    for finding in found:
        colour = "red" if finding.severity == "error" else "yellow"
        line: list[Any] = [f"[{colour}]{finding.severity}[/]", output.plain(f"{finding.where}: {finding.text}")]
        console.print(*line, soft_wrap=True)
    errors = sum(finding.severity == "error" for finding in found)
    console.print(f"{errors} errors, {len(found) - errors} warnings" if found else "clean")
