"""``hearth bench``: measures directories, or HearthFS beside all that is installed to compare it with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Operating")(bench)


def bench(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Measure these in turn, and nothing else: a mount, a plain directory."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, fewer and smaller files: minutes.")] = False,
    section: Annotated[
        list[str] | None, typer.Option(help="Only this part. Repeatable; a wrong name lists them.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, help="That count. Default: 5, with --quick 3.")] = 0,
    rivals: Annotated[
        Path, typer.Option(metavar="PREFIX", help="Python environment that the rivals are installed in.")
    ] = Path(sys.prefix),
    no_rivals: Annotated[bool, typer.Option("--no-rivals", help="HearthFS and a plain directory only.")] = False,
    work: Annotated[
        Path | None, typer.Option(metavar="DIR", help="On the disk to be measured. Default: the temporary directory.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="For bench.json, bench.md and bench.png.")] = Path(
        "build"
    ),
    add: Annotated[bool, typer.Option("--add", help="Keep what bench.json there has of other sections.")] = False,
    docs: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page there, too.")] = None,
) -> None:
    """Measure stores, loads and lookups, every byte checked.

    Without DIR a cluster of two nodes is started for the time being, and JuiceFS, SeaweedFS, Mooncake and vLLM's file
    tier beside it where they are installed; that needs root, 10 GB of disk and a quiet machine for half an hour.
    """
    import signal

    from ..bench.run import Options, run

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays behind
    options = Options(
        directories=directories or (),
        sections=section or (),
        rounds=rounds,
        quick=quick,
        rivals=rivals,
        want_rivals=not no_rivals,
        work=work,
        output=output,
        docs=docs,
        add=add,
        say=typer.echo,
    )
    report = run(options)
    if report.failures:
        raise typer.Exit(1)
