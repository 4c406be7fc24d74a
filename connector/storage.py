"""The chunk store with its troubles kept away: not mounted, not answering, coming back.

All calls come from background threads and none raises: an unreachable store has no files and takes none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..common.clock import Clock, SystemClock
from ..common.errors import HearthError, Unavailable
from .backend import ChunkStore, open_store
from .notices import Notices
from .settings import ConnectorSettings


class Storage:
    """Opens the store when it is first needed, and again, every few seconds, while it cannot be opened."""

    def __init__(
        self,
        settings: ConnectorSettings,
        notices: Notices,
        opener: Callable[[ConnectorSettings], ChunkStore] = open_store,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._notices = notices
        self._opener = opener
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._store: ChunkStore | None = None
        self._next_probe_s = 0.0
        self._warned = False
        self._closed = False
        self._manifests: set[str] = set()

    @property
    def verifies_bytes(self) -> bool:
        store = self._store
        return store is not None and store.verifies_bytes

    def is_reachable(self) -> bool:
        """Whether the store is open; opens it if it is time to try."""
        return self._usable() is not None

    def lookup(self, directories: Sequence[str], names: Sequence[str]) -> list[bool] | None:
        """Which names are in all the directories (one per rank: a chunk that one rank lacks is no hit).

        None: nobody answered; not the same as absent.
        """
        store = self._usable()
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
        store = self._usable()
        if store is None or directory in self._manifests:
            return
        try:
            store.put_manifest(directory, name, data, self._settings.store_timeout_s)
            self._manifests.add(directory)
        except Exception as error:
            self._trouble("manifest", error)

    def close(self) -> None:
        with self._lock:
            store, self._store, self._closed = self._store, None, True
        if store is not None:
            try:
                store.close()
            except Exception as error:
                self._trouble("close", error)

    def _each(
        self, what: str, names: Sequence[str], act: Callable[[ChunkStore], list[HearthError | None]]
    ) -> list[HearthError | None]:
        store = self._usable()
        if store is None:
            return [Unavailable("the chunk store is not reachable")] * len(names)
        try:
            return act(store)
        except Exception as error:
            self._trouble(what, error)
            failure = error if isinstance(error, HearthError) else Unavailable(f"{what}: {error!r}")
            return [failure] * len(names)

    def _usable(self) -> ChunkStore | None:
        if self._store is not None or self._closed:
            return self._store
        with self._lock:
            if self._store is not None or self._closed or self._clock.monotonic_s() < self._next_probe_s:
                return self._store
            try:
                self._store = self._opener(self._settings)
            except Exception as error:
                self._next_probe_s = self._clock.monotonic_s() + self._settings.probe_interval_s
                if not self._warned:
                    self._warned = True
                    self._notices.warn(
                        "not reachable",
                        "serving without the KV cache, probing again every %s s: %s",
                        self._settings.probe_interval_s,
                        error,
                    )
                return None
            self._notices.info("KV chunks in %s (backend %s)", self._settings.root, self._settings.backend)
            self._warned = False
            return self._store

    def _trouble(self, what: str, error: Exception) -> None:
        self._notices.warn(what, "%s failed, which counts as a miss: %s: %s", what, type(error).__name__, error)
