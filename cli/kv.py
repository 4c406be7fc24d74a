"""Commands about an engine's KV chunks: ls, show, prefix, warm, purge, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..client.client import Client
    from .kv_root import Chunk, Layout

app = typer.Typer(
    name="kv", no_args_is_help=True, help="KV chunks of vLLM engines: what is there, is it good, fill it."
)

Root = Annotated[
    str,
    typer.Option("--root", "-r", envvar="HEARTH_CONNECTOR_ROOT", help="The connector's root: /kv, or below a mount."),
]
Model = Annotated[str, typer.Argument(help="Beginning of a name that `hearth kv ls` shows: of a model or tenant.")]
VERIFY_BATCH_BYTES = 64 << 20


def add_to(main: typer.Typer) -> None:
    for command in (ls, show, prefix, warm, purge, verify):
        app.command()(command)
    main.add_typer(app, rich_help_panel="Files")


def ls(
    model: Annotated[str, typer.Argument(help="Only those that begin with it.")] = "",
    root: Root = "/kv",
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", "-e", help="URL of an engine whose hits are shown, too."),
    ] = None,
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List models with their chunks: how many, how large, how old. Engines with another layout share nothing."""
    import time

    from . import kv_engine, kv_root, output
    from .connection import connect, in_cluster

    (place,) = in_cluster([root])
    with connect(master, config) as client, output.busy("counting", quiet=as_json):
        found = [kv_root.count(client, one) for one in kv_root.layouts(client, place.rstrip("/"), model)]
    hits = [kv_engine.hits(url) for url in engine or []]
    if as_json:
        rows = [_record(one) for one in found]
        output.print_json({"layouts": rows, "engines": hits} if engine else rows)
        return
    table = output.table("MODEL", "LAYOUT", "DTYPE", ">TP", ">TOKENS", ">CHUNKS", ">SIZE", ">NEWEST")
    for one in found:
        facts = one.manifest
        age = output.age(time.time() - one.newest_ns / 1e9) if one.newest_ns else "-"
        name = f"{one.tenant}/{one.model}" if one.tenant else one.model
        cells = (name, one.layout[:8], facts.get("dtype", "?"), facts.get("tensor_parallel", "?"), _chunk_tokens(one),
                 one.chunks, output.size(one.size_bytes), age)  # fmt: skip
        table.add_row(*(output.plain(str(cell)) for cell in cells))
    output.console().print(table)
    for each in hits:
        typer.echo(f"{each['engine']}: {each['hits']} of {each['lookups']} chunk lookups were hits")


def _record(layout: Layout) -> dict[str, Any]:
    return {
        "path": layout.path,
        "tenant": layout.tenant,
        "model": layout.model,
        "layout": layout.layout,
        "chunks": layout.chunks,
        "size_bytes": layout.size_bytes,
        "newest_ns": layout.newest_ns,
        "manifest": layout.manifest,
    }


def _chunk_tokens(layout: Layout) -> int | str:
    try:
        return int(layout.manifest["groups"][0]["tokens_per_block"]) * int(layout.manifest["blocks_per_chunk"])
    except (KeyError, IndexError, TypeError, ValueError):
        return "?"


