"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..client.settings import ClientSettings

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        "-m",
        metavar="HOST:PORT",
        help="The cluster's master. Default: HEARTH_CLIENT_MASTER, else 127.0.0.1:7070.",
    ),
]
DaemonMaster = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The cluster's master.")]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file of settings. Default: HEARTH_CONFIG, else /etc/hearthfs/hearth.toml."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where it serves.")]
Telemetry = Annotated[
    str | None, typer.Option("--telemetry-listen", metavar="HOST:PORT", help="Where it serves /metrics and /healthz.")
]
ClusterId = Annotated[str | None, typer.Option(help="Refuse to work with any other cluster than this.")]
NodeId = Annotated[str | None, typer.Option(help="Name of this node. Default: the host's name.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="console or json.")]
AllowOther = Annotated[
    bool | None, typer.Option("--allow-other/--no-allow-other", help="Whether other users than you may use the mount.")
]


def client_settings(master: str | None, config: Path | None) -> ClientSettings:
    """Settings of commands that talk to a cluster: table [client], HEARTH_CLIENT_*, flags."""
    from ..client.settings import ClientSettings
    from ..common import credentials
    from . import endpoint

    settings = ClientSettings.load({"master": master}, file=config)
    endpoint.show(credentials.load(settings))
    return settings


def master_address(master: str | None, config: Path | None) -> str:
    return client_settings(master, config).master
