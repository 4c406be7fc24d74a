"""Whom a disk belongs to: the file ``hearth-disk.json``, and what stands against using a directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from ..common.errors import Conflict, NewerFormat, SettingsError, WrongCluster
from .os_calls import OsCalls

SCHEMA = 1
FILE = "hearth-disk.json"


class Identity(msgspec.Struct, frozen=True):
    worker_id: str
    cluster_id: str
    schema: int = SCHEMA


def read(directory: Path) -> Identity | None:
    """None: a fresh directory.

    Raises:
        SettingsError: damaged, or lost while blocks are there.
        NewerFormat.
    """
    file = directory / FILE
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        if (directory / "blocks").exists():
            raise SettingsError(
                f"disk {directory} has blocks but no {FILE}: put that file back, or empty the directory"
            ) from None
        return None
    try:
        schema = int(json.loads(text)["schema"])
    except (ValueError, KeyError, TypeError):
        raise SettingsError(f"{file} is damaged: put a good one back, or empty the directory") from None
    if schema > SCHEMA:
        raise NewerFormat(f"disk {directory} has schema {schema}, this version reads up to {SCHEMA}: upgrade first")
    try:
        return msgspec.json.decode(text, type=Identity)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{file} is damaged ({error}): put a good one back, or empty the directory") from None


def check(directory: Path, found: Identity, worker_id: str, cluster_id: str) -> None:
    """Whether a worker with these ids may use the disk; an empty cluster id fits any.

    Raises:
        Conflict, WrongCluster.
    """
    if found.worker_id != worker_id:
        raise Conflict(
            f"disk {directory} belongs to worker {found.worker_id!r}, not {worker_id!r}: "
            "start it with that worker id, or empty the directory"
        )
    if cluster_id and found.cluster_id and found.cluster_id != cluster_id:
        raise WrongCluster(
            f"disk {directory} belongs to cluster {found.cluster_id}, not {cluster_id}: name the right master, "
            "or empty the directory"
        )


def write(calls: OsCalls, directory_fd: int, identity: Identity) -> None:
    """Durable and whole, or not at all."""
    temporary = FILE + ".new"
    fd = calls.open("write-identity", temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=directory_fd)
    try:
        calls.pwrite("write-identity", fd, msgspec.json.format(msgspec.json.encode(identity)) + b"\n", 0)
        calls.fsync("write-identity", fd)
    finally:
        os.close(fd)
    calls.rename("write-identity", temporary, directory_fd, FILE, directory_fd)
    calls.fsync("write-identity", directory_fd)
