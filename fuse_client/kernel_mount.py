"""mount(2) by ourselves: libfuse gets the open descriptor as ``/dev/fd/N``, so that we own it too (for notifications,
for the INIT reply, later for the relay between kernel and libfuse)."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import os
import re
import select
import socket
import stat
import subprocess
from pathlib import Path

from ..common.errors import HearthError, InvalidArgument, NotPermitted
from ..common.telemetry import get_logger

log = get_logger(__name__)

KIND = "hearthfs"
MAX_READ_BYTES = 1 << 20  # of one READ request
FUSE_DEVICE = "/dev/fuse"
FUSE_CONF = Path("/etc/fuse.conf")
MOUNTINFO = Path("/proc/self/mountinfo")
FUSE_CONTROL = Path("/sys/fs/fuse/connections")

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


class KernelMount:
    """A mounted connection: ``fd`` is the ``/dev/fuse`` descriptor."""

    def __init__(self, fd: int, mountpoint: str) -> None:
        self.fd = fd
        self.mountpoint = mountpoint
        self._device = _device_at(mountpoint)

    def is_mounted(self) -> bool:
        """Whether our own connection (not one mounted over it) is still in the mount table."""
        return self._device is not None and any(minor == self._device for _, minor, _ in _mounts())

    def tune(self, read_ahead_kb: int) -> None:
        """Larger reads for buffered readers; needs root and sysfs, else the kernel's 128 KiB stay."""
        if self._device is None or not read_ahead_kb:
            return
        try:
            Path(f"/sys/class/bdi/0:{self._device}/read_ahead_kb").write_text(str(read_ahead_kb))
        except OSError as error:
            log.info("read-ahead-not-set", reason=error.strerror)

    def is_dead(self) -> bool:
        """Whether the connection has ended, by unmount or abort: poll(2) says POLLERR then."""
        poller = select.poll()
        poller.register(self.fd, 0)
        return any(events & select.POLLERR for _, events in poller.poll(0))

    def unmount(self) -> None:
        """Takes the mount away even when files are open in it: detaches it, then ends the connection, so that nobody
        waits for a daemon that is about to go. Does nothing when it is gone already."""
        if not self.is_mounted():
            return
        if self.is_dead() and not _is_disconnected(self.mountpoint):
            return  # ours is gone; the kernel gave its number to one that was mounted here since
        if _umount2(self.mountpoint, UMOUNT_NOFOLLOW) == errno.EBUSY:
            _umount2(self.mountpoint, UMOUNT_NOFOLLOW | MNT_DETACH)
            self.abort()
        if os.geteuid():
            _fusermount("-u", "-z", self.mountpoint)

    def abort(self) -> None:
        """Fails every request in the connection with ENOTCONN, now and later."""
        with contextlib.suppress(OSError):
            (FUSE_CONTROL / str(self._device) / "abort").write_text("1")


def mount(
    mountpoint: str, source: str, *, allow_other: bool, read_only: bool = False, max_read: int = MAX_READ_BYTES
) -> KernelMount:
    """Mounts an empty connection; the kernel's INIT request waits on ``fd``.

    Raises:
        HearthError: one line that says what is wrong and what to do.
    """
    mountpoint = os.path.abspath(mountpoint)
    check_mountpoint(mountpoint)
    if os.geteuid() == 0:
        fd = _mount_as_root(mountpoint, source, max_read, allow_other=allow_other, read_only=read_only)
    else:
        fd = _mount_by_fusermount(mountpoint, source, max_read, allow_other=allow_other, read_only=read_only)
    return KernelMount(fd, mountpoint)


