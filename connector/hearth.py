"""Chunks as files of the HearthFS cluster whose mount the root lies below. The bytes never pass through the mount."""

from __future__ import annotations

from collections.abc import Sequence

from ..client.client import Client
from ..common.errors import HearthError


class HearthStore:
    """One client; it verifies every byte that it reads."""

    verifies_bytes = True

    def __init__(self, client: Client, root: str) -> None:
        """``root``: in the namespace."""
        self._client = client
        self._root = root.rstrip("/")

    @classmethod
    def open(cls, root: str, timeout_s: float) -> HearthStore:
        """Finds the cluster by the mount that ``root`` lies below.

        Raises:
            HearthError: nothing is mounted there, or the cluster does not answer. Nothing was written.
        """
        client, inside = Client.from_mount(root, kind="connector", timeout_s=timeout_s)
        try:
            client.makedirs(inside, exist_ok=True)
        except BaseException:
            client.close()
            raise
        return cls(client, inside)

    def lookup(self, directory: str, names: Sequence[str], timeout_s: float) -> list[bool]:
        return list(self._client.lookup_many(self._path(directory), names, timeout_s=timeout_s).found)

    def load(
        self, directory: str, names: Sequence[str], buffers: Sequence[memoryview], timeout_s: float
    ) -> list[HearthError | None]:
        return self._client.get_many(names, buffers, directory=self._path(directory), timeout_s=timeout_s)

    def store(
        self, directory: str, names: Sequence[str], buffers: Sequence[memoryview], timeout_s: float, replace: bool
    ) -> list[HearthError | None]:
        return self._client.put_many(
            names,
            buffers,
            directory=self._path(directory),
            keep_existing=not replace,
            wait_for_caches=False,
            timeout_s=timeout_s,
        )

    def put_manifest(self, directory: str, name: str, data: bytes, timeout_s: float) -> None:
        (error,) = self.store(directory, [name], [memoryview(data)], timeout_s, replace=False)
        if error is not None:
            raise error

    def close(self) -> None:
        self._client.close()

    def _path(self, directory: str) -> str:
        return f"{self._root}/{directory}"
