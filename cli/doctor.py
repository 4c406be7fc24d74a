"""``hearth doctor``: what on this node keeps HearthFS from working well, and what to do about each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from .diagnosis import Line


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Operating")(doctor)


def doctor(
    disk: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="Also look at this directory. Repeatable.")
    ] = None,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Check kernel, fuse, ports, disks, clock and versions on this node; each line says what to do.

    Exit code 3 when there is a problem; a warning is none.
    """
    from . import output

    address = options.master_address(master, config)
    with output.busy("looking", quiet=as_json):
        lines = examine(address, disk or [])
    if as_json:
        output.print_json({"lines": [line._asdict() for line in lines]})
    else:
        _print(lines)
    if any(line.verdict == "problem" for line in lines):
        raise typer.Exit(3)


def examine(master: str, disks: list[str]) -> list[Line]:
    import os

    from ..common.types import DEFAULT_WORKER_PORT
    from . import diagnosis, facts

    return [
        *diagnosis.check_kernel(os.uname().release),
        *diagnosis.check_fuse(facts.fuse()),
        *diagnosis.check_port(facts.port("master", master)),
        *diagnosis.check_port(facts.port("worker", f"127.0.0.1:{DEFAULT_WORKER_PORT}")),
        *(line for path in disks for line in diagnosis.check_disk(facts.disk(path))),
        *diagnosis.check_clock(facts.clock()),
        *diagnosis.check_versions(facts.versions(master)),
    ]


def _print(lines: list[Line]) -> None:
    from . import output

    console = output.console()
    colours = {"ok": "green", "warning": "yellow", "problem": "red"}
    for line in lines:
        console.print(f"[{colours[line.verdict]}]{line.verdict:8}[/]", output.plain(f"{line.subject}: {line.text}"))
        if line.advice:
            console.print(" " * 8, output.plain(f"-> {line.advice}"))
