"""The chunk store with its troubles kept away: not mounted, not answering, coming back.

All calls come from background threads and none raises: an unreachable store has no files and takes none. A thread of
its own opens the store, so that nobody else waits for a mount that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..common.errors import HearthError, Unavailable
from .backend import ChunkStore, open_store
from .notices import Notices
from .settings import ConnectorSettings


class Storage:
    """Opens the store after ``start``, trying again every few seconds until it works."""

    def __init__(
        self,
        settings: ConnectorSettings,
        notices: Notices,
        opener: Callable[[ConnectorSettings], ChunkStore] = open_store,
    ) -> None:
        self._settings = settings
        self._notices = notices
        self._opener = opener
        self._lock = threading.Lock()
        self._store: ChunkStore | None = None
        self._warned = False
        self._closed = threading.Event()
        self._manifests: set[str] = set()

    def start(self) -> None:
        threading.Thread(target=self._keep_probing, name="hearth-probe", daemon=True).start()

    def probe(self) -> bool:
        """Tries once to open the store; True when nothing is left to do."""
        try:
            store = self._opener(self._settings)
        except Exception as error:
            if not self._warned:
                self._warned = True
                self._notices.warn(
                    "not reachable",
                    "serving without the KV cache, probing again every %s s: %s",
                    self._settings.probe_interval_s,
                    error,
                )
            return False
        with self._lock:
            if not self._closed.is_set():
                self._store = store
                self._notices.info("KV chunks in %s (backend %s)", self._settings.root, self._settings.backend)
                return True
        store.close()
        return True

    def _keep_probing(self) -> None:
        while not self._closed.is_set() and not self.probe():
            self._closed.wait(self._settings.probe_interval_s)

    @property
    def verifies_bytes(self) -> bool:
        store = self._store
        return store is not None and store.verifies_bytes

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def lookup(self, directories: Sequence[str], names: Sequence[str]) -> list[bool] | None:
        """Which names are in all the directories (one per rank: a chunk that one rank lacks is no hit).

        None: nobody answered; not the same as absent.
        """
        store = self._store
        if store is None:
            return None
        present = [True] * len(names)
        for directory in directories:
            wanted = [i for i, there in enumerate(present) if there]
            if not wanted:
                break
            try:
                found = store.lookup(directory, [names[i] for i in wanted], self._settings.lookup_timeout_s)
            except Exception as error:
                self._trouble("lookup", error)
                return None
            for i, there in zip(wanted, found, strict=True):
                present[i] = there
        return present

    def load(self, directory: str, names: Sequence[str], buffers: Sequence[memoryview]) -> list[HearthError | None]:
        return self._each(
            "load", names, lambda store: store.load(directory, names, buffers, self._settings.load_timeout_s)
        )

    def store(
        self, directory: str, names: Sequence[str], buffers: Sequence[memoryview], replace: bool
    ) -> list[HearthError | None]:
        return self._each(
            "store",
            names,
            lambda store: store.store(directory, names, buffers, self._settings.store_timeout_s, replace),
        )

    def put_manifest_once(self, directory: str, name: str, data: bytes) -> None:
        """Tried until it has worked once; it is only for people."""
        store = self._store
        if store is None or directory in self._manifests:
            return
        try:
            store.put_manifest(directory, name, data, self._settings.store_timeout_s)
            self._manifests.add(directory)
        except Exception as error:
            self._trouble("manifest", error)

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except Exception as error:
                self._trouble("close", error)

    def _each(
        self, what: str, names: Sequence[str], act: Callable[[ChunkStore], list[HearthError | None]]
    ) -> list[HearthError | None]:
        store = self._store
        if store is None:
            return [Unavailable("the chunk store is not reachable")] * len(names)
        try:
            return act(store)
        except Exception as error:
            self._trouble(what, error)
            failure = error if isinstance(error, HearthError) else Unavailable(f"{what}: {error!r}")
            return [failure] * len(names)

    def _trouble(self, what: str, error: Exception) -> None:
        self._notices.warn(what, "%s failed, which counts as a miss: %s: %s", what, type(error).__name__, error)
