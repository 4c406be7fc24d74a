"""Chunks as files of the HearthFS cluster whose mount the root lies below. The bytes never pass through the mount."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from ..client import mount_root
from ..client.client import Client
from ..client.mount_root import MountRoot
from ..client.packed_names import LookupResult
from ..common.errors import HearthError, NoAttribute, NotADirectory, NotFound
from .backend import NOWHERE, Located
from .identity import MANIFEST

CACHE = "hearth.cache"


class HearthStore:
    """One client; it verifies every byte that it reads."""

    verifies_bytes = True

    def __init__(self, client: Client, found: MountRoot, root: str) -> None:
        """``found``: where ``root``, a path of this machine, led when the client was made."""
        self._client = client
        self._found = found
        self._mounted_root = root
        self._root = found.path.rstrip("/")

    @classmethod
    def open(cls, root: str, timeout_s: float) -> HearthStore:
        """Finds the cluster by the mount that ``root`` lies below.

        Raises:
            HearthError: nothing is mounted there, or the cluster does not answer. Nothing was written.
        """
        found = mount_root.find(root)
        client = Client(
            found.master,
            node_id=found.node_id,
            worker_socket=found.worker_socket,
            cluster_id=found.cluster_id,
            kind="connector",
            timeout_s=timeout_s,
        )
        try:
            client.makedirs(found.path, exist_ok=True)
            _mark(client, found.path)
        except BaseException:
            client.close()
            raise
        return cls(client, found, root)

    def manifests(self, model: str, limit: int) -> list[bytes]:
        found: list[bytes] = []
        for entry in self._client.scandir(self._root or "/"):
            if not entry.name.startswith(f"{model}-"):
                continue
            for layout in self._client.scandir(f"{self._root}/{entry.name}"):
                if len(found) == limit:
                    return found
                with contextlib.suppress(NotFound, NotADirectory):
                    found.append(self._client.read_bytes(f"{self._root}/{entry.name}/{layout.name}/{MANIFEST}"))
        return found

    def moved(self) -> bool:
        now = mount_root.find(self._mounted_root)
        if not now.worker_socket:  # the worker is being restarted
            now = dataclasses.replace(now, worker_socket=self._found.worker_socket)
        return now != self._found

    def lookup(self, directory: str, names: Sequence[str], timeout_s: float) -> list[bool]:
        return list(self._client.lookup_many(self._path(directory), names, timeout_s=timeout_s).found)

    def locate(self, directory: str, names: Sequence[str], timeout_s: float) -> Located:
        found = self._client.lookup_many(self._path(directory), names, want_layout=True, timeout_s=timeout_s)
        return {name: (version, found.replicate_on_read) for name, version in zip(names, found.versions, strict=True)}

    def load(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        located: Located = NOWHERE,
    ) -> list[HearthError | None]:
        known = None
        if located:
            versions, replicate = zip(*(located[name] for name in names), strict=True)
            known = LookupResult([version is not None for version in versions], list(versions), any(replicate))
        return self._client.get_many(names, buffers, directory=self._path(directory), known=known, timeout_s=timeout_s)

    def store(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        replace: bool,
        depths: Sequence[int] = (),
    ) -> list[HearthError | None]:
        return self._client.put_many(
            names,
            buffers,
            directory=self._path(directory),
            keep_existing=not replace,
            wait_for_caches=False,
            depths=depths,
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


def _mark(client: Client, root: str) -> None:
    """What lies below the root may be evicted, unless somebody said otherwise. It is done before the first directory is
    made there: those below get it from those above."""
    try:
        client.getxattr(root, CACHE)
    except NoAttribute:
        client.setxattr(root, CACHE, b"1")
