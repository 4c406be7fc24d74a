"""What workers tell the scheduler beside vLLM's own list of finished jobs: how chunks fared."""

from __future__ import annotations

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata


@dataclasses.dataclass
class HearthWorkerReport(OffloadingWorkerMetadata):  # type: ignore[misc]  # vLLM is not checked
    """Travels with a step's output; the reports of all ranks of a step are merged into one."""

    failed_loads: dict[str, str] = dataclasses.field(default_factory=dict)
    """Chunks that could not be loaded, and why."""
    stored: dict[str, int] = dataclasses.field(default_factory=dict)
    """Chunks whose file is there now, and on how many ranks."""
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    """Chunks that a rank did not store, and why."""

    @property
    def is_empty(self) -> bool:
        return not (self.completed_jobs or self.failed_loads or self.stored or self.dropped)

    def aggregate(self, other: OffloadingWorkerMetadata) -> HearthWorkerReport:
        base = super().aggregate(other)
        merged = HearthWorkerReport(
            base.completed_jobs, base.transfer_stats, dict(self.failed_loads), dict(self.stored), dict(self.dropped)
        )
        if isinstance(other, HearthWorkerReport):
            merged.failed_loads |= other.failed_loads
            merged.dropped |= other.dropped
            for name, ranks in other.stored.items():
                merged.stored[name] = merged.stored.get(name, 0) + ranks
        return merged
