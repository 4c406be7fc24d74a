"""What the master counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

RPCS = Counter("hearth_master_rpcs_total", "Calls answered.", ["method", "result"])
REFUSED = Counter("hearth_master_calls_refused_total", "Calls without (enough) rights.", ["error"])
RPC_SECONDS = Histogram("hearth_master_rpc_seconds", "Time to answer a call.", ["method"], buckets=_SECONDS)
COMMITS = Counter("hearth_master_commits_total", "Transactions made durable.")
COMMANDS_PER_COMMIT = Histogram("hearth_master_commands_per_commit", "Group commit.", buckets=_COUNTS)
COMMIT_SECONDS = Histogram("hearth_master_commit_seconds", "Applying a group and syncing it.", buckets=_SECONDS)
QUEUED = Gauge("hearth_master_queued_commands", "Mutations that wait for a commit.")
REPLAYED = Counter("hearth_master_replayed_requests_total", "Mutations answered from their stored result.")
LOOKUPS = Counter("hearth_master_lookup_many_names_total", "Names asked for in batches.", ["result"])
SESSIONS = Gauge("hearth_master_sessions", "Sessions that are open.")
GRANTS = Gauge("hearth_master_grants", "Cache grants that sessions hold.")
FENCED = Counter("hearth_master_fenced_sessions_total", "Sessions ended because they did not acknowledge.")
INVALIDATION_SECONDS = Histogram(
    "hearth_master_invalidation_wait_seconds", "Time that mutations waited for caches elsewhere.", buckets=_SECONDS
)
WORKERS = Gauge("hearth_master_workers", "Workers by state.", ["state"])
UNAVAILABLE = Gauge("hearth_master_unavailable_files", "Files without a live replica.")
DEGRADED = Gauge("hearth_master_degraded_files", "Files found with fewer replicas than asked for.")
REPAIRING = Gauge("hearth_master_repairing_files", "Files of which a replica is on its way.")
REPAIRS = Counter("hearth_master_copies_total", "Orders to copy a block, by what the worker said.", ["result"])
DROPPED = Counter("hearth_master_dropped_replicas_total", "Replicas taken off workers that are drained or too full.")
SCAN_SECONDS = Gauge("hearth_master_scan_seconds", "How long the last look at all blocks took.")
UNREPLICATED_CLOSES = Counter(
    "hearth_master_unreplicated_closes_total",
    "Closes (before_close) that waited for replicas in vain.",
)
EVICTED_FILES = Counter(
    "hearth_master_evicted_files_total",
    "Files removed for room (worker, cluster, quota), for age (ttl), or as somebody asked (asked).",
    ["reason"],
)
EVICTED_BYTES = Counter("hearth_master_evicted_bytes_total", "Bytes of those files, one replica of each.", ["reason"])
CAPACITY_USED = Gauge("hearth_master_used_bytes", "Bytes in use on live workers, without what is being deleted.")
CAPACITY_LIMIT = Gauge("hearth_master_evict_above_bytes", "Eviction begins when the cluster uses more than this.")
WORKER_USED = Gauge("hearth_master_worker_used_share", "How full a live worker is, 0 to 1.", ["worker"])
JOURNAL = Gauge(
    "hearth_master_journal_records", "Numbers of the oldest and the newest journal record that is kept.", ["which"]
)
READERS_CLEARED = Counter("hearth_master_dead_readers_total", "Reader slots freed.")
UPKEEP_FAILURES = Counter("hearth_master_upkeep_failures_total", "Rounds of upkeep that failed.", ["task"])
