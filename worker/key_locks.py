"""One lock per block, made when needed and gone when nobody holds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..common.types import BlockKey


class KeyLocks:
    """
    >>> locks = KeyLocks()
    >>> with locks.holding(BlockKey(1, 1)):
    ...     len(locks)
    1
    >>> len(locks)
    0
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[BlockKey, tuple[threading.Lock, int]] = {}

    @contextmanager
    def holding(self, key: BlockKey) -> Iterator[None]:
        with self._guard:
            lock, users = self._held.get(key, (threading.Lock(), 0))
            self._held[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._held[key]
                if users == 1:
                    del self._held[key]
                else:
                    self._held[key] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._held)
