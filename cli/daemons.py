"""Commands that run daemons: master, worker, mount, umount, up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options, workers

PANEL = "Daemons"


def add_to(app: typer.Typer) -> None:
    for command in (up, master, mount, umount):
        app.command(rich_help_panel=PANEL)(command)
    group = typer.Typer(invoke_without_command=True)
    group.callback()(worker)
    workers.add_to(group)
    app.add_typer(group, name="worker", rich_help_panel=PANEL)


def up(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Everything goes here. Default: /var/lib/hearthfs or ~/.local/share."),
    ] = None,
    mountpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the files appear. Default: DATA/mnt.")
    ] = None,
    no_mount: Annotated[bool, typer.Option("--no-mount", help="Master and worker only: no FUSE, no root.")] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Of the master.")] = "127.0.0.1:7070",
    worker_listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Of the worker.")] = "127.0.0.1:7071",
    capacity: Annotated[
        str, typer.Option(metavar="SIZE", help="Of the disk, e.g. 100GiB. Default: what is free.")
    ] = "",
    config: options.Config = None,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C: master, worker and mount."""
    from . import up as embedded

    folder = (data or embedded.default_data()).absolute()
    place = None if no_mount else (mountpoint or folder / "mnt").absolute()
    embedded.run(embedded.Plan(folder, place, listen, worker_listen, capacity, config), typer.echo)


def master(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the namespace's database.")] = None,
    listen: options.Listen = None,
    telemetry_listen: options.Telemetry = None,
    cluster_id: options.ClusterId = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    config: options.Config = None,
) -> None:
    """Serve the namespace: one per cluster.

    Other settings: table `master` of the TOML file, or variables HEARTH_MASTER_...
    """
    from ..master.main import serve
    from ..master.settings import MasterSettings
    from .supervisor import stop_with_parent

    flags = _given(
        data=data,
        listen=listen,
        telemetry_listen=telemetry_listen,
        cluster_id=cluster_id,
        log_level=log_level,
        log_format=log_format,
    )
    settings = MasterSettings.load(flags, file=config)
    stop_with_parent()
    serve(settings)


def worker(
    context: typer.Context,
    master: options.DaemonMaster = None,
    disk: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR[:CAPACITY]", help="Directory for block files, e.g. /nvme0/hearth:2TiB. Repeatable."),
    ] = None,
    listen: options.Listen = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address that others reach it by. Default: --listen.")
    ] = None,
    socket: Annotated[str | None, typer.Option(metavar="PATH", help="Unix socket for programs on this node.")] = None,
    node_id: options.NodeId = None,
    worker_id: Annotated[str | None, typer.Option(help="Name of this worker. Default: the node id.")] = None,
    cluster_id: options.ClusterId = None,
    telemetry_listen: options.Telemetry = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    config: options.Config = None,
) -> None:
    """Keep block files on this node's disks and serve them: one per node.

    Other settings: table `worker` of the TOML file, or variables HEARTH_WORKER_...
    """
    if context.invoked_subcommand is not None:
        return
    from ..worker.main import serve
    from ..worker.settings import WorkerSettings
    from .supervisor import stop_with_parent

    flags = _given(
        master=master,
        disks=tuple(disk) if disk else None,
        listen=listen,
        advertise=advertise,
        socket=socket,
        node_id=node_id,
        worker_id=worker_id,
        cluster_id=cluster_id,
        telemetry_listen=telemetry_listen,
        log_level=log_level,
        log_format=log_format,
    )
    settings = WorkerSettings.load(flags, file=config)
    stop_with_parent()
    serve(settings)


def mount(
    mountpoint: Annotated[Path, typer.Argument(help="An empty directory, e.g. /mnt/kvcache.")],
    master: options.DaemonMaster = None,
    worker_socket: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Unix socket of this node's worker. Default: none, a node without one."),
    ] = None,
    node_id: options.NodeId = None,
    cluster_id: options.ClusterId = None,
    allow_other: options.AllowOther = None,
    read_only: Annotated[bool, typer.Option("--read-only")] = False,
    telemetry_listen: options.Telemetry = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    foreground: Annotated[bool, typer.Option("--foreground", "-f", help="Stay; log to stderr.")] = False,
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Log of the background daemon. Default: /var/log/hearthfs/….")
    ] = None,
    config: options.Config = None,
) -> None:
    """Show the cluster's files below MOUNTPOINT.

    Returns once the mount works; the daemon goes on in the background. Other settings: table `mount` of the TOML
    file, or variables HEARTH_MOUNT_...
    """
    from .supervisor import stop_with_parent

    flags = _given(
        mountpoint=mountpoint.absolute(),
        master=master,
        worker_socket=worker_socket,
        node_id=node_id,
        cluster_id=cluster_id,
        allow_other=allow_other,
        read_only=read_only or None,
        telemetry_listen=telemetry_listen,
        log_level=log_level,
        log_format=log_format,
    )
    if not foreground:
        from .background import mount_in_background

        typer.echo(mount_in_background(flags, config, log_file))
        return
    from ..fuse_client import relay_link
    from ..fuse_client.settings import MountSettings

    settings = MountSettings.load(flags, file=config)
    stop_with_parent()
    relay_link.enter(settings)
    from ..fuse_client.main import serve

    serve(settings)


def umount(
    mountpoint: Annotated[str, typer.Argument()],
    force: Annotated[bool, typer.Option("--force", help="Although files are open; programs in it get errors.")] = False,
) -> None:
    """Take HearthFS away from MOUNTPOINT, also when its daemon or the master is gone.

    Not mounted is not an error: run it as often as you like.
    """
    from .mountpoint import unmount

    found = unmount(mountpoint, force=force)
    typer.echo(f"{mountpoint}: unmounted" if found else f"{mountpoint}: not mounted, nothing to do")


def _given(**flags: Any) -> dict[str, Any]:
    """The flags that were given."""
    return {key: value for key, value in flags.items() if value is not None}
