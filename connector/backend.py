"""Where chunks are kept, as the connector sees it, and how the place that the settings name is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..common.errors import HearthError
from .settings import ConnectorSettings

Located = Mapping[str, Any]
"""By file name, what a store found out about its bytes. Of no use to anybody else."""
NOWHERE: Located = {}


class ChunkStore(Protocol):
    """Files of one root. All calls may come from several threads, and return within their timeout or soon after."""

    verifies_bytes: bool
    """Whether loaded bytes were checked against a checksum on their way."""

    def lookup(self, directory: str, names: Sequence[str], timeout_s: float) -> list[bool]:
        """Which of the files are there to be loaded.

        Raises:
            HearthError: nobody answered.
        """

    def locate(self, directory: str, names: Sequence[str], timeout_s: float) -> Located:
        """Where the bytes of the files are: a load of many asks once, and gives ``load`` what each call needs of it.

        Raises:
            HearthError: nobody answered.
        """

    def load(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        located: Located = NOWHERE,
    ) -> list[HearthError | None]:
        """Reads each file into its buffer, whose length must be the file's. One outcome per file. ``located``: of
        these names, or nothing."""

    def store(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        replace: bool,
        depths: Sequence[int] = (),
    ) -> list[HearthError | None]:
        """Makes each buffer a file, whole or not at all. One that is there already is kept unless ``replace``.
        ``depths``: of each in its prompt; a full store drops the deepest first."""

    def put_manifest(self, directory: str, name: str, data: bytes, timeout_s: float) -> None:
        """A small file for people, written if it is not there.

        Raises:
            HearthError: it could not be written.
        """

    def manifests(self, model: str, limit: int) -> list[bytes]:
        """Of layouts whose model's directory begins with ``model`` and a dash; at most ``limit``.

        Raises:
            HearthError: nobody answered.
        """

    def moved(self) -> bool:
        """Whether the root leads elsewhere now: to another cluster, or to the same one at another place.

        Raises:
            HearthError: it leads nowhere.
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
    from .hearth import HearthStore

    return HearthStore.open(settings.root, settings.store_timeout_s)
