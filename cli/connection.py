"""A client for one command, and the paths that commands are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import mountpoint, options

if TYPE_CHECKING:
    from ..client.client import Client


@contextmanager
def connect(master: str | None, config: Path | None) -> Iterator[Client]:
    """Closed at the end; no connection is made before the first call."""
    from ..client.client import Client

    with Client(settings=options.client_settings(master, config), kind="cli") as client:
        yield client


def in_cluster(paths: list[str]) -> list[str]:
    """What the cluster calls each path: those below a local mount lose the mount point."""
    listed = mountpoint.mounts()
    return [mountpoint.namespace_path(path, listed) for path in paths]