def show(
    key: Annotated[str, typer.Argument(help="Beginning of a chunk's file name.")],
    root: Root = "/kv",
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show one chunk: what it says of itself, whether that is true, and where it lies."""
    from ..common.errors import HearthError, NotFound
    from ..connector import chunk_format
    from . import kv_root, output
    from .connection import connect, in_cluster

    (place,) = in_cluster([root])
    records = []
    with connect(master, config) as client:
        for layout in kv_root.layouts(client, place.rstrip("/")):
            for chunk in kv_root.chunks(client, layout):
                if not chunk.path.rpartition("/")[2].startswith(key):
                    continue
                record: dict[str, Any] = {"path": chunk.path, "size_bytes": chunk.size_bytes, "state": "good"}
                try:
                    trailer = chunk_format.check_file(client.read_bytes(chunk.path), chunk.directory, chunk.name)
                    record |= {"payload_bytes": trailer.payload_bytes, "first_block": trailer.first_block,
                               "format": trailer.version, "xxh3": f"{trailer.checksum:016x}"}  # fmt: skip
                except HearthError as error:
                    record["state"] = str(error)
                record["nodes"] = [worker.node_id for worker in client.entry(chunk.path, follow=False).replicas]
                records.append(record)
    if not records:
        raise NotFound(f"no chunk below {place} begins with {key!r}")
    if as_json:
        output.print_json(records)
        return
    for record in records:
        for name, value in record.items():
            typer.echo(f"{name:>14}  {output.printable(str(value))}")


def prefix(
    model: Model,
    tokens: Annotated[Path, typer.Option(help="File with the prompt's token ids: a JSON list.")],
    layout: Annotated[str, typer.Option(help="Beginning of the layout, where a model has several.")] = "",
    salt: Annotated[str, typer.Option(help="The request's cache salt.")] = "",
    root: Root = "/kv",
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show which chunks of a prompt exist, and on which nodes. Needs vLLM, which names them by its hashes."""
    import json

    from ..connector.prompt_keys import chunk_names
    from . import kv_root, output
    from .connection import connect, in_cluster

    (place,) = in_cluster([root])
    ids = json.loads(tokens.read_text())
    with connect(master, config) as client:
        found = [one for one in kv_root.layouts(client, place.rstrip("/"), model) if one.layout.startswith(layout)]
        shared = [one for one in found if not one.tenant]
        chosen = kv_root.the_one(shared or found, model)
        names = [name.rpartition("/")[2] for name in chunk_names(ids, chosen.manifest, salt)]
        nodes = _nodes(client, chosen, names)
    per_chunk = _chunk_tokens(chosen)
    assert isinstance(per_chunk, int)
    rows: list[dict[str, Any]] = [
        {"tokens": [number * per_chunk, (number + 1) * per_chunk], "name": name, "nodes": where}
        for number, (name, where) in enumerate(zip(names, nodes, strict=True))
    ]
    reusable = next((number for number, row in enumerate(rows) if not row["nodes"]), len(rows)) * per_chunk
    if as_json:
        output.print_json(
            {"layout": chosen.path, "prompt_tokens": len(ids), "reusable_tokens": reusable, "chunks": rows}
        )
        return
    table = output.table(">TOKENS", "CHUNK", "NODES")
    for row in rows:
        where = ", ".join(row["nodes"]) or "missing"
        table.add_row(f"{row['tokens'][0]}-{row['tokens'][1]}", row["name"][:24], output.plain(where))
    output.console().print(table)
    typer.echo(f"{reusable} of {len(ids)} tokens can be loaded")


def _nodes(client: Client, layout: Layout, names: list[str]) -> list[list[str]]:
    """For each name, the nodes with a part of it; empty unless every rank has its part."""
    ranks = [entry.path for entry in client.scandir(layout.path) if entry.is_dir()]
    nodes: list[set[str]] = [set() for _ in names]
    whole = [bool(ranks)] * len(names)
    for rank in ranks:
        answer = client.lookup_many(rank, names, want_layout=True)
        for number, version in enumerate(answer.versions):
            whole[number] = whole[number] and answer.found[number]
            nodes[number] |= {replica.node_id for replica in version.replicas} if version else set()
    return [sorted(each) if all_there else [] for each, all_there in zip(nodes, whole, strict=True)]


def warm(
    sources: Annotated[list[Path], typer.Argument(help="Text files, directories of them, .jsonl, or - for stdin.")],
    engine: Annotated[str, typer.Option("--engine", "-e", help="URL of an engine with the connector.")],
    model: Annotated[str, typer.Option(help="Name of the served model. Default: the engine's only one.")] = "",
    salt: Annotated[str, typer.Option(help="Cache salt of the requests.")] = "",
    parallel: Annotated[int, typer.Option("--parallel", "-p", min=1, max=256, help="Requests at a time.")] = 4,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one prompt.")] = 600.0,
) -> None:
    """Prefill prompts or documents ahead, so that later requests find their chunks. One token is generated for each."""
    from ..common.errors import Unavailable
    from . import kv_engine

    prompts = list(kv_engine.prompts(sources))
    served = model or kv_engine.only_model(engine)
    done = kv_engine.warm(engine, served, prompts, salt, parallel, timeout)
    typer.echo(f"{done.prompts} of {len(prompts)} prompts, {done.tokens} tokens, {done.cached_tokens} cached before")
    if done.errors:
        raise Unavailable(f"{len(done.errors)} prompts failed, the first: {done.errors[0]}")


def purge(
    model: Model,
    layout: Annotated[str, typer.Option(help="Only the layout that begins with it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = "/kv",
    master: options.Master = None,
    config: options.Config = None,
) -> None:
    """Remove the chunks of a model or tenant. Engines that run go on; they compute, and store again."""
    import contextlib

    from ..common.errors import HearthError, NotEmpty, NotFound
    from . import kv_root, output
    from .connection import connect, in_cluster

    (place,) = in_cluster([root])
    with connect(master, config) as client:
        found = [one for one in kv_root.layouts(client, place.rstrip("/"), model) if one.layout.startswith(layout)]
        if not found:
            raise NotFound(f"no chunks of a model or tenant that begins with {model!r} below {place}")
        with output.busy("counting"):
            for one in found:
                kv_root.count(client, one)
        total = sum(one.chunks for one in found)
        size = output.size(sum(one.size_bytes for one in found))
        for one in found:
            typer.echo(f"{output.printable(one.path)}  {one.chunks} chunks, {output.size(one.size_bytes)}")
        if not yes:
            typer.confirm(f"Remove {total} chunks, {size}?", abort=True)
        for one in found:
            with output.busy("removing"), contextlib.suppress(NotFound):
                client.rmtree(one.path)
            with contextlib.suppress(NotEmpty, NotFound, HearthError):
                client.rmdir(one.path.rpartition("/")[0])
    typer.echo(f"removed {total} chunks, {size}")


def verify(
    model: Annotated[str, typer.Argument(help="Only those that begin with it.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the bad ones; engines store them again.")] = False,
    root: Root = "/kv",
    master: options.Master = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Read every chunk and check it: key, directory, length, checksum. Exit code 3 when one is bad."""
    from . import kv_root, output
    from .connection import connect, in_cluster
    from .main import FINDINGS

    (place,) = in_cluster([root])
    bad: list[dict[str, str]] = []
    good = 0
    with connect(master, config) as client:
        found = [kv_root.count(client, one) for one in kv_root.layouts(client, place.rstrip("/"), model)]
        with output.progress("verify", sum(one.size_bytes for one in found)) as advance:
            for batch in _batches(chunk for one in found for chunk in kv_root.chunks(client, one)):
                for chunk, problem in _check(client, batch):
                    advance(chunk.size_bytes)
                    good += problem is None
                    if problem is not None:
                        bad.append({"path": chunk.path, "problem": problem})
        if remove:
            for one in bad:
                client.unlink(one["path"])
    if as_json:
        output.print_json({"good": good, "bad": bad})
    else:
        for one in bad:
            typer.echo(f"{output.printable(one['path'])}: {output.printable(one['problem'])}")
        typer.echo(f"{good} chunks are good, {len(bad)} bad{', removed' if remove and bad else ''}")
    if bad:
        raise typer.Exit(FINDINGS)


def _batches(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += chunk.size_bytes
        if size >= VERIFY_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check(client: Client, batch: list[Chunk]) -> Iterator[tuple[Chunk, str | None]]:
    from ..common.errors import HearthError, NotFound
    from ..connector import chunk_format

    buffers = [bytearray(chunk.size_bytes) for chunk in batch]
    outcomes = client.get_many([chunk.path for chunk in batch], buffers)
    for chunk, buffer, outcome in zip(batch, buffers, outcomes, strict=True):
        if isinstance(outcome, NotFound):
            continue  # evicted or purged meanwhile
        try:
            if outcome is not None:
                raise outcome
            chunk_format.check_file(buffer, chunk.directory, chunk.name)
        except HearthError as error:
            yield chunk, f"{type(error).__name__}: {error}"
        else:
            yield chunk, None
