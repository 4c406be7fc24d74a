"""The scheduler half behind vLLM's ``OffloadingManager``. Nothing in it waits; nothing it raises reaches the engine."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
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
    get_offload_group_idx,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..common.clock import Clock, SystemClock
from . import metrics
from .breakeven import BreakEven, Verdict
from .identity import chunk_key, chunk_name, tenant_directory
from .lookups import NOTHING, LookupTable
from .notices import Notices
from .report import HearthWorkerReport
from .settings import ConnectorSettings
from .transfer import IDLE_STEP_S, ChunkFiles

MAX_EVENTS = 100_000
MAX_OPEN_STEPS = 16
_HIT, _MISS = LookupResult.HIT, LookupResult.MISS


@dataclasses.dataclass
class _Storing:
    """A chunk on its way into the store."""

    until_s: float
    ranks_left: int
    is_decode: bool


class HearthManager(OffloadingManager):  # type: ignore[misc]  # vLLM is not checked
    """Answers which chunks can be loaded, decides which hits are loaded and which chunks are stored.

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
        break_even: BreakEven,
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
        self._break_even = break_even
        self._hits: Collection[bytes] = NOTHING
        self._computed: set[str] = set()
        """Requests that were told to compute."""
        self._load_began_s: dict[str, float] = {}
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=MAX_OPEN_STEPS)
        self._step_ended_s = 0.0
        self._storing: dict[str, _Storing] = {}
        self._prompt_tokens: dict[str, int] = {}
        self._tenants: dict[str, str] = {}
        """Directories of the requests whose salt has one."""
        self._events: list[OffloadingEvent] = []
        self._figures = metrics.Figures()
        self._counted: dict[str, int] = {}

    # Which hits there are, and whether they are loaded

    def note_request(self, request_id: str, prompt_tokens: int, cache_salt: str | None = None) -> None:
        """Tells where the request's prompt ends, so that chunks of generated tokens can be counted, and whose it is."""
        self._prompt_tokens[request_id] = prompt_tokens
        if self._settings.tenants and cache_salt:
            self._tenants[request_id] = tenant_directory(cache_salt)

    def is_asking(self, request_id: str) -> bool:
        """Whether ``find`` would answer no, at once: a request that waits is asked about in every step."""
        return self._table.is_open(request_id)

    def find(self, request_id: str, tokens: int, keys: Callable[[], Sequence[bytes]]) -> bool:
        """Prepares ``lookup`` for a request; False: the store has not answered yet, ask again.

        Args:
            tokens: the most that could be loaded.
        """
        self._hits = NOTHING
        if request_id in self._computed:
            return True
        verdict = self._break_even.judge(tokens, before_lookup=True)
        if not verdict.loads:
            self._compute(request_id, verdict)
            return True
        try:
            hits = self._table.ask(request_id, keys, self._tenants.get(request_id, ""))
        except Exception as error:
            self._notices.warn("lookup bug", "a lookup failed, which counts as a miss: %r", error)
            return True
        if hits is None:
            return False
        self._hits = hits
        return True

    def admit(self, request_id: str, tokens: int) -> bool:
        """Whether a hit of ``tokens`` is to be loaded; if not, ``lookup`` has only misses from now on."""
        verdict = self._break_even.judge(tokens)
        if not verdict.loads:
            self._compute(request_id, verdict)
            self._hits = NOTHING
        else:
            self._say(request_id, verdict)
        return verdict.loads

    def answered(self, request_id: str) -> None:
        """vLLM has its answer; the next question about the request is a new one."""
        self._table.forget(request_id)
        self._hits = NOTHING

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return _HIT if key in self._hits else _MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return CacheHitSource.DISK

    def begin_load(self, request_id: str, tokens: int) -> None:
        """The request's hit is about to be loaded: ``prepare_load`` follows."""
        self._break_even.load_began(request_id, tokens)
        self._load_began_s[request_id] = self._clock.monotonic_s()

    def end_load(self, request_id: str, failed: bool, late: bool) -> None:
        tokens = self._break_even.load_ended(request_id, tells_speed=late or not failed)
        begun_s = self._load_began_s.pop(request_id, None)
        if begun_s is None:
            return
        outcome = "late" if late else "failed" if failed else "loaded"
        self._figures.observe(metrics.LOAD_SECONDS, self._clock.monotonic_s() - begun_s, (outcome,))
        if not failed:
            self._figures.add(metrics.LOADED_TOKENS, tokens)
            self._figures.add(metrics.SAVED_SECONDS, self._break_even.prefill_s(tokens))

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> ChunkFiles:
        files = self._files(keys, req_context)
        files.timeout_s = self._patience_for(self._break_even.load_tokens(req_context.req_id))
        return files

    # What steps take

    def begin_step(self, tokens: int) -> None:
        self._steps.append((self._clock.monotonic_s(), tokens))

    def linger(self) -> None:
        """For steps in which nothing is computed: asking again and again would take the processor from the answer."""
        self._table.linger(IDLE_STEP_S)

    def end_step(self) -> None:
        """Of the oldest step that has begun: the engine may be one ahead."""
        now = self._clock.monotonic_s()
        if self._steps:
            begun_s, tokens = self._steps.popleft()
            self._break_even.computed(tokens, now - max(begun_s, self._step_ended_s))
        self._step_ended_s = now

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        now = self._clock.monotonic_s()
        self._forget_lost(now)
        prompt_tokens = self._prompt_tokens.get(req_context.req_id)
        wanted: list[OffloadKey] = []
        depths: list[int] = []
        replace: set[str] = set()
        tenant = self._tenants.get(req_context.req_id, "")
        for key in keys:
            name = chunk_name(key, tenant)
            if name in self._storing or self._table.is_stored(name):
                continue
            if self._table.has_failed(name):
                replace.add(name)
            end = req_context.get_offload_key_position(key)
            is_decode = prompt_tokens is not None and end is not None and end > prompt_tokens
            self._storing[name] = _Storing(now + self._patience_s(), self._ranks, is_decode)
            wanted.append(key)
            depths.append(end or 0)
        files = self._files(wanted, req_context, frozenset(replace))
        return PrepareStoreOutput(wanted, dataclasses.replace(files, depths=tuple(depths)), [])

    def take_report(self, report: HearthWorkerReport) -> None:
        """Takes in what the workers say about chunks, before vLLM acts on the same step's finished jobs."""
        self._figures.set(metrics.OPEN_LOADS, report.open_loads)
        self._figures.set(metrics.QUEUED_STORE_BYTES, report.queued_store_bytes)
        if report.trouble:
            self._table.breaker.failed(report.trouble)
        for name, reason in report.failed_loads.items():
            self._table.note_failed(name)
            self._notices.warn("miss", "chunk %s counts as missing: %s", name, reason)
            self._figures.add(metrics.FAILED_LOADS, 1, (metrics.kind(reason),))
        for name, reason in report.dropped.items():
            if self._storing.pop(name, None) is not None:
                self._figures.add(metrics.DROPPED, 1, (metrics.kind(reason),))
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
        self._tenants.pop(req_context.req_id, None)
        self._computed.discard(req_context.req_id)
        self._table.forget(req_context.req_id)
        self.end_load(req_context.req_id, failed=True, late=False)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What was stored on all ranks, and what of it is gone, since the last call."""
        gone = [OffloadKey(chunk_key(name)) for name in self._table.take_gone()]
        if gone:
            self._events.append(OffloadingEvent(gone, Medium.STORAGE, removed=True, locality=Locality.REMOTE))
        events, self._events = self._events, []
        return events

    def reset_cache(self) -> None:
        """Forgets what is known. Files stay: they belong to all engines of the cluster."""
        self._table.clear()
        self._storing.clear()

    def get_stats(self) -> Any:
        for result, count in list(self._table.totals.items()):
            self._figures.add(metrics.LOOKUPS, count - self._counted.get(result, 0), (result,))
            self._counted[result] = count
        gone = self._table.gone_total
        self._figures.add(metrics.GONE, gone - self._counted.get(metrics.GONE, 0))
        self._counted[metrics.GONE] = gone
        for tenant, (hits, asked) in list(self._table.tenants.items()):
            for result, count in (("hit", hits), ("miss", asked - hits)):
                label = f"{tenant} {result}"
                self._figures.add(metrics.TENANT_LOOKUPS, count - self._counted.get(label, 0), (tenant, result))
                self._counted[label] = count
        for waited_s in self._table.take_waits():
            self._figures.observe(metrics.LOOKUP_SECONDS, waited_s)
            self._break_even.looked_up(waited_s)
        rates = self._break_even.rates()
        self._figures.set(metrics.PREFILL_RATE, rates.prefill_tokens_per_s)
        self._figures.set(metrics.LOAD_LATENCY, rates.load_latency_s)
        self._figures.set(metrics.LOAD_BANDWIDTH, rates.load_bytes_per_s)
        self._figures.set(metrics.BREAK_EVEN, rates.break_even_tokens)
        self._figures.set(metrics.SUSPENDED, float(self._table.breaker.is_resting), ("lookups",))
        return self._figures.take()

    def shutdown(self) -> None:
        self._table.close(self._settings.lookup_timeout_s)
        self._close_storage()

    def _files(
        self, keys: Collection[OffloadKey], req_context: ReqContext, replace: frozenset[str] = frozenset()
    ) -> ChunkFiles:
        groups = [self._group_of[get_offload_group_idx(key)] for key in keys]
        tenant = self._tenants.get(req_context.req_id, "")
        return ChunkFiles(req_context.req_id, [chunk_name(key, tenant) for key in keys], groups, replace)

    def _stored(self, name: str, storing: _Storing) -> None:
        self._table.note_stored(name)
        self._figures.add(metrics.STORED)
        self._figures.add(metrics.STORED_DECODE, int(storing.is_decode))
        if self._emit_events and len(self._events) < MAX_EVENTS:
            key = OffloadKey(chunk_key(name))
            self._events.append(OffloadingEvent([key], Medium.STORAGE, removed=False, locality=Locality.REMOTE))

    def _compute(self, request_id: str, verdict: Verdict) -> None:
        self._computed.add(request_id)
        self._say(request_id, verdict)

    def _say(self, request_id: str, verdict: Verdict) -> None:
        self._figures.add(metrics.DECISIONS, 1, (verdict.decision.value,))
        rates = self._break_even.rates()
        self._notices.debug(
            "request %s, %d tokens: %s; computing %.1f ms (%.0f tokens/s), loading %.1f ms (%.1f ms + %.0f MB/s)",
            request_id, verdict.tokens, verdict.decision.value, 1e3 * verdict.prefill_s, rates.prefill_tokens_per_s,
            1e3 * verdict.load_s, 1e3 * rates.load_latency_s, rates.load_bytes_per_s / 1e6,
        )  # fmt: skip

    def _patience_for(self, tokens: int) -> float:
        """How long a load of ``tokens`` may take: a multiple of what computing them takes."""
        settings = self._settings
        prefill_s = self._break_even.prefill_s(tokens)
        if not prefill_s:
            return settings.load_timeout_s
        return min(settings.load_timeout_s, max(settings.load_timeout_min_s, settings.load_patience * prefill_s))

    def _patience_s(self) -> float:
        """After this long without word of a store, it is taken for lost (a worker that died, a reset)."""
        return 2 * (self._settings.store_age_s + self._settings.store_timeout_s)

    def _forget_lost(self, now: float) -> None:
        while self._storing:
            oldest = next(iter(self._storing))
            if self._storing[oldest].until_s > now:
                return
            del self._storing[oldest]
