"""Stand-ins that the connector's tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hearthfs.common.clock import Clock
from hearthfs.common.errors import HearthError, NotFound
from hearthfs.connector.backend import NOWHERE, Located
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.connector.storage import Storage


class Log:
    """Keeps what a ``logging`` logger would print."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *values: object) -> None:
        self.lines.append(text % values)

    warning = debug = info


class MemoryStore:
    """Files in a dict; each call can be made to fail or to hang."""

    verifies_bytes = False

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.lookups: list[tuple[str, list[str]]] = []
        self.located: list[list[str]] = []
        self.timeouts_s: list[float] = []
        """Of loads."""
        self.error: Exception | None = None
        self.before_load: Callable[[], None] = lambda: None
        self.before_store: Callable[[], None] = lambda: None
        self.lock = threading.Lock()
        self.closed = False
        self.elsewhere: bool | Exception = False
        self.depths: dict[str, int] = {}

    def lookup(self, directory: str, names: Sequence[str], timeout_s: float) -> list[bool]:
        if self.error:
            raise self.error
        self.lookups.append((directory, list(names)))
        return [(directory, name) in self.files for name in names]

    def locate(self, directory: str, names: Sequence[str], timeout_s: float) -> Located:
        if self.error:
            raise self.error
        self.located.append(list(names))
        return {name: (directory, name) for name in names}

    def load(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        located: Located = NOWHERE,
    ) -> list[HearthError | None]:
        assert not located or set(located) >= set(names)
        self.before_load()
        if self.error:
            raise self.error
        self.timeouts_s.append(timeout_s)
        return [self._load_one(directory, name, buffer) for name, buffer in zip(names, buffers, strict=True)]

    def _load_one(self, directory: str, name: str, buffer: memoryview) -> HearthError | None:
        data = self.files.get((directory, name))
        if data is None:
            return NotFound(name)
        buffer[: len(data)] = data
        return None

    def store(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        replace: bool,
        depths: Sequence[int] = (),
    ) -> list[HearthError | None]:
        self.before_store()
        if self.error:
            raise self.error
        with self.lock:
            for name, buffer in zip(names, buffers, strict=True):
                self.depths |= dict(zip(names, depths, strict=False))
                if replace or (directory, name) not in self.files:
                    self.files[directory, name] = bytes(buffer)
        return [None] * len(names)

    def put_manifest(self, directory: str, name: str, data: bytes, timeout_s: float) -> None:
        self.files[directory, name] = data

    def manifests(self, model: str, limit: int) -> list[bytes]:
        if self.error:
            raise self.error
        found = (data for (directory, name), data in self.files.items() if name == "manifest.json")
        return list(found)[:limit]

    def moved(self) -> bool:
        if isinstance(self.elsewhere, Exception):
            raise self.elsewhere
        return self.elsewhere

    def close(self) -> None:
        self.closed = True


def storage_of(store: MemoryStore, settings: ConnectorSettings, log: Log, clock: Clock | None = None) -> Storage:
    storage = Storage(settings, Notices(log, interval_s=0), opener=lambda _: store, clock=clock)
    storage.probe()
    return storage
