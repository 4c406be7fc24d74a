"""Makes the copies that the master ordered: each from the first source that has the right bytes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..common.clock import Clock
from ..common.errors import BlockCorrupt, BlockMissing, Busy, DeadlineExceeded, HearthError, NoSpace, NotFound
from ..common.telemetry import get_logger, trace
from ..common.types import BlockKey

Fetch = Callable[[BlockKey, int, int, Sequence[str]], object]
"""``fetch(key, length_bytes, digest, addresses)`` returns when the block is committed here. Raises: HearthError."""

ORDERS_MAX = 4096
log = get_logger("hearthfs.worker.copier")


class Source(NamedTuple):
    worker_id: str
    address: str


class Order(NamedTuple):
    """``deadline_s``: of the worker's monotonic clock; nobody waits for the copy after that."""

    key: BlockKey
    length_bytes: int
    digest: int
    sources: tuple[Source, ...]
    deadline_s: float


class Result(NamedTuple):
    """How an order ended. ``bad_sources``: ids of workers that did not have the block, or had other bytes."""

    key: BlockKey
    error: HearthError | None = None
    bad_sources: tuple[str, ...] = ()


class Copier:
    """Thread-safe. An order that comes again while it is in work, or while the master has not heard of its end, is the
    same order."""

    def __init__(self, fetch: Fetch, clock: Clock, threads: int, ended: Callable[[], None]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._ended = ended
        self._guard = threading.Lock()
        self._known: set[BlockKey] = set()
        self._results: list[Result] = []
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"copier-{number}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begins nothing more; what is under way ends by the fetcher's own stop."""
        self._stopping.set()
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def take(self, orders: Iterable[Order]) -> None:
        """More than ORDERS_MAX are left out: the master tells them again."""
        with self._guard:
            for order in orders:
                if order.key not in self._known and len(self._known) < ORDERS_MAX:
                    self._known.add(order.key)
                    self._orders.put(order)

    def results(self) -> list[Result]:
        """Those that the master has not heard of. They stay until ``acknowledge``."""
        with self._guard:
            return list(self._results)

    def acknowledge(self, count: int) -> None:
        """The master has the first ``count`` results."""
        with self._guard:
            for result in self._results[:count]:
                self._known.discard(result.key)
            del self._results[:count]

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            if self._stopping.is_set():
                return
            with trace():
                result = self._copy(order)
            with self._guard:
                self._results.append(result)
            self._ended()

    def _copy(self, order: Order) -> Result:
        bad: list[str] = []
        last: HearthError = BlockMissing(f"block {order.key}: the order names no source")
        for source in order.sources:
            if self._clock.monotonic_s() >= order.deadline_s:
                last = DeadlineExceeded(f"block {order.key}: its order is over")
                break
            try:
                self._fetch(order.key, order.length_bytes, order.digest, [source.address])
                return Result(order.key, None, tuple(bad))
            except (BlockCorrupt, BlockMissing, NotFound) as error:
                bad.append(source.worker_id)
                last = error
            except (NoSpace, Busy) as error:
                last = error
                break
            except HearthError as error:
                last = error
            except Exception as error:  # a bug must not end the thread, nor leave the master without an answer
                log.exception("copy-bug", block=str(order.key))
                last = HearthError(f"bug in the worker: {error!r}")
        return Result(order.key, last, tuple(bad))
