"""Settings of the SDK: ``[client]`` in the settings file, ``HEARTH_CLIENT_*`` in the environment."""

from __future__ import annotations

import os
from typing import ClassVar, Literal

from pydantic import Field

from ..common.credentials import CredentialSettings
from ..common.types import DEFAULT_MASTER_PORT


class ClientSettings(CredentialSettings):
    role: ClassVar[str] = "client"

    master: str = Field(f"127.0.0.1:{DEFAULT_MASTER_PORT}", description="host:port of the master")
    node_id: str = Field("", description="this node; the local worker's when empty")
    worker_socket: str = Field("", description="unix socket of this node's worker; empty: a node without one")
    cluster_id: str = Field("", description="refuse any other cluster; empty: take what answers")
    timeout_s: float = Field(30.0, gt=0, description="of a whole call, all its retries included")
    attempt_timeout_s: float = Field(10.0, gt=0, description="of one RPC to the master; more than a session lease")
    first_retry_s: float = Field(0.05, gt=0)
    max_retry_s: float = Field(2.0, gt=0)
    threads: int = Field(0, ge=0, le=256, description="that read and write bytes; 0: one per core, at most 8")
    local_connections: int = Field(8, ge=1, le=256, description="to the local worker at one time")
    max_channels: int = Field(64, ge=1, description="gRPC channels to workers kept open")
    tokens: int = Field(65_536, ge=1, description="block tokens remembered, see docs/security.md")
    direct_reads: bool = Field(
        False, description="local blocks that are not in the page cache are read past it, into memory aligned to 4 KiB"
    )
    data_port: Literal["auto", "off"] = Field(
        "auto", description="read blocks elsewhere by the workers' data ports; off: by gRPC only"
    )
    page_entries: int = Field(2000, ge=1, le=100_000, description="directory entries asked for at one time")

    def thread_count(self) -> int:
        return self.threads or min(8, os.cpu_count() or 1)
