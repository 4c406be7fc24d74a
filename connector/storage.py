"""The chunk store with its troubles kept away: not mounted, not answering, slow, coming back, another one.

All calls come from background threads and none raises: an unreachable store has no files and takes none. A thread of
its own opens the store, so that nobody else waits for a mount that hangs, and looks now and then whether the root still
belongs to the same cluster.

When the store is slow or does not answer, stores are the first to stop: one store or load that runs out of time
suspends them for ``probe_interval_s``. Loads go on until ``breaker_failures`` in a row have failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..common.clock import Clock, SystemClock
from ..common.errors import DeadlineExceeded, HearthError, NoSpace, Unavailable
from .backend import NOWHERE, ChunkStore, Located, open_store
from .breaker import Breaker
from .identity import place
from .notices import Notices
from .settings import ConnectorSettings

MAX_BLIND_S = 600.0
"""Between looks at a root that leads nowhere while the store is open: a look at a hung mount costs a thread."""


class Storage:
    """Opens the store after ``start``, trying again every few seconds until it works."""

    def __init__(
        self,
        settings: ConnectorSettings,
        notices: Notices,
        opener: Callable[[ConnectorSettings], ChunkStore] = open_store,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.loads = Breaker(settings.breaker_failures, settings.probe_interval_s, clock)
        self.stores = Breaker(1, settings.probe_interval_s, clock)
        self.on_change: Callable[[], None] = lambda: None
        """Called when the store was opened, the first time or another one: what was known about it is void."""
        self._settings = settings
        self._notices = notices
        self._opener = opener
        self._lock = threading.Lock()
        self._store: ChunkStore | None = None
        self._warned = False
        self._blind = False
        self._closed = threading.Event()
        self._manifests: set[str] = set()

    def start(self) -> None:
        threading.Thread(target=self._keep_probing, name="hearth-probe", daemon=True).start()

    def probe(self) -> bool:
        """Opens the store if it is not open, and another one if the root is another cluster's now; whether it is open.

        A store whose mount went away stays: the bytes do not pass through the mount.
        """
        current = self._store
        self._blind = False
        try:
            if current is not None and not current.moved():
                return True
            store = self._opener(self._settings)
        except Exception as error:
            if current is not None:
                self._blind = True
                return True
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
            replaced = store if self._closed.is_set() else self._store
            if not self._closed.is_set():
                self._store = store
                self._manifests.clear()
        if replaced is not store:
            what = "KV chunks in %s (backend %s)" if replaced is None else "%s is another cluster now (backend %s)"
            self._notices.info(what, self._settings.root, self._settings.backend)
            self.loads.succeeded()
            self.stores.succeeded()
            self.on_change()
        if replaced is not None:
            replaced.close()
        return self._store is not None

    def _keep_probing(self) -> None:
        wait_s = self._settings.probe_interval_s
        while not self._closed.is_set():
            self.probe()
            interval_s = self._settings.probe_interval_s
            wait_s = min(2 * wait_s, MAX_BLIND_S) if self._blind else interval_s
            self._closed.wait(wait_s)

    @property
    def sheds_stores(self) -> str:
        """Why stores are not to be begun now; empty: go on."""
        if self._store is None:
            return "unreachable"
        if self.stores.is_resting:
            return f"suspended: {self.stores.reason}"
        return f"suspended: {self.loads.reason}" if self.loads.failed_lately else ""

    @property
    def trouble(self) -> str:
        """Why loads are not sent to the store now; empty: they are."""
        return self.loads.reason if self.loads.is_resting else ""

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
                for at, some in _by_place(directory, names, wanted).items():
                    files = [names[i].rpartition("/")[2] for i in some]
                    found = store.lookup(at, files, self._settings.lookup_timeout_s)
                    for i, there in zip(some, found, strict=True):
                        present[i] = there
            except Exception as error:
                self._trouble("lookup", error)
                return None
        return present

    def locate(self, directory: str, names: Sequence[str], timeout_s: float) -> Located:
        """For loads of some of the names soon after. ``NOWHERE`` in case of trouble: each load then meets it itself."""
        store = self._store
        if store is None or self.loads.is_resting:
            return NOWHERE
        found: dict[str, Any] = {}
        try:
            for at, some in _by_place(directory, names, range(len(names))).items():
                files = {names[i].rpartition("/")[2]: names[i] for i in some}
                located = store.locate(at, list(files), timeout_s)
                found |= {files[file]: what for file, what in located.items()}
        except Exception:
            return NOWHERE
        return found

    def load(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        located: Located = NOWHERE,
    ) -> list[HearthError | None]:
        def load(store: ChunkStore, at: str, files: list[str], some: list[int]) -> list[HearthError | None]:
            known = {file: located[names[i]] for file, i in zip(files, some, strict=True)} if located else NOWHERE
            return store.load(at, files, [buffers[i] for i in some], timeout_s, known)

        return self._each("load", self.loads, directory, names, load)

    def store(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        replace: bool,
        depths: Sequence[int] = (),
    ) -> list[HearthError | None]:
        return self._each(
            "store",
            self.stores,
            directory,
            names,
            lambda store, at, files, some: store.store(
                at,
                files,
                [buffers[i] for i in some],
                self._settings.store_timeout_s,
                replace,
                [depths[i] for i in some] if depths else (),
            ),
        )

    def note_late_load(self, reason: str) -> None:
        """A load ran out of time, wherever its threads are."""
        self._note(self.loads, "load", reason)

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

    def manifests(self, model: str, limit: int) -> list[bytes]:
        store = self._store
        try:
            return [] if store is None else store.manifests(model, limit)
        except Exception as error:
            self._trouble("manifests", error)
            return []

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
        self,
        what: str,
        breaker: Breaker,
        directory: str,
        names: Sequence[str],
        act: Callable[[ChunkStore, str, list[str], list[int]], list[HearthError | None]],
    ) -> list[HearthError | None]:
        """``act`` for each directory that the names are in (one, unless tenants are mixed), with the places of its
        names in ``names``."""
        store = self._store
        if store is None:
            return [Unavailable("the chunk store is not reachable")] * len(names)
        if not breaker.allows():
            return [Unavailable(f"not asked, because: {breaker.reason}")] * len(names)
        try:
            outcomes: list[HearthError | None] = [None] * len(names)
            for at, some in _by_place(directory, names, range(len(names))).items():
                files = [names[i].rpartition("/")[2] for i in some]
                for i, outcome in zip(some, act(store, at, files, some), strict=True):
                    outcomes[i] = outcome
        except Exception as error:
            self._trouble(what, error)
            failure = error if isinstance(error, HearthError) else Unavailable(f"{what}: {error!r}")
            outcomes = [failure] * len(names)
        silent = [one for one in outcomes if isinstance(one, (Unavailable, DeadlineExceeded, NoSpace))]
        if len(silent) < len(outcomes) or not outcomes:
            breaker.succeeded()
        else:
            self._note(breaker, what, f"{type(silent[0]).__name__}: {silent[0]}")
        return outcomes

    def _note(self, breaker: Breaker, what: str, reason: str) -> None:
        if breaker.failed(reason):
            self._notices.warn(
                f"{what} suspended",
                "%ss are suspended; one is tried again after %s s: %s",
                what,
                self._settings.probe_interval_s,
                reason,
            )

    def _trouble(self, what: str, error: Exception) -> None:
        self._notices.warn(what, "%s failed, which counts as a miss: %s: %s", what, type(error).__name__, error)


def _by_place(directory: str, names: Sequence[str], chosen: Iterable[int]) -> dict[str, list[int]]:
    """Indexes of ``names`` by the directory that each is in."""
    found: dict[str, list[int]] = {}
    for i in chosen:
        found.setdefault(place(directory, names[i])[0] if "/" in names[i] else directory, []).append(i)
    return found
