"""Settings of the worker, and what their texts mean."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import pydantic

from ..common.credentials import CredentialSettings
from ..common.settings import parse_bytes
from ..common.telemetry import LogFormat

FLOOR_CAP_BYTES = 4 << 30
"""A percentage floor never asks for more than this: 5 % of a 30 TB disk would be a waste."""
SOCKET_NAME = "worker.sock"


class DiskSetting(NamedTuple):
    """One ``--disk DIR[:CAPACITY]``."""

    path: Path
    limit_bytes: int | None

    @classmethod
    def parse(cls, text: str) -> DiskSetting:
        """A colon belongs to the path unless a size follows it.

        >>> DiskSetting.parse("/data/a:10GiB").limit_bytes == 10 << 30
        True
        >>> DiskSetting.parse("/data/a:b").path.name
        'a:b'

        Raises:
            ValueError: empty path, or a capacity that is not positive.
        """
        head, colon, tail = text.rpartition(":")
        limit: int | None = None
        if colon and tail[:1].isdigit() and "/" not in tail:
            limit = parse_bytes(tail)
            if limit <= 0:
                raise ValueError(f"disk {text!r}: the capacity must be more than 0")
            text = head
        if not text:
            raise ValueError("a disk needs a directory: DIR or DIR:CAPACITY")
        return cls(Path(text).absolute(), limit)


class Floor(NamedTuple):
    """Free space that stays free: a share of the filesystem, at most ``FLOOR_CAP_BYTES``, or a number of bytes."""

    share: float
    size_bytes: int

    @classmethod
    def parse(cls, text: str) -> Floor:
        if not text.endswith("%"):
            return cls(0.0, parse_bytes(text))
        share = float(text[:-1]) / 100
        if not 0 <= share < 1:
            raise ValueError(f"free_floor {text!r}: give 0% to 99%, or a number of bytes")
        return cls(share, 0)

    def of(self, total_bytes: int) -> int:
        return min(int(total_bytes * self.share), FLOOR_CAP_BYTES) if self.share else self.size_bytes


class WorkerSettings(CredentialSettings):
    """What ``hearth worker`` can be told. Durations are seconds."""

    role: ClassVar[str] = "worker"

    master: str = "127.0.0.1:7070"
    disks: tuple[str, ...] = pydantic.Field((), validate_default=True)
    listen: str = "127.0.0.1:7071"
    advertise: str = ""
    socket: str = ""
    socket_group: str = ""
    """Whose members may connect to the socket, besides root and the worker's user: a name or a number. Empty: the
    group of the worker's process."""
    node_id: str = ""
    worker_id: str = ""
    cluster_id: str = ""
    free_floor: str = "5%"
    telemetry_listen: str = ""
    log_level: str = "info"
    log_format: LogFormat = "console"
    allow_insecure: bool = False
    start_timeout_s: float = pydantic.Field(10.0, gt=0)
    unknown_delay_s: float = pydantic.Field(60.0, ge=0)
    """So long a committed block that the master does not know is kept."""
    report_s: float = pydantic.Field(600.0, gt=0)
    """A full report at least so often: it finds what an order and a request that crossed each other left behind."""
    lease_s: float = pydantic.Field(30.0, gt=0)
    max_leases: int = pydantic.Field(4096, gt=0)
    max_connections: int = pydantic.Field(256, gt=0)
    rpc_threads: int = pydantic.Field(32, gt=0)
    data_door: Literal["auto", "off"] = "auto"
    """A plain TCP port beside ``listen`` for the bytes of blocks; off: gRPC only."""
    data_port: int = pydantic.Field(0, ge=0, le=65535)
    """0: any free one. Name one where a firewall stands between nodes."""
    data_connections: int = pydantic.Field(256, gt=0)
    fetch_timeout_s: float = pydantic.Field(120.0, gt=0)
    stream_timeout_s: float = pydantic.Field(300.0, gt=0)
    copy_threads: int = pydantic.Field(4, gt=0)
    """That make the copies which the master orders."""
    scrub_cycle_s: float = pydantic.Field(7 * 86400.0, ge=0)
    """Every block is read and checked so often; 0: never."""
    scrub_bytes_per_s: int = pydantic.Field(64 << 20, gt=0)
    scrub_pause_pressure: float = pydantic.Field(20.0, ge=0, le=100)
    """The scrubber waits while so many percent of the time somebody waits for a disk; 0: it does not wait."""
    bad_files_kept: int = pydantic.Field(8, ge=1)
    """Files that failed their check are kept per disk, to be looked at: so many, ..."""
    bad_bytes_kept: int = pydantic.Field(1 << 30, ge=0)
    """... and so much, but the last one always. They go first when a writer needs room."""

    @pydantic.field_validator("disks")
    @classmethod
    def _disks_parse(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("give at least one --disk DIR[:CAPACITY]")
        paths = [DiskSetting.parse(text).path for text in value]
        if len(set(paths)) != len(paths):
            raise ValueError("the same directory is named twice")
        return value

    @pydantic.field_validator("free_floor")
    @classmethod
    def _floor_parses(cls, value: str) -> str:
        Floor.parse(value)
        return value

    @pydantic.field_validator("master", "listen")
    @classmethod
    def _address_has_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError("write it as HOST:PORT")
        return value

    @property
    def parsed_disks(self) -> list[DiskSetting]:
        return [DiskSetting.parse(text) for text in self.disks]

    @property
    def floor(self) -> Floor:
        return Floor.parse(self.free_floor)

    @property
    def node(self) -> str:
        return self.node_id or socket.gethostname()

    @property
    def identity(self) -> str:
        return self.worker_id or self.node

    @property
    def socket_path(self) -> Path:
        return Path(self.socket).absolute() if self.socket else self.parsed_disks[0].path / SOCKET_NAME
