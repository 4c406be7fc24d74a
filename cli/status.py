"""``hearth status`` and ``hearth df``: the cluster in numbers, from one question to the master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from pathlib import Path

    from ..proto import master_pb2 as pb

PANEL = "Operating"


def add_to(app: typer.Typer) -> None:
    for command in (status, df):
        app.command(rich_help_panel=PANEL)(command)


def status(master: options.Master = None, config: options.Config = None, as_json: options.Json = False) -> None:
    """Show master, workers, mounts and what they hold.

    Exit code 1 when the master does not answer.
    """
    from . import endpoint, output

    reply = endpoint.status(options.master_address(master, config))
    if as_json:
        output.print_json(as_record(reply))
    else:
        _print(reply)


def df(
    path: Annotated[str | None, typer.Argument(help="What is left here, where a quota may hold.")] = None,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show the space of the cluster and of each disk, or what is left at a path."""
    from . import endpoint, output

    if path is not None:
        _df_at(path, master, config, as_json=as_json)
        return

    record = as_record(endpoint.status(options.master_address(master, config)))
    if as_json:
        output.print_json({key: record[key] for key in ("totals", "workers")})
        return
    table = output.table("worker", "disk", ">size", ">used", ">free", ">use%", "")
    for worker in record["workers"]:
        for disk in worker["disks"]:
            note = "failed" if disk["failed"] else "" if worker["state"] == "live" else worker["state"]
            cells = _space(disk["capacity_bytes"], disk["used_bytes"], disk["available_bytes"])
            table.add_row(output.plain(worker["id"]), output.plain(disk["path"]), *cells, note)
    totals = record["totals"]
    table.add_row("total", "", *_space(totals["total_bytes"], totals["used_bytes"], totals["available_bytes"]), "")
    output.console().print(table)


def _df_at(path: str, master: str | None, config: Path | None, *, as_json: bool) -> None:
    from . import output
    from .connection import connect, in_cluster

    (place,) = in_cluster([path])
    with connect(master, config) as client:
        space = client.statvfs(place)
    numbers = (space.total_bytes, space.used_bytes, space.available_bytes)
    if as_json:
        output.print_json(dict(zip(("total_bytes", "used_bytes", "available_bytes"), numbers, strict=True)))
        return
    table = output.table("path", ">size", ">used", ">free", ">use%")
    table.add_row(output.plain(place), *_space(*numbers))
    output.console().print(table)


def _space(total: int, used: int, available: int) -> tuple[str, ...]:
    from . import output

    share = f"{100 * used / total:.0f}%" if total else "-"
    return output.size(total), output.size(used), output.size(available), share


def as_record(reply: pb.StatusReply) -> dict[str, Any]:
    """The reply as ``--json`` prints it."""
    return {
        "cluster_id": reply.cluster_id,
        "version": reply.version,
        "epoch": reply.epoch,
        "journal_sequence": reply.journal_sequence,
        "journal_oldest": reply.journal_oldest,
        "started_ns": reply.started_ns,
        "unavailable_files": reply.unavailable_files,
        "evicted": [
            {"reason": each.reason, "files": each.files, "size_bytes": each.size_bytes} for each in reply.evicted
        ],
        "degraded_files": reply.degraded_files,
        "repairing_files": reply.repairing_files,
        "repair_failures": reply.repair_failures,
        "rebalance_percent": reply.rebalance_percent,
        "scanned_ns": reply.scanned_ns,
        "totals": {field.name: getattr(reply.totals, field.name) for field in reply.totals.DESCRIPTOR.fields},
        "workers": [
            {
                "id": each.worker.worker_id,
                "node": each.worker.node_id,
                "address": each.worker.address,
                "state": each.state,
                "heartbeat_age_ms": each.heartbeat_age_ms,
                "blocks": each.blocks,
                "draining": each.draining,
                "replicas": each.replicas if each.draining else None,
                "disks": [
                    {field.name: getattr(disk, field.name) for field in disk.DESCRIPTOR.fields} for disk in each.disks
                ],
            }
            for each in reply.workers
        ],
        "sessions": [
            {
                "id": f"{each.session_id:016x}",
                "kind": each.kind,
                "node": each.node_id,
                "name": each.name,
                "idle_ms": each.idle_ms,
                "grants": each.grants,
            }
            for each in reply.sessions
        ],
    }


def _draining(worker: dict[str, Any]) -> str:
    if not worker["draining"]:
        return ""
    empty = not worker["replicas"] and not worker["blocks"]
    return ", drained: empty" if empty else f", draining: {worker['replicas']} replicas left"


def _print(reply: pb.StatusReply) -> None:
    import time

    from . import output

    console, record = output.console(), as_record(reply)
    totals = record["totals"]
    up = output.age(max(0.0, time.time() - reply.started_ns / 1e9))
    console.print(output.plain(f"cluster {reply.cluster_id}  version {reply.version}  epoch {reply.epoch}  up {up}"))
    used, total = output.size(totals["used_bytes"]), output.size(totals["total_bytes"])
    free = output.size(totals["available_bytes"])
    console.print(f"{totals['inodes']} inodes, {totals['blocks']} blocks, {used} of {total} used, {free} free")
    for each in record["evicted"]:
        size = f", {output.size(each['size_bytes'])}" if each["size_bytes"] else ""
        console.print(f"{each['files']} files evicted ({each['reason']}){size}")
    if reply.unavailable_files:
        console.print(f"[red]{reply.unavailable_files} files have no replica on a live worker[/]")
    if reply.degraded_files:
        console.print(f"[yellow]{reply.degraded_files} files have fewer replicas than their directory asks for[/]")
    if reply.repairing_files:
        console.print(f"{reply.repairing_files} replicas are on their way")
    if reply.rebalance_percent:
        console.print(f"blocks move until all workers are within {reply.rebalance_percent} % of the mean")
    console.print()
    colours = {"live": "green", "suspect": "yellow", "lost": "red"}
    table = output.table("worker", "node", "address", "state", ">heartbeat", ">blocks", ">used", ">free")
    for worker in record["workers"]:
        state = worker["state"]
        table.add_row(
            output.plain(worker["id"]),
            output.plain(worker["node"]),
            worker["address"],
            f"[{colours.get(state, 'white')}]{state}[/]" + _draining(worker),
            output.age(worker["heartbeat_age_ms"] / 1000),
            str(worker["blocks"]),
            output.size(sum(disk["used_bytes"] for disk in worker["disks"])),
            output.size(sum(disk["available_bytes"] for disk in worker["disks"])),
        )
    console.print(table)
    if not record["workers"]:
        console.print("no workers: start one with `hearth worker`")
    if record["sessions"]:
        console.print()
        sessions = output.table("client", "node", "name", ">idle", ">grants")
        for session in record["sessions"]:
            idle = output.age(session["idle_ms"] / 1000)
            names = [output.plain(session[key]) for key in ("kind", "node", "name")]
            sessions.add_row(*names, idle, str(session["grants"]))
        console.print(sessions)
