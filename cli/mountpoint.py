"""Mount points of HearthFS on this machine, as the kernel lists them. Nothing here touches a mounted filesystem's own
files, so that a dead mount cannot hang it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from ..common.errors import Busy, HearthError, InvalidArgument, NotPermitted

KIND = "fuse.hearthfs"
MOUNTINFO = Path("/proc/self/mountinfo")
FUSE_CONTROL = Path("/sys/fs/fuse/connections")
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
PROBE_S = 3.0


class Mount(NamedTuple):
    """One line of mountinfo."""

    mountpoint: str
    source: str
    kind: str
    connection: int  # its name below /sys/fs/fuse/connections


def parse(mountinfo: str) -> list[Mount]:
    """All mounts, the topmost of one place last.

    >>> parse("36 35 0:48 / /mnt/kv\\\\040cache rw - fuse.hearthfs 127.0.0.1:7070 rw")
    [Mount(mountpoint='/mnt/kv cache', source='127.0.0.1:7070', kind='fuse.hearthfs', connection=48)]
    """
    mounts = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        separator = fields.index("-", 6)
        kind, source = fields[separator + 1 : separator + 3]
        minor = int(fields[2].partition(":")[2])
        mounts.append(Mount(_unescape(fields[4]), _unescape(source), kind, minor))
    return mounts


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def mounts() -> list[Mount]:
    return parse(MOUNTINFO.read_text(errors="surrogateescape"))


def at(mountpoint: str) -> Mount | None:
    """The topmost mount at exactly this place, of whatever kind."""
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == mountpoint), None)


def namespace_path(path: str, listed: list[Mount]) -> str:
    """What the cluster calls a path given on the command line: one below a mount here loses the mount point.

    >>> namespace_path("/mnt/kv/a/b", [Mount("/mnt/kv", "", KIND, 1)]), namespace_path("/a/../b", [])
    ('/a/b', '/b')

    Raises:
        InvalidArgument: not an absolute path.
    """
    if not path.startswith("/"):
        raise InvalidArgument(f"{path!r}: write an absolute path, in the cluster (/model/x) or below a mount of it")
    path = "/" + os.path.normpath(path).lstrip("/")
    below = [mount.mountpoint for mount in listed if mount.kind == KIND]
    for mountpoint in sorted(below, key=len, reverse=True):
        if path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/"):
            return "/" + path[len(mountpoint) :].lstrip("/")
    return path


def unmount(mountpoint: str, *, force: bool = False) -> bool:
    """Takes HearthFS away from a mount point; False when nothing was mounted there.

    A mount whose daemon is dead or does not answer is detached although files are open in it, and its connection is
    aborted, so that whoever waits for it gets an error instead of waiting for ever. ``force`` does so with any mount.

    Raises:
        Busy: files are open in a mount that works.
        InvalidArgument: something else is mounted there.
    """
    place = os.path.normpath(Path.cwd() / mountpoint)  # not resolved: that would ask a dead mount
    found = False
    for _ in range(16):
        mount = at(place)
        if mount is None or (found and mount.kind != KIND):
            return found
        if mount.kind != KIND:
            raise InvalidArgument(f"{place} has a {mount.kind} filesystem on it, not HearthFS; use umount")
        _unmount_one(mount, force)
        found = True
    raise Busy(f"{place} is mounted again each time; stop whoever mounts it")


def _unmount_one(mount: Mount, force: bool) -> None:
    if not force:
        try:
            _umount2(mount.mountpoint, UMOUNT_NOFOLLOW)
            return
        except OSError as error:
            if error.errno == errno.EPERM:
                _fusermount(mount.mountpoint, lazy=False)
                return
            if error.errno == errno.EINVAL:  # somebody else was quicker
                return
            if error.errno != errno.EBUSY:
                raise
        if answers(mount.mountpoint):
            raise Busy(f"{mount.mountpoint} is in use; close what is open in it (fuser -m shows it) or add --force")
    detach(mount)


def detach(mount: Mount) -> None:
    """Lazy unmount and abort: never waits for the daemon."""
    try:
        _umount2(mount.mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.EPERM:
            _fusermount(mount.mountpoint, lazy=True)
        elif error.errno != errno.EINVAL:
            raise
    abort(mount.connection)


def abort(connection: int) -> None:
    """Ends a FUSE connection: every request that waits in it fails now. Does nothing when it is gone."""
    if not (FUSE_CONTROL / str(connection)).exists() and os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mount(b"fusectl", os.fsencode(FUSE_CONTROL), b"fusectl", 0, None)
    try:
        (FUSE_CONTROL / str(connection) / "abort").write_text("1")
    except OSError:
        return  # gone, or no fusectl here: the unmount stands


def answers(mountpoint: str, timeout_s: float = PROBE_S) -> bool:
    """Whether a mount's daemon answers a statfs in time. Asked by a child that is not waited for: where the daemon
    hangs, so does the child, and not even SIGKILL ends it before the connection is aborted."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    pid = os.posix_spawnp("stat", ["stat", "-f", mountpoint], os.environ, file_actions=quiet)
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            os.kill(pid, signal.SIGKILL)
            return False
        return os.waitpid(pid, 0)[1] == 0
    finally:
        os.close(pidfd)


def _umount2(path: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _fusermount(path: str, *, lazy: bool) -> None:
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise NotPermitted(f"unmounting {path} needs root, or fusermount3 (package fuse3)") from None
    if done.returncode:
        raise HearthError(f"fusermount3: {done.stderr.strip()}")
