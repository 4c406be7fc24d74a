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
    late: set[str] = dataclasses.field(default_factory=set)
    """Requests whose load ran out of time."""
    trouble: str = ""
    """Why a rank sends no loads to the store now; empty: it does."""
    queued_store_bytes: int = 0
    open_loads: int = 0
    """How much waits, over all ranks; goes along with whatever else there is to say."""

    @property
    def is_empty(self) -> bool:
        return not (self.completed_jobs or self.failed_loads or self.stored or self.dropped or self.trouble)

    def aggregate(self, other: OffloadingWorkerMetadata) -> HearthWorkerReport:
        base = super().aggregate(other)
        merged = HearthWorkerReport(
            base.completed_jobs,
            base.transfer_stats,
            dict(self.failed_loads),
            dict(self.stored),
            dict(self.dropped),
            set(self.late),
            self.trouble,
            self.queued_store_bytes,
            self.open_loads,
        )
        if isinstance(other, HearthWorkerReport):
            merged.late |= other.late
            merged.trouble = merged.trouble or other.trouble
            merged.queued_store_bytes += other.queued_store_bytes
            merged.open_loads += other.open_loads
            merged.failed_loads |= other.failed_loads
            merged.dropped |= other.dropped
            for name, ranks in other.stored.items():
                merged.stored[name] = merged.stored.get(name, 0) + ranks
        return merged
