"""The connector's figures on vLLM's own /metrics page."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
)

LOOKUPS = "vllm:hearth_kv_lookups"
TENANT_LOOKUPS = "vllm:hearth_kv_tenant_lookups"
LOOKUP_SECONDS = "vllm:hearth_kv_lookup_seconds"
DECISIONS = "vllm:hearth_kv_load_decisions"
LOADED_TOKENS = "vllm:hearth_kv_loaded_tokens"
SAVED_SECONDS = "vllm:hearth_kv_saved_prefill_seconds"
LOAD_SECONDS = "vllm:hearth_kv_load_seconds"
FAILED_LOADS = "vllm:hearth_kv_failed_load_chunks"
STORED = "vllm:hearth_kv_stored_chunks"
STORED_DECODE = "vllm:hearth_kv_stored_decode_chunks"
DROPPED = "vllm:hearth_kv_dropped_chunks"
GONE = "vllm:hearth_kv_gone_chunks"
OPEN_LOADS = "vllm:hearth_kv_open_loads"
QUEUED_STORE_BYTES = "vllm:hearth_kv_queued_store_bytes"
PREFILL_RATE = "vllm:hearth_kv_prefill_tokens_per_second"
LOAD_LATENCY = "vllm:hearth_kv_load_latency_seconds"
LOAD_BANDWIDTH = "vllm:hearth_kv_load_bytes_per_second"
BREAK_EVEN = "vllm:hearth_kv_break_even_tokens"
SUSPENDED = "vllm:hearth_kv_suspended"

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


def definitions() -> dict[str, Any]:
    """For ``OffloadingSpec.build_metric_definitions``."""
    counter, gauge, histogram = OffloadingCounterMetadata, OffloadingGaugeMetadata, OffloadingHistogramMetadata
    return {
        LOOKUPS: counter("Chunk lookups by result; the hit ratio is present / all.", ("result",)),
        TENANT_LOOKUPS: counter("Chunk lookups of tenants with a directory of their own.", ("tenant", "result")),
        LOOKUP_SECONDS: histogram("From a request's question to its answer.", buckets=SECONDS),
        DECISIONS: counter("Requests by what was decided: load, or compute, and why.", ("decision",)),
        LOADED_TOKENS: counter("Prompt tokens whose KV was loaded instead of computed."),
        SAVED_SECONDS: counter("What computing the loaded tokens would have taken, as predicted."),
        LOAD_SECONDS: histogram("From a load's order to the request being ready.", ("outcome",), SECONDS),
        FAILED_LOADS: counter("Chunks that failed to load, by reason; their requests were computed.", ("reason",)),
        STORED: counter("Chunks that all ranks stored."),
        STORED_DECODE: counter("Stored chunks that hold generated tokens."),
        DROPPED: counter("Chunks that a rank did not store, by reason.", ("reason",)),
        GONE: counter("Chunks known to be stored that were found missing: evicted, or lost with a worker."),
        OPEN_LOADS: gauge("Loads under way, over all ranks."),
        QUEUED_STORE_BYTES: gauge("Stores that wait for their pages to be copied, over all ranks."),
        PREFILL_RATE: gauge("Learned: what a step takes longer per token, inverted."),
        LOAD_LATENCY: gauge("Learned: the part of a load's time that does not depend on its size."),
        LOAD_BANDWIDTH: gauge("Learned: what a load takes longer per byte, inverted."),
        BREAK_EVEN: gauge("Hits below this many tokens are computed."),
        SUSPENDED: gauge("1 while the store is not asked, because it did not answer.", ("what",)),
    }


def kind(reason: str) -> str:
    """The part of a reason that has few values: what stands before the first colon."""
    return reason.partition(":")[0][:40]


class Figures:
    """What happened since the last ``take``. Only the scheduler's thread uses it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, tuple[str, ...]], float] = {}
        self._gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}
        self._seen: list[tuple[str, float, tuple[str, ...]]] = []

    def add(self, name: str, count: float = 1, labels: tuple[str, ...] = ()) -> None:
        if count:
            self._counts[name, labels] = self._counts.get((name, labels), 0) + count

    def set(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self._gauges[name, labels] = value

    def observe(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self._seen.append((name, value, labels))

    def take(self) -> OffloadingConnectorStats | None:
        """Counts and observations since the last call, and gauges that have changed; None if there is nothing."""
        changed = {key: value for key, value in self._gauges.items() if self._told.get(key) != value}
        if not (self._counts or changed or self._seen):
            return None
        stats = OffloadingConnectorStats()
        for (name, labels), count in self._counts.items():
            stats.increase_counter(name, count, labels)
        for (name, labels), value in changed.items():
            stats.set_gauge(name, value, labels)
        for name, value, labels in self._seen:
            stats.observe_histogram(name, value, labels)
        self._told |= changed
        self._counts, self._seen = {}, []
        return stats
