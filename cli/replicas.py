"""``hearth replicas``: how many copies the files of a directory have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from ..client.client import Client

COUNT = "hearth.replicas"
WHEN = "hearth.replicate"


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Files")(replicas)


def replicas(
    directory: Annotated[str, typer.Argument(help="In the cluster (/model), or below a mount of it here.")],
    count: Annotated[int | None, typer.Argument(min=1, max=16, help="Replicas of each file. Default: show.")] = None,
    before_close: Annotated[
        bool | None,
        typer.Option("--before-close/--background", help="Whether close waits for them. Default: as it is."),
    ] = None,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show or set how many workers keep each file of a directory.

    Directories made in it later inherit both; files that are there get their replicas in the background.
    """
    from . import output
    from .connection import connect, in_cluster

    (place,) = in_cluster([directory])
    with connect(master, config) as client:
        if count is not None:
            _set(client, place, COUNT, str(count))
        if before_close is not None:
            _set(client, place, WHEN, "before_close" if before_close else "background")
        found = _attributes(client, place)
    wanted = {"replicas": int(found.get(COUNT, b"1")), "replicate": found.get(WHEN, b"background").decode()}
    if as_json:
        output.print_json({"path": place, **wanted})
    else:
        typer.echo(f"{output.printable(place)}: {wanted['replicas']}, {wanted['replicate']}")


def _attributes(client: Client, place: str) -> dict[str, bytes]:
    entry = client.entry(place)
    return client.core.metadata.xattrs(entry.attributes.inode, client.core.deadline())


def _set(client: Client, place: str, name: str, value: str) -> None:
    from ..proto import master_pb2 as pb

    entry = client.entry(place)
    change = pb.SetXattr(inode=entry.attributes.inode, name=name.encode(), value=value.encode())
    client.core.metadata.mutate(pb.MutateRequest(set_xattr=change), client.core.deadline())
