"""Settings of a mount: ``[mount]`` in the settings file, ``HEARTH_MOUNT_*`` in the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ..common.credentials import CredentialSettings
from ..common.errors import SettingsError
from ..common.telemetry import LogFormat
from ..common.types import DEFAULT_MASTER_PORT


class MountSettings(CredentialSettings):
    role: ClassVar[str] = "mount"

    mountpoint: Path = Field(description="an existing, empty directory")
    master: str = Field(f"127.0.0.1:{DEFAULT_MASTER_PORT}", description="host:port of the master")
    worker_socket: str = Field("", description="unix socket of this node's worker; empty: a node without one")
    node_id: str = Field("", description="this node; the local worker's when empty, else the host name")
    cluster_id: str = Field("", description="refuse any other cluster; empty: take what answers")
    allow_other: bool = Field(
        default_factory=lambda: os.geteuid() == 0,
        description="let other users in; not as root it needs user_allow_other in /etc/fuse.conf",
    )
    read_only: bool = Field(False, description="mount read-only")
    timeout_s: float = Field(15.0, gt=0, description="a call that gets no answer for so long fails with EIO")
    attempt_timeout_s: float = Field(8.0, gt=0, description="of one RPC to the master; more than a session lease")
    data_timeout_s: float = Field(60.0, gt=0, description="of one transfer of block bytes")
    fetch_limit_bytes: int = Field(
        256 << 20, ge=0, description="a block on another node up to this size is brought to this node's worker at open"
    )
    cache_entries: int = Field(200_000, ge=100, description="names and attributes kept in memory")
    warm_files: int = Field(256, ge=1, description="blocks of closed files that are kept open for the next open")
    spare_blocks: int = Field(4, ge=0, description="working blocks kept ready for the next new file")
    max_background: int = Field(64, ge=1, le=1024, description="requests in flight in the kernel")
    read_ahead_kb: int = Field(1024, ge=0, description="of the kernel, per file; needs root")
    relay: Literal["auto", "off"] = Field(
        "auto", description="a small process between kernel and daemon, for passthrough; auto: where it can be had"
    )
    passthrough: Literal["auto", "off"] = Field(
        "auto", description="behind a relay: the kernel reads block files of this node itself (Linux 6.9, root)"
    )
    temporary_directory: str = Field("", description="holds unsent writes on a node without a worker; empty: TMPDIR")
    telemetry_listen: str = Field("", description="host:port of /metrics and /healthz; empty: off")
    log_level: str = "info"
    log_format: LogFormat = "console"


# Options that belong to mount(8) and the kernel, not to us: accepted and dropped.
_IGNORED = {"rw", "dev", "suid", "exec", "auto", "noauto", "user", "nouser", "users", "nofail", "_netdev", "defaults",
            "nodev", "nosuid", "noexec", "relatime", "noatime", "async"}  # fmt: skip
_PREFIXES = ("x-", "comment=")


def parse_fstab_options(master: str, mountpoint: str, options: str) -> dict[str, object]:
    """Flags for ``MountSettings.load`` from what ``mount -t fuse.hearthfs MASTER MOUNTPOINT -o OPTIONS`` passes on.

    mount(8) runs ``/sbin/mount.fuse3 MASTER MOUNTPOINT -t hearthfs -o OPTIONS``, which runs ``hearthfs MASTER
    MOUNTPOINT -o OPTIONS``; a program ``/sbin/mount.fuse.hearthfs`` is preferred where it exists. Options are the
    settings' names, ``-`` and ``_`` being the same, beside those of mount(8).

    >>> parse_fstab_options("10.0.0.1:7070", "/mnt/kv", "rw,_netdev,node-id=n1,allow_other,ro")
    {'master': '10.0.0.1:7070', 'mountpoint': '/mnt/kv', 'node_id': 'n1', 'allow_other': True, 'read_only': True}

    Raises:
        SettingsError: an option that nobody knows.
    """
    flags: dict[str, object] = {"master": master, "mountpoint": mountpoint}
    for option in filter(None, options.split(",")):
        if option in _IGNORED or option.startswith(_PREFIXES):
            continue
        if option == "ro":
            flags["read_only"] = True
            continue
        key, separator, value = option.partition("=")
        key = key.replace("-", "_")
        if key not in MountSettings.model_fields:
            known = ", ".join(sorted(MountSettings.model_fields))
            raise SettingsError(f"mount option {option!r} is unknown; known: {known}")
        flags[key] = value if separator else True
    return flags
