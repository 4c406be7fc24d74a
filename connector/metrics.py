"""The connector's figures on vLLM's own /metrics page."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata

LOOKUPS = "vllm:hearth_kv_lookups"
STORED = "vllm:hearth_kv_stored_chunks"
STORED_DECODE = "vllm:hearth_kv_stored_decode_chunks"
DROPPED = "vllm:hearth_kv_dropped_chunks"
FAILED_LOADS = "vllm:hearth_kv_failed_load_chunks"


def definitions() -> dict[str, Any]:
    """For ``OffloadingSpec.build_metric_definitions``."""
    return {
        LOOKUPS: OffloadingCounterMetadata("Chunk lookups by result; the hit ratio is present / all.", ("result",)),
        STORED: OffloadingCounterMetadata("Chunks that all ranks stored."),
        STORED_DECODE: OffloadingCounterMetadata("Stored chunks that hold generated tokens."),
        DROPPED: OffloadingCounterMetadata("Chunks that a rank did not store: slow or unreachable store, no memory."),
        FAILED_LOADS: OffloadingCounterMetadata("Chunks that failed to load; their requests were computed."),
    }


class Counters:
    """Counts since the last ``take``. Only the scheduler's thread uses it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}

    def add(self, name: str, count: int = 1, labels: tuple[str, ...] = ()) -> None:
        if count:
            self._counts[name, labels] = self._counts.get((name, labels), 0) + count

    def take(self) -> OffloadingConnectorStats | None:
        if not self._counts:
            return None
        stats = OffloadingConnectorStats()
        for (name, labels), count in self._counts.items():
            stats.increase_counter(name, count, labels)
        self._counts = {}
        return stats
