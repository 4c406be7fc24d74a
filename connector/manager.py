"""The scheduler half behind vLLM's ``OffloadingManager``. Nothing in it waits; nothing it raises reaches the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_group_idx,
)

from ..common.clock import Clock, SystemClock
from . import metrics
from .identity import chunk_key, chunk_name
from .lookups import Answer, LookupTable
from .notices import Notices
from .report import HearthWorkerReport
from .settings import ConnectorSettings
from .transfer import ChunkFiles

MAX_EVENTS = 100_000


@dataclasses.dataclass
class _Storing:
    """A chunk on its way into the store."""

    until_s: float
    ranks_left: int
    is_decode: bool


class HearthManager(OffloadingManager):  # type: ignore[misc]  # vLLM is not checked
    """Answers which chunks can be loaded, and decides which ones are stored.

    Args:
        group_ids: vLLM's numbers of the KV cache groups, in the order in which workers have them.
        ranks: how many workers store a part of each chunk.
        emit_events: whether somebody collects ``take_events``.
    """

    def __init__(
        self,
        table: LookupTable,
        group_ids: tuple[int, ...],
        ranks: int,
        settings: ConnectorSettings,
        notices: Notices,
        emit_events: bool = False,
        close_storage: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._close_storage = close_storage
        self._table = table
        self._group_of = {group_id: index for index, group_id in enumerate(group_ids)}
        self._ranks = ranks
        self._settings = settings
        self._notices = notices
        self._emit_events = emit_events
        self._clock = clock or SystemClock()
        self._storing: dict[str, _Storing] = {}
        self._prompt_tokens: dict[str, int] = {}
        self._events: list[OffloadingEvent] = []
        self._counters = metrics.Counters()
        self._counted: dict[str, int] = {}

    def note_prompt(self, request_id: str, prompt_tokens: int) -> None:
        """Tells where the request's prompt ends, so that chunks of generated tokens can be counted."""
        self._prompt_tokens[request_id] = prompt_tokens

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        try:
            answer = self._table.lookup(chunk_name(key))
        except Exception as error:
            self._notices.warn("lookup bug", "lookup failed, which counts as a miss: %r", error)
            return LookupResult.MISS
        if answer is Answer.LATER:
            return LookupResult.RETRY
        return LookupResult.HIT if answer is Answer.HIT else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._table.flush()

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> ChunkFiles:
        return self._files(keys, req_context)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        now = self._clock.monotonic_s()
        self._forget_lost(now)
        prompt_tokens = self._prompt_tokens.get(req_context.req_id)
        wanted: list[OffloadKey] = []
        replace: set[str] = set()
        for key in keys:
            name = chunk_name(key)
            if name in self._storing or self._table.is_stored(name):
                continue
            if self._table.has_failed(name):
                replace.add(name)
            end = req_context.get_offload_key_position(key)
            is_decode = prompt_tokens is not None and end is not None and end > prompt_tokens
            self._storing[name] = _Storing(now + self._patience_s(), self._ranks, is_decode)
            self._table.note_storing(name)
            wanted.append(key)
        return PrepareStoreOutput(wanted, self._files(wanted, req_context, frozenset(replace)), [])

    def take_report(self, report: HearthWorkerReport) -> None:
        """Takes in what the workers say about chunks, before vLLM acts on the same step's finished jobs."""
        for name, reason in report.failed_loads.items():
            self._table.note_failed(name)
            self._notices.warn("miss", "chunk %s counts as missing: %s", name, reason)
        self._counters.add(metrics.FAILED_LOADS, len(report.failed_loads))
        for name in report.dropped:
            if self._storing.pop(name, None) is not None:
                self._counters.add(metrics.DROPPED)
        for name, ranks in report.stored.items():
            storing = self._storing.get(name)
            if storing is None:
                continue
            storing.ranks_left -= ranks
            if storing.ranks_left <= 0:
                del self._storing[name]
                self._stored(name, storing)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._prompt_tokens.pop(req_context.req_id, None)

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    def reset_cache(self) -> None:
        """Forgets what is known. Files stay: they belong to all engines of the cluster."""
        self._table.clear()
        self._storing.clear()

    def get_stats(self) -> Any:
        for result, count in self._table.totals.items():
            self._counters.add(metrics.LOOKUPS, count - self._counted.get(result, 0), (result,))
            self._counted[result] = count
        return self._counters.take()

    def shutdown(self) -> None:
        self._table.close(self._settings.lookup_timeout_s)
        self._close_storage()

    def _files(
        self, keys: Collection[OffloadKey], req_context: ReqContext, replace: frozenset[str] = frozenset()
    ) -> ChunkFiles:
        groups = [self._group_of[get_offload_group_idx(key)] for key in keys]
        return ChunkFiles(req_context.req_id, [chunk_name(key) for key in keys], groups, replace)

    def _stored(self, name: str, storing: _Storing) -> None:
        self._table.note_stored(name)
        self._counters.add(metrics.STORED)
        self._counters.add(metrics.STORED_DECODE, int(storing.is_decode))
        if self._emit_events and len(self._events) < MAX_EVENTS:
            key = OffloadKey(chunk_key(name))
            self._events.append(OffloadingEvent([key], Medium.STORAGE, removed=False, locality=Locality.REMOTE))

    def _patience_s(self) -> float:
        """After this long without word of a store, it is taken for lost (a worker that died, a reset)."""
        return 2 * (self._settings.store_age_s + self._settings.store_timeout_s)

    def _forget_lost(self, now: float) -> None:
        while self._storing:
            oldest = next(iter(self._storing))
            if self._storing[oldest].until_s > now:
                return
            del self._storing[oldest]
