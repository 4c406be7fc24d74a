"""``hearth ca``: certificates for a cluster."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make the certificates of a cluster.")
Authority = Annotated[Path, typer.Argument(metavar="AUTHORITY", help="Directory of the authority.")]


def add_to(main: typer.Typer) -> None:
    main.add_typer(app, name="ca", rich_help_panel="Operating")


@app.command()
def init(
    authority: Authority,
    cluster: Annotated[str, typer.Option(help="For people: stands in the authority's certificate.")] = "",
) -> None:
    """Make an authority: whoever has its directory can make certificates. Keep it off the nodes."""
    from . import authority as authorities

    authorities.found(authority, cluster, datetime.datetime.now(datetime.UTC))
    typer.echo(f"{authority}: an authority; ca-key.pem is its secret")


@app.command()
def issue(
    authority: Authority,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Gets ca.pem, cert.pem and key.pem.")],
    master: Annotated[bool, typer.Option("--master", help="For the master.")] = False,
    node: Annotated[
        str, typer.Option(metavar="NAME", help="For worker and mount of the node of that name; acts for any user.")
    ] = "",
    user: Annotated[str, typer.Option(metavar="UID:GID", help="For programs of one user: SDK and connector.")] = "",
    admin: Annotated[bool, typer.Option("--admin", help="For operators.")] = False,
    days: Annotated[float, typer.Option(min=0.001, help="How long it is good.")] = 365,
) -> None:
    """Make one certificate: for the master, a node, a user or an operator. In a directory that has one, a new one."""
    import os

    from ..common.credentials import parse_name
    from . import authority as authorities

    chosen = [
        name
        for given, name in (
            (master, "master"),
            (node, f"node {node}"),
            (user, f"user {user.replace(':', ' ')}"),
            (admin, "admin"),
        )
        if given
    ]
    if len(chosen) != 1:
        raise typer.BadParameter("give one of --master, --node, --user, --admin")
    authorities.issue(authority, directory, chosen[0], days, datetime.datetime.now(datetime.UTC))
    caller = parse_name(chosen[0])
    if caller is not None and caller.role == "user" and os.geteuid() == 0:
        authorities.give(directory, caller.uid, caller.gid)
    typer.echo(f"{directory}: certificate of {chosen[0]!r}; set tls_directory to this directory")
