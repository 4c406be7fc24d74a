"""The mount's metrics. One mount per process, so they live in the process's registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

OPERATION_SECONDS = Histogram(
    "hearth_mount_operation_seconds", "Time to answer the kernel, by operation", ["operation"], buckets=_BUCKETS
)
ERRORS = Counter("hearth_mount_errors_total", "Operations that failed, by errno", ["operation", "errno"])
EXCEPTIONS = Counter("hearth_mount_exceptions_total", "Exceptions in handlers that are bugs")
EVENTS = Counter("hearth_mount_events_total", "Invalidation events from the master")
INVALIDATIONS = Counter("hearth_mount_invalidations_total", "Single invalidations in those events")
STREAMS_LOST = Counter("hearth_mount_streams_lost_total", "Watch streams that broke")
SESSIONS_STALE = Gauge("hearth_mount_sessions_stale", "Sessions that the master ended or forgot")
CACHE_HITS = Gauge("hearth_mount_cache_hits", "Attributes answered from memory")
CACHE_MISSES = Gauge("hearth_mount_cache_misses", "Attributes asked of the master")
CACHE_ENTRIES = Gauge("hearth_mount_cache_entries", "Names and attributes in memory")
BYTES_READ = Gauge("hearth_mount_read_bytes", "Bytes that went through the mount to readers")
PASSTHROUGH_OPENS = Gauge("hearth_mount_passthrough_opens", "Opens whose reads the kernel does, unseen by us")
BYTES_WRITTEN = Gauge("hearth_mount_written_bytes", "Bytes that writers handed to the mount")
OPEN_HANDLES = Gauge("hearth_mount_open_handles", "Open file handles")
INODES = Gauge("hearth_mount_inodes", "Inodes that the kernel knows or that are open")
BAD_REPLICAS = Gauge("hearth_mount_bad_replicas", "Replicas seen missing or with wrong bytes")
PUBLISHED = Gauge("hearth_mount_published", "Versions published by close, fsync or release")
LEASE_SECONDS = Gauge("hearth_mount_lease_remaining_seconds", "How long cached metadata may still be used")
