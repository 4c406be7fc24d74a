"""``hearth journal``: shows the journal, keeps it in segments, makes a data directory of a backup and segments."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..master.archive import Archive
    from ..master.journal import Stored

SEGMENT_SIZE = "64MiB"
EVERY_S = 60.0
TAIL_RECORDS = 10
ALL = (1 << 32) - 1


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Show, archive and replay the journal of changes.")
    for command in (tail, archive, restore):
        group.command()(command)
    app.add_typer(group, name="journal", rich_help_panel="Operating")


def tail(
    count: Annotated[int | None, typer.Option("-n", min=1, max=ALL, help="The newest so many.  [default: 10]")] = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="NUMBER", help="All after this record instead.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is committed, until Ctrl-C.")] = False,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Print journal records, one line each: what was changed, when, by which client.

    Times are in UTC. --json prints one JSON object per line.
    """
    from ..common.errors import InvalidArgument
    from ..master.journal import decode
    from . import journal_lines

    if count is not None and after is not None:
        raise InvalidArgument("-n and --after exclude each other")
    address = options.master_address(master, config)
    with closing(_bodies(address, after, count or TAIL_RECORDS, follow=follow)) as bodies:
        for body in bodies:
            record = decode(body)
            typer.echo(_json_line(journal_lines.as_record(record)) if as_json else journal_lines.line(record))


def _bodies(address: str, after: int | None, newest: int, *, follow: bool) -> Generator[bytes]:
    """A call that follows has an end, too: the next begins where it ended."""
    from ..common.errors import DeadlineExceeded
    from . import endpoint

    while True:
        try:
            if after is not None:
                newest = 0
            with closing(endpoint.journal(address, after=after or 0, newest=newest, follow=follow)) as records:
                for record in records:
                    after = record.number
                    yield record.body
        except DeadlineExceeded:
            if not follow:
                raise
        if not follow:
            return


def _json_line(value: object) -> str:
    import json

    from .output import printable

    return json.dumps(value, ensure_ascii=False, default=lambda each: printable(each))


# ---------------------------------------------------------------- archive


def archive(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Of the segments; one for each cluster.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Again and again, until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks (--follow).")] = EVERY_S,
    segment_size: Annotated[
        str, typer.Option(metavar="SIZE", help="A segment ends when it has so much.")
    ] = SEGMENT_SIZE,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Save the journal records that are new since the last time, in files of their own.

    With a backup that is older than they are, `hearth journal restore` makes the tables of any record.
    """
    from ..common.errors import Busy, DeadlineExceeded, InvalidArgument, Unavailable
    from ..common.settings import parse_bytes
    from ..master.archive import Archive

    try:
        segment_bytes = parse_bytes(segment_size)
    except ValueError as error:
        raise InvalidArgument(f"--segment-size: {error}") from None
    address = options.master_address(master, config)
    with Archive(directory, segment_bytes) as target:
        while True:
            try:
                _archive_new(address, target, directory, as_json=as_json, quiet=follow)
            except (Busy, Unavailable, DeadlineExceeded) as error:
                if not follow:
                    raise
                typer.echo(f"hearth: {error}; trying again in {every_s:g} s", err=True)
            if not follow:
                return
            sys.stdout.flush()
            time.sleep(every_s)


def _archive_new(address: str, target: Archive, directory: Path, *, as_json: bool, quiet: bool) -> None:
    """``quiet``: says nothing of nothing."""
    from . import endpoint

    cluster_id = endpoint.status(address).cluster_id
    known = target.last_record(cluster_id)
    with closing(_new_records(address, known, directory)) as records:
        made = list(target.write(cluster_id, records))
    first, last = (made[0].first, made[-1].last) if made else (0, known.number if known else 0)
    if quiet and not made:
        return
    if as_json:
        record = {"cluster_id": cluster_id, "segments": [each.path.name for each in made], "last": last}
        typer.echo(_json_line(record))
    elif made:
        typer.echo(f"{directory}: records {first} to {last} in {len(made)} new segments")
    else:
        typer.echo(f"{directory}: nothing new after record {last}")


def _new_records(address: str, known: Stored | None, directory: Path) -> Generator[Stored]:
    """Those after the last known one, which the master must still have: it tells that this is the same history.

    Raises: NotFound, InvalidArgument: another history, or a part of it is gone.
    """
    from ..common.errors import InvalidArgument
    from ..master.journal import Stored
    from . import endpoint

    after, newest = (0, ALL) if known is None else (known.number - 1, 0)
    with closing(endpoint.journal(address, after=after, newest=newest)) as records:
        first = next(records, None)
        if known is not None and (first is None or first.body != known.body):
            raise InvalidArgument(
                f"{directory}: its record {known.number} is not the master's: the cluster was restored from a backup "
                "since. Make a new backup, and archive into a new directory"
            )
        if known is None and first is not None:
            yield Stored(first.number, first.body)
        for record in records:
            yield Stored(record.number, record.body)


# ---------------------------------------------------------------- restore


def restore(
    backup: Annotated[Path, typer.Option("--backup", metavar="FILE", help="Of `hearth backup`.")],
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="New data directory: empty, or made.")],
    segments: Annotated[
        Path | None, typer.Option("--segments", metavar="DIR", help="Of `hearth journal archive`.")
    ] = None,
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="NUMBER", help="The last record to replay.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="The tables as they were, to look at; no master may go on with them.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Make a master's data directory from a backup and the segments since. Needs no master.

    The restored cluster never gives out a number that was in use in the time that is lost. Without --segments it is as
    in the backup. Whatever fails, DIR holds nothing then that a master would start on.
    """
    from ..master import restore as restoring
    from . import output

    with output.busy("restoring", quiet=as_json):
        reached = restoring.restore(backup, segments, to, data, time.time_ns(), exact=exact)
    if as_json:
        output.print_json({"data": str(data), **reached._asdict()})
    else:
        replayed = reached.sequence - reached.backup_sequence
        typer.echo(
            f"{data}: cluster {reached.cluster_id} up to record {reached.sequence} "
            f"(backup to {reached.backup_sequence}, {replayed} records replayed)"
        )
