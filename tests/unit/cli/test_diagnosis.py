import pytest
from hearthfs.cli.diagnosis import (
    ClockFacts,
    DiskFacts,
    FuseFacts,
    PortFacts,
    VersionFacts,
    check_clock,
    check_disk,
    check_fuse,
    check_kernel,
    check_port,
    check_versions,
)

GOOD_FUSE = FuseFacts(True, True, True, "/usr/bin/fusermount3", "", True)
GOOD_DISK = DiskFacts("/nvme0", True, True, "ext4", 100 << 30, 50 << 30, True)
GOOD_PORT = PortFacts("master", "10.0.0.1:7070", local=False, listening=True, hearth=True)
PACKAGES = {"lmdb": "1", "msgspec": "1", "uvloop": "1", "pyfuse3": "1", "trio": "1"}
GOOD_VERSIONS = VersionFacts((3, 11), "0.1.0", {"the master": "0.1.0", "w1": "0.1.0"}, PACKAGES)


def verdicts(lines):
    assert all(line.advice for line in lines if line.verdict != "ok"), "each line says what to do"
    assert all(not line.advice for line in lines if line.verdict == "ok")
    return [line.verdict for line in lines]


@pytest.mark.parametrize(
    ("release", "verdict"),
    [
        ("6.18.44-fc-v657", "ok"),
        ("6.9.0", "ok"),
        ("6.8.12", "warning"),
        ("5.4.0-42-generic", "warning"),
        ("4.19.1", "problem"),
        ("10.0", "ok"),
        ("strange", "warning"),
    ],
)
def test_kernels(release, verdict):
    assert verdicts(check_kernel(release)) == [verdict]


@pytest.mark.parametrize(
    ("change", "wanted", "says"),
    [
        ({}, ["ok"], "opens"),
        ({"device_exists": False}, ["problem"], "modprobe fuse"),
        ({"device_opens": False}, ["problem"], "SYS_ADMIN"),
        ({"control": False}, ["ok", "warning"], "fusectl"),
        ({"is_root": False}, ["ok", "warning"], "user_allow_other"),
        ({"is_root": False, "fuse_conf": "# user_allow_other"}, ["ok", "warning"], "user_allow_other"),
        ({"is_root": False, "fuse_conf": "mount_max = 9\nuser_allow_other\n"}, ["ok"], "opens"),
        ({"is_root": False, "fusermount": "", "fuse_conf": "user_allow_other"}, ["ok", "problem"], "fuse3"),
    ],
)
def test_fuse(change, wanted, says):
    lines = check_fuse(GOOD_FUSE._replace(**change))
    assert verdicts(lines) == wanted
    assert says in lines[-1].text + lines[-1].advice


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, ["ok"]),
        ({"exists": False}, ["problem"]),
        ({"writable": False}, ["problem"]),
        ({"free_bytes": 4 << 30}, ["problem"]),
        ({"kind": "tmpfs"}, ["warning"]),
        ({"kind": "nfs4"}, ["warning"]),
        ({"direct_io": False}, ["ok", "warning"]),
        ({"total_bytes": 0, "free_bytes": 0}, ["ok"]),
    ],
)
def test_disks(change, wanted):
    lines = check_disk(GOOD_DISK._replace(**change))
    assert verdicts(lines) == wanted
    assert all("/nvme0" in line.subject for line in lines)


@pytest.mark.parametrize(
    ("change", "wanted", "says"),
    [
        ({}, "ok", "the master answers"),
        ({"hearth": False}, "problem", "ss -ltnp"),
        ({"hearth": False, "listening": False, "error": "timed out"}, "problem", "timed out"),
        ({"hearth": False, "listening": False, "local": True}, "ok", "free"),
    ],
)
def test_ports(change, wanted, says):
    (line,) = check_port(GOOD_PORT._replace(**change))
    assert verdicts([line]) == [wanted]
    assert says in line.text + line.advice


@pytest.mark.parametrize(("synchronised", "wanted"), [(True, "ok"), (False, "warning"), (None, "warning")])
def test_clocks(synchronised, wanted):
    assert verdicts(check_clock(ClockFacts(synchronised))) == [wanted]


@pytest.mark.parametrize(
    ("change", "wanted", "says"),
    [
        ({}, ["ok", "ok", "ok"], ""),
        ({"python": (3, 10)}, ["problem", "ok", "ok"], "3.11"),
        ({"cluster": {"the master": "0.2.0"}}, ["ok", "warning"], "one version"),
        ({"cluster": {}}, ["ok"], ""),
        ({"cluster": {}, "packages": PACKAGES | {"pyfuse3": ""}}, ["ok", "warning"], "hearthfs[mount]"),
        ({"cluster": {}, "packages": {}}, ["ok", "warning", "warning"], "hearthfs[server]"),
    ],
)
def test_versions(change, wanted, says):
    lines = check_versions(GOOD_VERSIONS._replace(**change))
    assert verdicts(lines) == wanted
    assert says in "".join(line.advice for line in lines)
