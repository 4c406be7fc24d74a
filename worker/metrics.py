"""What the worker counts, in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from .block_store import BlockStore
from .leases import Leases


class Metrics:
    """Counters that the parts of one worker add to. ``door`` is "socket", "grpc" or "data"."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.read_bytes = self._counter("read_bytes", "Payload bytes sent to readers.", "door")
        self.written_bytes = self._counter("written_bytes", "Payload bytes taken from writers.", "door")
        self.requests = self._counter("requests", "Control requests by operation.", "door", "op")
        self.refused = self._counter("calls_refused", "Calls by gRPC without (enough) rights.", "error")
        self.errors = self._counter("errors", "Blocks of control requests that failed, by errno.", "errno")
        self.fetched_bytes = self._counter("fetched_bytes", "Bytes brought here from other workers.")
        self.heartbeat_failures = self._counter("heartbeat_failures", "Calls to the master that failed.")
        self.copies = self._counter("copies", "Orders of the master to copy a block here, by how they ended.", "result")
        self.scrubbed_bytes = self._counter("scrubbed_bytes", "Bytes that the scrubber has read.")
        self.scrubbed_blocks = self._counter("scrubbed_blocks", "Blocks that the scrubber has read.")
        self.scrub_bad = self._counter("scrub_bad_blocks", "Blocks that the scrubber found damaged.")
        self.scrub_pauses = self._counter("scrub_pauses", "Seconds that the scrubber waited for quieter disks.")
        self.scrub_cycle_seconds = Gauge(
            "hearth_worker_scrub_cycle_seconds",
            "How long the last whole cycle of a disk took.",
            ["disk"],
            registry=self.registry,
        )
        self.deletes = self._counter("deletes", "Blocks deleted by order of the master.")
        self.commit_seconds = Histogram(
            "hearth_worker_commit_seconds",
            "Time of a commit request.",
            registry=self.registry,
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1, 5),
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hearth_worker_{name}", text, labels, registry=self.registry)

    def watch(self, store: BlockStore, leases: Leases) -> None:
        self.registry.register(_State(store, leases))


class _State:
    """Gauges that are read when somebody looks."""

    def __init__(self, store: BlockStore, leases: Leases) -> None:
        self._store = store
        self._leases = leases

    def collect(self) -> Iterable[Metric]:
        yield _gauge("blocks", "Committed blocks.", self._store.catalog.blocks)
        yield _gauge("working_blocks", "Blocks that are being written.", self._store.working_blocks)
        yield _gauge("bad_blocks", "Blocks found missing or damaged since the start.", self._store.catalog.bad_blocks)
        yield _gauge("leases", "Leases of clients on other nodes.", len(self._leases))
        families = {
            name: GaugeMetricFamily(f"hearth_worker_disk_{name}", text, labels=["disk"])
            for name, text in (
                ("capacity_bytes", "The lower of setting and filesystem."),
                ("used_bytes", "Real bytes of block files."),
                ("available_bytes", "What a writer can still get."),
                ("failed", "1: the disk answered EIO."),
                ("bad_files", "Files that failed their check, kept to be looked at."),
            )
        }
        for disk in self._store.disks:
            space = self._store.catalog.space_of(disk)
            label = [str(disk.path)]
            families["capacity_bytes"].add_metric(label, space.capacity_bytes)
            families["used_bytes"].add_metric(label, space.used_bytes)
            families["available_bytes"].add_metric(label, max(0, space.available_bytes))
            families["failed"].add_metric(label, float(disk.failed))
            families["bad_files"].add_metric(label, disk.bad_files)
        yield from families.values()


def _gauge(name: str, text: str, value: Any) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hearth_worker_{name}", text, value=value)
