"""``hearth backup``: the master's data in one file, taken while it works."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from ..proto import master_pb2 as pb


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Operating")(backup)


def backup(
    file: Annotated[Path, typer.Argument(help="Where it goes; readable by you only.")],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file of that name.")] = False,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Save the master's data (names, attributes, where blocks are; not the blocks) while it goes on working.

    `hearth journal restore` makes a data directory of it. FILE is there when all of it is, or not at all.
    """
    from ..common.errors import Exists
    from . import output

    address = options.master_address(master, config)
    if file.exists() and not force:
        raise Exists(f"{file}: is there already; name another file, or replace it with --force")
    end = save(address, file)
    if as_json:
        output.print_json(
            {
                "path": str(file),
                "size_bytes": end.size_bytes,
                "digest": f"{end.digest:016x}",
                "journal_sequence": end.journal_sequence,
                "cluster_id": end.cluster_id,
            }
        )
    else:
        size = output.size(end.size_bytes)
        typer.echo(f"{file}: {size}, cluster {end.cluster_id} up to journal record {end.journal_sequence}")


def save(master: str, file: Path) -> pb.BackupEnd:
    """Durable under its name when it returns; nothing is left of it when it raises. Raises: DataDamaged, OSError."""
    partial = file.with_name(file.name + ".partial")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as stream:
            os.fchmod(fd, 0o600)
            end = _receive(master, stream, file.name)
            stream.flush()
            os.fsync(fd)
        os.rename(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return end


def _receive(master: str, stream: Any, what: str) -> pb.BackupEnd:
    """Raises: DataDamaged: what came is not what was sent."""
    import xxhash

    from ..common.errors import DataDamaged
    from . import endpoint, output

    size_bytes, digest = 0, xxhash.xxh3_64()
    with closing(endpoint.backup(master)) as parts:
        expected_bytes = next(parts).expected_bytes
        with output.progress(what, expected_bytes or None) as advance:
            for part in parts:
                if part.HasField("end"):
                    end = part.end
                    if (size_bytes, digest.intdigest()) != (end.size_bytes, end.digest):
                        raise DataDamaged(
                            f"{size_bytes} bytes came, not the {end.size_bytes} that were sent; try again"
                        )
                    return end
                stream.write(part.data)
                digest.update(part.data)
                size_bytes += len(part.data)
                advance(len(part.data))
    raise DataDamaged(f"the backup was cut after {size_bytes} bytes; try again")
