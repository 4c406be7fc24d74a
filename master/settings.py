"""What an operator may choose for a master."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pydantic

from ..common.credentials import CredentialSettings
from ..common.telemetry import LogFormat


class MasterSettings(CredentialSettings):
    """Settings of ``hearth master``: flags, ``HEARTH_MASTER_*``, table ``[master]``."""

    role: ClassVar[str] = "master"

    data: Path
    """Directory of the metadata; made when its parent exists."""
    listen: str = "127.0.0.1:7070"
    allow_insecure: bool = False
    """Serve on an address other than loopback without certificates: whoever can listen on the network reads all."""
    telemetry_listen: str = ""
    """``host:port`` of /metrics and /healthz; empty: off."""
    cluster_id: str = ""
    """Empty: that of the data, or a new one for an empty directory. Data of another cluster is refused."""

    block_token_s: float = pydantic.Field(600.0, gt=0, le=3600)
    """How long a block may be read or written by the token in a layout, see docs/security.md."""

    session_lease_s: float = 5.0
    session_idle_s: float = 300.0
    """A session without grants ends after so long without a call."""
    client_memory_s: float = 3600.0
    """Results of a client that has no session are kept so long for its retries."""
    working_grace_s: float = 60.0
    """Working blocks of a client that has no session are kept so long: it may only be registering again."""
    worker_suspect_s: float = 5.0
    worker_lost_s: float = 25.0
    heartbeat_s: float = 1.0

    repair_scan_s: float = 300.0
    """All blocks are looked at so often; what happens in between is noticed at once."""
    repair_copies: int = 64
    """Copies under way to one worker at one time, ..."""
    repair_window_bytes: int = 256 << 20
    """... and their bytes together: about what is sent between two heartbeats."""
    repair_blocks_max: int = 100_000
    """Blocks that wait for repair; more are found again by later scans."""
    replicate_wait_s: float = 4.0
    """Where a directory says before_close, a close waits at most so long for the replicas."""

    evict_above: float = 0.95
    """A worker, or a quota of a cache directory, that is fuller than this share evicts cached files ..."""
    evict_to: float = 0.90
    """... until it is no fuller than this."""
    evict_cluster_above: float = 0.95
    """The same for all live workers together: each then goes down to ``evict_cluster_to``."""
    evict_cluster_to: float = 0.90
    evict_held_blocks: int = 500_000
    """So many blocks eviction keeps in memory, about 150 bytes each; of others it knows what the tables say."""
    make_room_s: float = 3.0
    """A writer for whose block there is no room waits so long for eviction to make it."""
    lookup_lease_s: float = 5.0
    """What was looked up to be read, or opened, is not evicted for at least so long."""

    journal_retention_records: int = 1_000_000
    map_size_bytes: int = 1 << 40
    reserve_bytes: int = 64 << 20
    """Growing operations get ENOSPC when the map or the disk has less than this left, so that deletes still work."""
    queue_commands: int = 10_000
    """Mutations that may wait for a commit; more are answered BUSY."""
    stop_grace_s: float = 5.0

    log_level: str = "info"
    log_format: LogFormat = "console"
