"""What ``hearth doctor`` knows: small functions from facts of one kind to lines for people. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

GIB = 1 << 30
PASSTHROUGH_KERNEL = (6, 9)
OLDEST_KERNEL = (5, 4)
MAX_OFFSET_S = 1.0


class Line(NamedTuple):
    """One result. ``advice`` is empty only where nothing needs to be done."""

    verdict: Literal["ok", "warning", "problem"]
    subject: str
    text: str
    advice: str = ""


class FuseFacts(NamedTuple):
    device_exists: bool
    device_opens: bool
    is_root: bool
    fusermount: str  # its path, or empty
    fuse_conf: str  # text of /etc/fuse.conf
    control: bool  # /sys/fs/fuse/connections is mounted


class DiskFacts(NamedTuple):
    path: str
    exists: bool
    writable: bool = False
    kind: str = ""  # filesystem type
    total_bytes: int = 0
    free_bytes: int = 0
    direct_io: bool = False


class PortFacts(NamedTuple):
    what: str  # "master", "worker"
    address: str
    local: bool  # an address of this machine
    listening: bool
    hearth: bool  # and it answers as HearthFS
    error: str = ""


class ClockFacts(NamedTuple):
    synchronised: bool | None  # None: the kernel did not say


class VersionFacts(NamedTuple):
    python: tuple[int, int]
    ours: str
    cluster: dict[str, str]  # who -> version
    packages: dict[str, str]  # name -> version, empty where it is not installed


def check_kernel(release: str) -> list[Line]:
    """``release`` as in ``uname -r``."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if not found:
        return [Line("warning", "kernel", f"release {release!r} is not understood", "check that it is 5.4 or newer")]
    version = int(found[1]), int(found[2])
    if version < OLDEST_KERNEL:
        return [Line("problem", "kernel", release, "HearthFS mounts need Linux 5.4 or newer: upgrade the kernel")]
    if version < PASSTHROUGH_KERNEL:
        advice = "works, through the daemon; Linux 6.9 or newer reads and writes local files at the disk's own speed"
        return [Line("warning", "kernel", release, advice)]
    return [Line("ok", "kernel", f"{release}: has FUSE passthrough")]


def check_fuse(facts: FuseFacts) -> list[Line]:
    if not facts.device_exists:
        advice = "load the module (modprobe fuse), or give the container the device (--device /dev/fuse)"
        return [Line("problem", "fuse", "/dev/fuse does not exist", advice)]
    lines = []
    if facts.device_opens:
        lines.append(Line("ok", "fuse", "/dev/fuse opens"))
    else:
        advice = "run as root, or chmod 666 /dev/fuse; in a container add --cap-add SYS_ADMIN --device /dev/fuse"
        lines.append(Line("problem", "fuse", "/dev/fuse cannot be opened", advice))
    if not facts.is_root and not facts.fusermount:
        lines.append(Line("problem", "fuse", "fusermount3 is missing", "install the package fuse3, or mount as root"))
    if not facts.is_root and not re.search(r"^\s*user_allow_other\s*$", facts.fuse_conf, re.MULTILINE):
        advice = "for --allow-other add the line user_allow_other to /etc/fuse.conf"
        lines.append(Line("warning", "fuse", "mounts of yours are invisible to other users", advice))
    if facts.is_root and not facts.control:
        advice = "mount -t fusectl none /sys/fs/fuse/connections, so that a hung mount can be aborted"
        lines.append(Line("warning", "fuse", "/sys/fs/fuse/connections is empty or not mounted", advice))
    return lines


def check_disk(facts: DiskFacts) -> list[Line]:
    subject = f"disk {facts.path}"
    if not facts.exists:
        return [
            Line("problem", subject, "does not exist", f"mkdir -p {facts.path}, on the drive that shall hold blocks")
        ]
    if not facts.writable:
        advice = "change its owner to the user that runs the worker; check for a read-only mount"
        return [Line("problem", subject, "cannot be written to", advice)]
    lines = []
    free = f"{facts.kind}, {facts.free_bytes / GIB:.1f} of {facts.total_bytes / GIB:.1f} GiB free"
    if facts.total_bytes and facts.free_bytes < facts.total_bytes * 0.05:
        advice = "free some space or add a disk: a worker keeps 5 % free and takes no new blocks below that"
        lines.append(Line("problem", subject, free, advice))
    elif facts.kind in ("nfs", "nfs4", "cifs", "fuse", "9p"):
        advice = "use a local drive: a network filesystem gives neither the speed nor the guarantees of a disk"
        lines.append(Line("warning", subject, free, advice))
    elif facts.kind == "tmpfs":
        lines.append(Line("warning", subject, free, "lives in memory: use it for tests only, blocks end with the node"))
    else:
        lines.append(Line("ok", subject, free))
    if not facts.direct_io:
        advice = "put blocks on ext4 or xfs: without O_DIRECT the mount cannot hand the file to the kernel"
        lines.append(Line("warning", subject, "has no O_DIRECT", advice))
    return lines


def check_port(facts: PortFacts) -> list[Line]:
    subject = f"port {facts.address}"
    if facts.hearth:
        return [Line("ok", subject, f"the {facts.what} answers")]
    if facts.listening:
        advice = f"find who has it (ss -ltnp), or give the {facts.what} another one with --listen"
        return [Line("problem", subject, f"somebody answers, but not a HearthFS {facts.what}", advice)]
    if facts.local:
        return [Line("ok", subject, f"free: no {facts.what} runs here")]
    text = f"no {facts.what} answers" + (f" ({facts.error})" if facts.error else "")
    return [Line("problem", subject, text, f"start the {facts.what}, check its --listen address and the firewall")]


def check_clock(facts: ClockFacts) -> list[Line]:
    if facts.synchronised is None:
        return [Line("warning", "clock", "the kernel does not say whether it is synchronised", "run an NTP client")]
    if not facts.synchronised:
        advice = "run chrony or systemd-timesyncd; leases do not need it, but file times of nodes will differ"
        return [Line("warning", "clock", "is not synchronised", advice)]
    return [Line("ok", "clock", "is synchronised")]


def check_versions(facts: VersionFacts) -> list[Line]:
    lines = []
    python = ".".join(map(str, facts.python))
    if facts.python < (3, 11):
        lines.append(Line("problem", "python", python, "HearthFS needs Python 3.11 or newer"))
    else:
        lines.append(Line("ok", "python", python))
    for who, version in facts.cluster.items():
        if version == facts.ours:
            lines.append(Line("ok", f"version of {who}", version))
        else:
            advice = f"upgrade to one version everywhere, the master first; this command is {facts.ours}"
            lines.append(Line("warning", f"version of {who}", version or "unknown", advice))
    needed = {"lmdb": "server", "msgspec": "server", "uvloop": "server", "pyfuse3": "mount", "trio": "mount"}
    missing = [package for package in needed if not facts.packages.get(package)]
    for extra in sorted({needed[package] for package in missing}):
        names = ", ".join(package for package in missing if needed[package] == extra)
        purpose = {"server": "a master or worker", "mount": "a mount"}[extra]
        advice = f"only where this node runs {purpose}: pip install 'hearthfs[{extra}]'"
        lines.append(Line("warning", "packages", f"{names} not installed", advice))
    return lines
