"""The chunks below a connector's root, as the namespace shows them: models, layouts, ranks, tenants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..common.errors import InvalidArgument, NotADirectory, NotFound
from ..connector.identity import CHUNK_ENDING, MANIFEST, TENANT

if TYPE_CHECKING:
    from ..client.client import Client


@dataclass
class Layout:
    """Chunks of engines that share: one model, one layout, one tenant."""

    root: str
    tenant: str
    model: str
    layout: str
    manifest: dict[str, Any] = field(default_factory=dict)
    chunks: int = 0
    size_bytes: int = 0
    newest_ns: int = 0

    @property
    def path(self) -> str:
        """In the namespace."""
        return "/".join(part for part in (self.root, self.tenant, self.model, self.layout) if part)


@dataclass(frozen=True)
class Chunk:
    """``directory`` and ``name`` are what its trailer was sealed with."""

    path: str
    directory: str
    name: str
    size_bytes: int
    mtime_ns: int


def layouts(client: Client, root: str, wanted: str = "") -> list[Layout]:
    """All of them, or those whose model's or tenant's directory begins with ``wanted``; not counted yet.

    Raises:
        NotFound: no such root.
    """
    found = []
    for tenant, model in _models(client, root):
        if not (model.startswith(wanted) or tenant.startswith(wanted)):
            continue
        at = "/".join(part for part in (root, tenant, model) if part)
        found += [
            Layout(root, tenant, model, entry.name, _manifest(client, f"{root}/{model}/{entry.name}"))
            for entry in client.scandir(at)
            if entry.is_dir()
        ]
    return sorted(found, key=lambda one: one.path)


def count(client: Client, layout: Layout) -> Layout:
    """Adds up the layout's chunks; a chunk of several ranks counts once for each."""
    for chunk in chunks(client, layout):
        layout.chunks += 1
        layout.size_bytes += chunk.size_bytes
        layout.newest_ns = max(layout.newest_ns, chunk.mtime_ns)
    return layout


def chunks(client: Client, layout: Layout) -> Iterator[Chunk]:
    for rank in client.scandir(layout.path):
        if not rank.is_dir():
            continue
        directory = f"{layout.model}/{layout.layout}/{rank.name}"
        for entry in client.scandir(rank.path):
            if entry.is_file() and entry.name.endswith(CHUNK_ENDING):
                name = f"{layout.tenant}/{entry.name}" if layout.tenant else entry.name
                yield Chunk(entry.path, directory, name, entry.stat.st_size, entry.stat.st_mtime_ns)


def the_one(found: list[Layout], wanted: str) -> Layout:
    """
    Raises:
        NotFound, InvalidArgument: none, or several.
    """
    if not found:
        raise NotFound(f"no chunks of a model that begins with {wanted!r}; see `hearth kv ls`")
    if len(found) > 1:
        names = ", ".join(sorted(f"{one.model}/{one.layout[:8]}" for one in found))
        raise InvalidArgument(f"{wanted!r} stands for several: {names}; give more of the name, or --layout")
    return found[0]


def _models(client: Client, root: str) -> Iterator[tuple[str, str]]:
    """(tenant or "", model)."""
    for entry in client.scandir(root or "/"):
        if not entry.is_dir():
            continue
        if entry.name.startswith(TENANT):
            yield from ((entry.name, inner.name) for inner in client.scandir(entry.path) if inner.is_dir())
        else:
            yield "", entry.name


def _manifest(client: Client, path: str) -> dict[str, Any]:
    try:
        fields = json.loads(client.read_bytes(f"{path}/{MANIFEST}"))
    except (NotFound, NotADirectory, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