def check_mountpoint(mountpoint: str) -> None:
    """Raises a HearthError when nothing should be mounted there."""
    for place, _, kind in _mounts():
        if place == mountpoint and kind == f"fuse.{KIND}":
            raise InvalidArgument(
                f"{mountpoint}: HearthFS is mounted there already (or its daemon died); run: hearth umount {mountpoint}"
            )
    try:
        status = os.stat(mountpoint)
    except FileNotFoundError:
        raise InvalidArgument(f"mount point {mountpoint} does not exist; run: mkdir -p {mountpoint}") from None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise InvalidArgument(
                f"{mountpoint}: the daemon of the mount there died; run: hearth umount {mountpoint}"
            ) from None
        raise InvalidArgument(f"mount point {mountpoint}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidArgument(f"mount point {mountpoint} is not a directory")
    try:
        os.stat(FUSE_DEVICE)
    except OSError:
        raise NotPermitted(f"{FUSE_DEVICE} is missing; load the module (modprobe fuse) or pass the device in") from None


def allow_other_permitted(fuse_conf: str) -> bool:
    """Whether the text of /etc/fuse.conf lets other users than root say allow_other.

    >>> allow_other_permitted("# user_allow_other"), allow_other_permitted("mount_max = 9\\n user_allow_other")
    (False, True)
    """
    return any(line.strip() == "user_allow_other" for line in fuse_conf.splitlines())


def _mount_as_root(mountpoint: str, source: str, max_read: int, *, allow_other: bool, read_only: bool) -> int:
    fd = os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    mode = os.stat(mountpoint).st_mode
    options = f"fd={fd},rootmode={mode & stat.S_IFMT(mode):o},user_id=0,group_id=0,default_permissions"
    options += f",max_read={max_read}" + (",allow_other" if allow_other else "")
    flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if read_only else 0)
    arguments = source.encode(), os.fsencode(mountpoint), f"fuse.{KIND}".encode(), flags, options.encode()
    if _libc.mount(*arguments):
        number = ctypes.get_errno()
        os.close(fd)
        if number in (errno.EPERM, errno.EACCES):
            raise NotPermitted(f"mounting on {mountpoint} needs CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN)")
        if number == errno.EBUSY:
            raise InvalidArgument(f"mount point {mountpoint} is busy; run: hearth umount {mountpoint}")
        raise HearthError(f"mount({mountpoint}): {os.strerror(number)}")
    return fd


def _mount_by_fusermount(mountpoint: str, source: str, max_read: int, *, allow_other: bool, read_only: bool) -> int:
    if allow_other:
        text = FUSE_CONF.read_text() if FUSE_CONF.exists() else ""
        if not allow_other_permitted(text):
            raise NotPermitted(
                f"allow_other: {FUSE_CONF} does not permit it to users; add the line user_allow_other there, or mount "
                f"without it"
            )
    options = f"fsname={source},subtype={KIND},default_permissions,max_read={max_read},nosuid,nodev"
    options += (",allow_other" if allow_other else "") + (",ro" if read_only else "")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        environment = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
        try:
            done = subprocess.run(
                ["fusermount3", "-o", options, "--", mountpoint],
                pass_fds=[theirs.fileno()],
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except FileNotFoundError:
            raise NotPermitted("mounting needs root, or fusermount3 (package fuse3)") from None
        if done.returncode:
            raise NotPermitted(f"fusermount3: {done.stderr.strip() or f'exit status {done.returncode}'}")
        _, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_SPACE(4))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fd = array.array("i", payload[:4])[0]
            os.set_inheritable(fd, False)
            return fd
    raise HearthError(f"fusermount3 mounted {mountpoint} but passed no descriptor")


def _mounts() -> list[tuple[str, int, str]]:
    """(mount point, minor device number, kind) of every mount, without touching any."""
    result = []
    for line in MOUNTINFO.read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4])
        result.append((place, int(fields[2].partition(":")[2]), fields[fields.index("-", 6) + 1]))
    return result


def _device_at(mountpoint: str) -> int | None:
    found = [minor for place, minor, kind in _mounts() if place == mountpoint and kind == f"fuse.{KIND}"]
    return found[-1] if found else None


def _is_disconnected(mountpoint: str) -> bool:
    try:
        os.statvfs(mountpoint)  # never answered from the kernel's cache, as stat may be
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _umount2(mountpoint: str, flags: int) -> int:
    """0 or the errno."""
    return ctypes.get_errno() if _libc.umount2(os.fsencode(mountpoint), flags) else 0


def _fusermount(*arguments: str) -> None:
    try:
        subprocess.run(["fusermount3", *arguments], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("fusermount3-failed", reason=str(error))
