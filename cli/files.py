"""Commands about names and bytes: ls, stat, tree, cat, put, get, rm, mv, mkdir, du."""

from __future__ import annotations

import stat as modes
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.tree import Tree

    from ..client.client import Client
    from ..client.records import DirEntry, Stat

PANEL = "Files"
Paths = Annotated[list[str], typer.Argument(help="In the cluster (/model/x), or below a mount of it here.")]
APath = Annotated[str, typer.Argument(help="In the cluster (/model/x), or below a mount of it here.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Directories with all that is in them.")]
Keep = Annotated[bool, typer.Option("--no-replace", "-n", help="Fail where the target exists.")]


def add_to(app: typer.Typer) -> None:
    for command in (ls, stat, tree, cat, put, get, rm, mv, mkdir, du):
        app.command(rich_help_panel=PANEL)(command)


def ls(
    path: APath = "/",
    long: Annotated[bool, typer.Option("--long", "-l", help="Mode, size, time.")] = False,
    unsorted: Annotated[bool, typer.Option("--unsorted", "-U", help="As they come: huge directories at once.")] = False,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List a directory."""
    from . import output
    from .connection import connect, in_cluster

    (place,) = in_cluster([path])
    with connect(master, config) as client:
        found: Any = _entries(client, place)
        if not unsorted or as_json:
            found = sorted(found, key=lambda item: item[0])
        if as_json:
            output.print_json([{"name": output.printable(name), **_attributes(status)} for name, status in found])
            return
        for name, status in found:
            typer.echo(_long(name, status) if long else output.printable(name))


def _entries(client: Client, path: str) -> Iterator[tuple[str, Stat]]:
    status = client.lstat(path)
    if modes.S_ISDIR(status.st_mode):
        yield from ((entry.name, entry.stat) for entry in client.scandir(path))
    else:
        yield path, status


def _attributes(status: Stat) -> dict[str, Any]:
    from ..common.types import file_type

    return {
        "type": file_type(status.st_mode),
        "mode": f"{modes.S_IMODE(status.st_mode):04o}",
        "inode": status.st_ino,
        "links": status.st_nlink,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "version": status.version,
    }


def _long(name: str, status: Stat) -> str:
    import time

    from . import output

    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.st_mtime))
    size = output.size(status.st_size)
    mode = modes.filemode(status.st_mode)
    return f"{mode} {status.st_nlink:3} {status.st_uid:5} {status.st_gid:5} {size:>10} {when} {output.printable(name)}"


def stat(
    path: APath,
    checksums: Annotated[bool, typer.Option("--checksums", help="Of each MiB, as the first replica has them.")] = False,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show one file or directory: attributes, block, seal state, checksums, and what each replica says of itself."""
    from . import inspection, output
    from .connection import connect, in_cluster

    (place,) = in_cluster([path])
    with connect(master, config) as client:
        record = inspection.describe(place, client.entry(place, follow=False))
    if not checksums:
        for replica in record["replicas"]:
            del replica["checksums"]
    if as_json:
        output.print_json(record)
        return
    for line in inspection.lines(record):
        typer.echo(output.printable(line))


def tree(
    path: APath = "/",
    depth: Annotated[int, typer.Option("--depth", "-d", min=1, help="How many levels.")] = 3,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Show a directory as a tree."""
    from rich.tree import Tree

    from . import output
    from .connection import connect, in_cluster

    (place,) = in_cluster([path])
    with connect(master, config) as client:
        made = Tree(output.plain(place), guide_style="dim")
        _grow(client, made, place, depth)
    output.console().print(made)


def _grow(client: Client, branch: Tree, path: str, depth: int) -> None:
    from . import output

    for entry in sorted(client.scandir(path), key=lambda entry: entry.name):
        if not entry.is_dir():
            branch.add(output.plain(f"{entry.name}  {output.size(entry.stat.st_size)}"))
            continue
        below = branch.add(output.plain(f"{entry.name}/"), style="bold")
        if depth > 1:
            _grow(client, below, entry.path, depth - 1)


def cat(paths: Paths, master: options.Master = None, config: options.Config = None) -> None:
    """Write files to stdout, one after the other."""
    from . import transfer
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        for place in in_cluster(paths):
            transfer.get(client, transfer.Copy(place, "-", 0), lambda _: None, replace=True)


def put(
    sources: Annotated[list[str], typer.Argument(help="Local files, or - for stdin.")],
    target: Annotated[str, typer.Argument(help="Path in the cluster: the file's, or an existing directory.")],
    recursive: Recursive = False,
    no_replace: Keep = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Copy local files into the cluster. Others see a file when all of it is there."""
    from . import output, transfer
    from .connection import connect, in_cluster

    slash = "/" if target.endswith("/") else ""
    with connect(master, config) as client:
        copies = transfer.plan_put(
            client, sources, in_cluster([target])[0].rstrip("/") + slash or "/", recursive=recursive
        )
        total = sum(max(0, copy.size_bytes) for copy in copies)
        with output.progress("put", None if "-" in sources else total) as advance:
            for copy in copies:
                transfer.put(client, copy, advance, replace=not no_replace)


def get(
    sources: Paths,
    target: Annotated[str, typer.Argument(help="Local file, existing directory, or - for stdout.")],
    recursive: Recursive = False,
    no_replace: Keep = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Copy files out of the cluster. A file gets its name when all of it is there and verified."""
    from . import output, transfer
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        copies = transfer.plan_get(client, in_cluster(sources), target, recursive=recursive)
        with output.progress("get", sum(max(0, copy.size_bytes) for copy in copies)) as advance:
            for copy in copies:
                transfer.get(client, copy, advance, replace=not no_replace)


def rm(
    paths: Paths,
    recursive: Recursive = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="A missing file is no error.")] = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Remove files."""
    from . import output, transfer
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        for place in in_cluster(paths):
            with output.counting(f"removing {place}") as progress:
                transfer.remove(client, place, recursive=recursive, force=force, progress=progress)


def mv(
    sources: Paths,
    target: APath,
    no_replace: Keep = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Rename: in one step, no byte is copied."""
    from ..client.names import RENAME_NOREPLACE
    from ..common.errors import NotADirectory
    from . import transfer
    from .connection import connect, in_cluster

    *places, goal = in_cluster([*sources, target])
    with connect(master, config) as client:
        inside = client.isdir(goal)
        if len(places) > 1 and not inside:
            raise NotADirectory(f"{goal}: is not a directory")
        for place in places:
            client.rename(place, transfer.target_in(inside, goal, place), flags=RENAME_NOREPLACE if no_replace else 0)


def mkdir(
    paths: Paths,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Those above too; existing is no error.")] = False,
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Make directories."""
    from .connection import connect, in_cluster

    with connect(master, config) as client:
        for place in in_cluster(paths):
            if parents:
                client.makedirs(place, exist_ok=True)
            else:
                client.mkdir(place)


def du(
    path: APath = "/",
    summarize: Annotated[bool, typer.Option("--summarize", "-s", help="One line.")] = False,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Add up sizes of files below each directory in PATH. A file with several names counts once."""
    from . import output
    from .connection import connect, in_cluster

    (place,) = in_cluster([path])
    with connect(master, config) as client, output.busy("adding up", quiet=as_json):
        sums = _sums(client, place)
    rows = [(name, *count) for name, count in sums.items() if not summarize or name == place]
    if as_json:
        output.print_json([{"path": name, "size_bytes": size, "files": files} for name, size, files in rows])
        return
    for name, size, files in rows:
        typer.echo(f"{output.size(size):>10}  {files:8} files  {output.printable(name)}")


def _sums(client: Client, top: str) -> dict[str, tuple[int, int]]:
    """(bytes, files) below the top, last, and below each directory in it."""
    seen: set[int] = set()

    def fresh(entry: DirEntry) -> int:
        if entry.inode() in seen:
            return 0
        seen.add(entry.inode())
        return entry.stat.st_size if entry.is_file() else 0

    if not client.isdir(top):
        return {top: (client.lstat(top).st_size, 1)}
    sums: dict[str, tuple[int, int]] = {}
    total = (0, 0)
    for folder, _, entries in client.walk(top):
        added = (sum(fresh(entry) for entry in entries), len(entries))
        total = (total[0] + added[0], total[1] + added[1])
        below = folder.removeprefix(top.rstrip("/")).lstrip("/").partition("/")[0]
        if below:
            name = f"{top.rstrip('/')}/{below}"
            so_far = sums.get(name, (0, 0))
            sums[name] = (so_far[0] + added[0], so_far[1] + added[1])
    return dict(sorted(sums.items())) | {top: total}
