"""The ``hearth`` command: puts the commands together and turns an error into one line and an exit code.

Only typer is imported here; a command imports what it needs when it runs, so that ``hearth --help`` answers at once.
"""

from __future__ import annotations

import os
import sys

import typer

from . import backup, benchmark, ca, capacity, daemons, doctor, files, fsck, journal, kv, replicas, status

OK, FAILED, USAGE, FINDINGS = range(4)

app = typer.Typer(
    name="hearth",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="HearthFS: one filesystem over the NVMe drives of your GPU nodes, for KV caches and what else they read.",
    epilog="Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 3 findings (fsck, doctor).",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (daemons, files, replicas, capacity, kv, status, fsck, doctor, backup, journal, ca, benchmark):
    group.add_to(app)


@app.command()
def version() -> None:
    """Print the version."""
    from ..common.version import VERSION

    typer.echo(VERSION)


def describe(error: OSError) -> str:
    """One line for people."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error) if getattr(error, "code", None) else error.strerror or str(error)


def main() -> None:
    """Entry point of the ``hearth`` script."""
    try:
        app()
    except OSError as error:  # HearthError is one
        typer.echo(f"hearth: {describe(error)}", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
