"""Where chunks are kept, as the connector sees it, and how the place that the settings name is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from ..common.errors import HearthError, Unavailable
from .settings import ConnectorSettings

MOUNT_TYPE = "fuse.hearthfs"
MOUNT_TABLE = "/proc/self/mountinfo"


class ChunkStore(Protocol):
    """Files of one root. All calls may come from several threads, and return within their timeout or soon after."""

    verifies_bytes: bool
    """Whether loaded bytes were checked against a checksum on their way."""

    def lookup(self, directory: str, names: Sequence[str], timeout_s: float) -> list[bool]:
        """Which of the files are there to be loaded.

        Raises:
            HearthError: nobody answered.
        """

    def load(
        self, directory: str, names: Sequence[str], buffers: Sequence[memoryview], timeout_s: float
    ) -> list[HearthError | None]:
        """Reads each file into its buffer, whose length must be the file's. One outcome per file."""

    def store(
        self, directory: str, names: Sequence[str], buffers: Sequence[memoryview], timeout_s: float, replace: bool
    ) -> list[HearthError | None]:
        """Makes each buffer a file, whole or not at all. One that is there already is kept unless ``replace``."""

    def put_manifest(self, directory: str, name: str, data: bytes, timeout_s: float) -> None:
        """A small file for people, written if it is not there.

        Raises:
            HearthError: it could not be written.
        """

    def close(self) -> None:
        """Gives connections and descriptors back. The store is not used afterwards."""


def open_store(settings: ConnectorSettings) -> ChunkStore:
    """The store that the settings name.

    Raises:
        HearthError: it is not reachable now: nothing is mounted there, or the cluster does not answer.
    """
    if settings.backend == "plain":
        from .plain import PlainStore

        return PlainStore(settings.root)
    mountpoint = hearth_mount_of(settings.root)
    if mountpoint is None:
        raise Unavailable(
            f"{settings.root} is not below a HearthFS mount (type {MOUNT_TYPE}). "
            f"Mount one (hearth mount), or set backend: plain to keep plain files there"
        )
    from .hearth import HearthStore

    return HearthStore(settings.root, mountpoint, settings.lookup_timeout_s)


def hearth_mount_of(path: str, mount_table: str | None = None) -> str | None:
    """The HearthFS mount point at or above ``path``; None if another file system is nearer.

    Args:
        mount_table: text in the format of /proc/self/mountinfo, for tests.

    Raises:
        OSError: the table cannot be read.
    """
    if mount_table is None:
        with open(MOUNT_TABLE, encoding="utf-8", errors="surrogateescape") as stream:
            mount_table = stream.read()
    path = os.path.normpath(path)
    nearest, nearest_type = "", ""
    for line in mount_table.splitlines():
        before, _, after = line.partition(" - ")
        mountpoint = before.split(" ")[4].encode("latin-1", "replace").decode("unicode_escape")
        inside = path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")
        if inside and len(mountpoint) >= len(nearest):  # later lines lie on top of earlier ones
            nearest, nearest_type = mountpoint, after.split(" ")[0]
    return nearest if nearest_type == MOUNT_TYPE else None
