"""Gathers what ``hearth doctor`` judges: looks at this machine and asks the cluster, changes nothing that stays."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from ..common.errors import HearthError
from ..common.version import VERSION
from . import endpoint
from .diagnosis import ClockFacts, DiskFacts, FuseFacts, PortFacts, VersionFacts
from .mountpoint import FUSE_CONTROL, mounts

STA_UNSYNC = 0x40
TIMEX_BYTES = 208
STATUS_OFFSET = 40  # of `status` in struct timex on 64-bit Linux
CONNECT_S = 3.0
PACKAGES = ("lmdb", "msgspec", "uvloop", "pyfuse3", "trio")


def fuse() -> FuseFacts:
    device = Path("/dev/fuse")
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        opens = True
    except OSError:
        opens = False
    try:
        conf = Path("/etc/fuse.conf").read_text(errors="replace")
    except OSError:
        conf = ""
    control = any(mount.mountpoint == str(FUSE_CONTROL) for mount in mounts())
    return FuseFacts(device.exists(), opens, os.geteuid() == 0, shutil.which("fusermount3") or "", conf, control)


def disk(path: str) -> DiskFacts:
    """Tries to write: a nameless file that is gone at once."""
    place = os.path.realpath(path)
    if not Path(place).is_dir():
        return DiskFacts(path, exists=False)
    below = [
        mount for mount in mounts() if place == mount.mountpoint or place.startswith(mount.mountpoint.rstrip("/") + "/")
    ]
    kind = max(below, key=lambda mount: len(mount.mountpoint)).kind if below else ""
    space = os.statvfs(place)
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    try:
        with tempfile.TemporaryFile(dir=place):
            writable = True
    except OSError:
        writable = False
    return DiskFacts(path, True, writable, kind, total, free, writable and _direct_io(place))


def _direct_io(directory: str) -> bool:
    name = Path(directory) / f".hearth-doctor-{os.getpid()}"
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError:
        name.unlink(missing_ok=True)  # some filesystems make the file and then refuse the flag
        return False
    name.unlink()
    os.close(fd)
    return True


def port(what: str, address: str) -> PortFacts:
    """Connects, and asks whoever answers the question that a HearthFS daemon of this kind knows."""
    host, _, number = address.rpartition(":")
    local = host.strip("[]") in ("127.0.0.1", "localhost", "::1")
    try:
        socket.create_connection((host.strip("[]"), int(number)), CONNECT_S).close()
    except OSError as error:
        return PortFacts(what, address, local and error.errno == errno.ECONNREFUSED, False, False, error.strerror or "")
    ask = endpoint.status if what == "master" else endpoint.worker_version
    try:
        ask(address, CONNECT_S)
    except HearthError as error:
        return PortFacts(what, address, local, listening=True, hearth=False, error=str(error))
    return PortFacts(what, address, local, listening=True, hearth=True)


def clock() -> ClockFacts:
    """adjtimex(2) with no modes: reads the kernel's view of the clock."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    if ctypes.CDLL(None).adjtimex(buffer) < 0:
        return ClockFacts(None)
    status = int.from_bytes(buffer.raw[STATUS_OFFSET : STATUS_OFFSET + 4], sys.byteorder)
    return ClockFacts(not status & STA_UNSYNC)


def versions(master: str) -> VersionFacts:
    packages = {}
    for package in PACKAGES:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            packages[package] = ""
    return VersionFacts(sys.version_info[:2], VERSION, _cluster_versions(master), packages)


def _cluster_versions(master: str) -> dict[str, str]:
    try:
        status = endpoint.status(master, CONNECT_S)
    except HearthError:
        return {}  # the port's line says so
    found = {"the master": status.version}
    for worker in status.workers:
        try:
            found[worker.worker.worker_id] = endpoint.worker_version(worker.worker.address, CONNECT_S)
        except HearthError:
            continue  # status shows its state
    return found
