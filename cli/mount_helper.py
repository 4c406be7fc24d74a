"""``mount.fuse.hearthfs``: what mount(8) runs for ``mount -t fuse.hearthfs MASTER:PORT /mnt -o …`` and for fstab.

mount(8) looks for it in /sbin. Where HearthFS lives in a virtual environment, link it there::

    ln -s /opt/hearthfs/bin/mount.fuse.hearthfs /sbin/mount.fuse.hearthfs

and write ``10.0.0.1:7070 /mnt/kvcache fuse.hearthfs _netdev,node_id=n1,worker_socket=/run/hearthfs/worker.sock 0 0``.
Options are the settings of the table [mount]; ``config=FILE`` and ``log_file=FILE`` are those of ``hearth mount``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

USAGE = "usage: mount.fuse.hearthfs MASTER:PORT MOUNTPOINT [-sfnvrw] [-o OPTION,...] [-t TYPE] [-N NAMESPACE]"


class Call(NamedTuple):
    """One call by mount(8)."""

    master: str
    mountpoint: str
    options: list[str]
    fake: bool = False


def parse(arguments: list[str]) -> Call:
    """
    >>> parse(["m:7070", "/mnt", "-o", "ro,node_id=n1", "-n", "-o", "_netdev"])
    Call(master='m:7070', mountpoint='/mnt', options=['ro', 'node_id=n1', '_netdev'], fake=False)

    Raises:
        ValueError: not how mount(8) calls its helpers.
    """
    places: list[str] = []
    options: list[str] = []
    fake = False
    waiting = iter(arguments)
    for argument in waiting:
        if argument in ("-o", "-t", "-N"):
            value = next(waiting, None)
            if value is None:
                raise ValueError(f"{argument} needs a value")
            if argument == "-o":
                options += [option for option in value.split(",") if option]
        elif argument.startswith("-") and set(argument[1:]) <= set("sfnvrw") and len(argument) > 1:
            fake = fake or "f" in argument
            options += ["ro"] if "r" in argument else []
        else:
            places.append(argument)
    if len(places) != 2 or any(place.startswith("-") for place in places):
        raise ValueError("MASTER:PORT and MOUNTPOINT are needed, and no other option")
    return Call(places[0], places[1], options, fake)


def _taken(options: list[str], name: str) -> Path | None:
    """The value of an option of ours, removed from the list."""
    found = [option for option in options if option.replace("-", "_").startswith(f"{name}=")]
    options[:] = [option for option in options if option not in found]
    return Path(found[-1].partition("=")[2]) if found else None


def main() -> None:
    """Exit codes are mount(8)'s: 0 mounted, 1 wrong usage, 32 could not mount."""
    try:
        call = parse(sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"mount.fuse.hearthfs: {error}\n{USAGE}\n")
        sys.exit(1)
    if call.fake:
        return
    from ..fuse_client.settings import parse_fstab_options
    from .background import mount_in_background

    try:
        config, log_file = _taken(call.options, "config"), _taken(call.options, "log_file")
        flags = parse_fstab_options(call.master, call.mountpoint, ",".join(call.options))
        mount_in_background(flags, config, log_file)
    except OSError as error:
        sys.stderr.write(f"mount.fuse.hearthfs: {error}\n")
        sys.exit(32)
