"""Commands about what may go when room is short: cache, pin, ttl, quota, evict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from pathlib import Path

    from ..client.client import Client

PANEL = "Capacity"
CACHE, PIN, TTL, QUOTA = "hearth.cache", "hearth.pin", "hearth.ttl", "hearth.quota"
Directory = Annotated[str, typer.Argument(help="Directory in the cluster (/kv), or below a mount of it here.")]
APath = Annotated[str, typer.Argument(help="In the cluster (/model/x), or below a mount of it here.")]
Off = Annotated[bool, typer.Option("--off", help="Take it back.")]
Below = Annotated[bool, typer.Option("--recursive", "-r", help="Also the directories that exist below it.")]


def add_to(app: typer.Typer) -> None:
    for command in (cache, pin, ttl, quota, evict):
        app.command(rich_help_panel=PANEL)(command)


def cache(
    path: Directory,
    off: Off = False,
    recursive: Below = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Let the files of a directory be evicted when room is short. Directories made in it get this from it."""
    _set(path, CACHE, "0" if off else "1", recursive, master, config)


def pin(
    path: APath,
    off: Off = False,
    recursive: Below = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Keep a file, or the files of a directory, from being evicted and from expiring."""
    _set(path, PIN, "0" if off else "1", recursive, master, config)


def ttl(
    path: Directory,
    time: Annotated[str | None, typer.Argument(help="90s, 15m, 36h, 7d, or 0 for ever. Left out: show it.")] = None,
    recursive: Below = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Let the files of a cache directory expire so long after their last change."""
    from ..common.errors import InvalidArgument
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        (place,) = in_cluster([path])
        if time is None:
            typer.echo(_shown(client, place, TTL))
            return
        if _value(client, place, CACHE) != b"1":
            raise InvalidArgument(f"{place} is no cache directory, where nothing expires: hearth cache {place}")
        _apply(client, place, TTL, time, recursive=recursive)


def quota(
    path: Directory,
    size: Annotated[str | None, typer.Argument(help="10GiB, 500M, or 0 for none. Left out: show it.")] = None,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Limit how much all below a directory may have together."""
    from . import output
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        (place,) = in_cluster([path])
        if size is not None:
            client.setxattr(place, QUOTA, size.encode())
            return
        if _value(client, place, QUOTA) in (None, b"0"):
            typer.echo("-")
            return
        space = client.statvfs(place)
        typer.echo(f"{output.size(space.used_bytes)} of {output.size(space.total_bytes)} used")


def evict(path: Directory, master: options.Master = None, config: options.Config = None) -> None:
    """Remove all files below a directory that may be evicted. Who has one open goes on reading it."""
    from . import output
    from .connection import connect, in_cluster

    with connect(master, config) as client, output.busy("evicting"):
        (place,) = in_cluster([path])
        evicted, kept = client.evict(place)
    typer.echo(f"{evicted} files evicted, {kept} kept (pinned, or not in a cache directory)")


def _set(path: str, name: str, value: str, recursive: bool, master: str | None, config: Path | None) -> None:
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        (place,) = in_cluster([path])
        _apply(client, place, name, value, recursive=recursive)


def _apply(client: Client, path: str, name: str, value: str, *, recursive: bool) -> None:
    client.setxattr(path, name, value.encode())
    if recursive:
        for place, _, _ in client.walk(path):
            client.setxattr(place, name, value.encode())


def _value(client: Client, path: str, name: str) -> bytes | None:
    from ..common.errors import NoAttribute

    try:
        return client.getxattr(path, name)
    except NoAttribute:
        return None


def _shown(client: Client, path: str, name: str) -> str:
    value = _value(client, path, name)
    return "-" if value is None or value == b"0" else value.decode()
