"""Behind the relay, the kernel reads block files by itself."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hearthfs.tests.support.cluster import Cluster

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="passthrough needs root"),
    pytest.mark.skipif(
        tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 9),
        reason="passthrough came with Linux 6.9",
    ),
]

Make = Callable[..., Cluster]
RELAY = {"mount": {"relay": "auto", "passthrough": "auto"}}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("passthrough")
    with Cluster(directory, workers=2, mounts=2, settings=RELAY, telemetry=True) as cluster:
        yield cluster


@pytest.fixture
def root(shared: Cluster, request: pytest.FixtureRequest) -> Path:
    root = shared.mountpoint(1) / request.node.name
    root.mkdir()
    return root


def metric(cluster: Cluster, mount: str, name: str) -> float:
    with urllib.request.urlopen(f"{cluster.telemetry_url(mount)}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def block_of(cluster: Cluster, size: int) -> Path:
    blocks = [path for path in cluster.disk(1).rglob("*") if path.is_file() and path.stat().st_size == size]
    assert len(blocks) == 1
    return blocks[0]


def test_sealed_files_are_read_by_the_kernel(shared: Cluster, root: Path) -> None:
    data = os.urandom(3_000_001)
    (root / "f").write_bytes(data)
    opens = metric(shared, "mount1", "hearth_mount_passthrough_opens")
    read = metric(shared, "mount1", "hearth_mount_read_bytes")
    assert (root / "f").read_bytes() == data
    fd = os.open(root / "f", os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    assert os.preadv(fd, [buffer], 1 << 20) == 1 << 20
    assert buffer[:] == data[1 << 20 : 2 << 20]
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == data
    os.close(fd)
    assert metric(shared, "mount1", "hearth_mount_passthrough_opens") == opens + 2
    assert metric(shared, "mount1", "hearth_mount_read_bytes") == read


def test_what_another_node_wrote_is_brought_here_and_passes(shared: Cluster, root: Path) -> None:
    data = os.urandom(2_000_003)
    (root / "f").write_bytes(data)
    other = shared.mountpoint(2) / root.name / "f"
    opens = metric(shared, "mount2", "hearth_mount_passthrough_opens")
    assert other.read_bytes() == data
    with other.open("rb", buffering=0) as reader:
        (root / "f").write_bytes(b"another version")
        assert other.read_bytes() == b"another version"
        assert reader.read() == data
    assert metric(shared, "mount2", "hearth_mount_passthrough_opens") == opens + 3


def test_files_with_a_hole_at_the_end_do_not_pass(shared: Cluster, root: Path) -> None:
    (root / "f").write_bytes(b"x" * 100_000)
    os.truncate(root / "f", 150_000)
    (root / "g").write_bytes(b"x" * 100_000)
    os.truncate(root / "g", 50_000)
    opens = metric(shared, "mount1", "hearth_mount_passthrough_opens")
    assert (root / "f").read_bytes() == b"x" * 100_000 + bytes(50_000)
    assert (root / "g").read_bytes() == b"x" * 50_000
    assert metric(shared, "mount1", "hearth_mount_passthrough_opens") == opens


def test_readers_see_what_a_writer_does_that_joins_them(shared: Cluster, root: Path) -> None:
    path, data = root / "f", bytearray(os.urandom(5_000_000))
    elsewhere = shared.mountpoint(2) / root.name / "f"
    path.write_bytes(data)
    before = path.stat().st_mtime_ns
    with path.open("rb", buffering=0) as reader:
        seen = mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ)
        with path.open("r+b", buffering=0) as writer:
            assert elsewhere.read_bytes() == data
            assert path.stat().st_mtime_ns == before
            os.pwrite(writer.fileno(), b"HELLO", 100)
            assert os.pread(reader.fileno(), 5, 100) == seen[100:105] == os.pread(writer.fileno(), 5, 100) == b"HELLO"
            assert elsewhere.read_bytes() == data  # nothing was closed yet; mmap has a descriptor of its own
            with mmap.mmap(writer.fileno(), 0) as mapped:
                mapped[200:205] = b"WORLD"
                assert os.pread(reader.fileno(), 5, 200) == os.pread(writer.fileno(), 5, 200) == b"WORLD"
            os.ftruncate(writer.fileno(), 6_000_000)
            assert os.fstat(reader.fileno()).st_size == 6_000_000
            assert os.pread(reader.fileno(), 9, 5_999_995) == bytes(5)
        data[100:105], data[200:205] = b"HELLO", b"WORLD"
        data += bytes(1_000_000)
        assert elsewhere.read_bytes() == data
        os.truncate(path, 5_500_000)
        assert elsewhere.stat().st_size == 5_500_000
        with path.open("ab", buffering=0) as appender:
            appender.write(b"tail")
        del data[5_500_000:]
        data += b"tail"
        assert os.pread(reader.fileno(), 9, 5_500_000) == b"tail"
        assert elsewhere.read_bytes() == data
        seen.close()
    assert path.read_bytes() == data


def test_truncating_open_and_a_change_by_a_mapping_alone(shared: Cluster, root: Path) -> None:
    path, elsewhere = root / "f", shared.mountpoint(2) / root.name / "f"
    path.write_bytes(b"a" * 10_000)
    with path.open("rb", buffering=0) as reader:
        with path.open("r+b") as writer, mmap.mmap(writer.fileno(), 0) as mapped:
            mapped[0:1] = b"b"
        assert elsewhere.read_bytes() == b"b" + b"a" * 9_999
        with path.open("wb", buffering=0) as writer:
            assert os.pread(reader.fileno(), 10, 0) == b""
            writer.write(b"new")
            assert os.pread(reader.fileno(), 10, 0) == b"new"
        assert elsewhere.read_bytes() == b"new"
        path.unlink()
        with open(f"/proc/self/fd/{reader.fileno()}", "r+b", buffering=0) as writer:
            writer.write(b"NEW")
        assert os.pread(reader.fileno(), 10, 0) == b"NEW"


def test_a_file_that_others_hold_too_is_not_written_under_them(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=1, settings=RELAY)
    path, data = cluster.mountpoint(1) / "f", os.urandom(1_000_001)
    path.write_bytes(data)
    with block_of(cluster, len(data)).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as each descriptor that the worker gives away
        with path.open("rb", buffering=0) as reader:
            begin = time.monotonic()
            with pytest.raises(OSError, match="busy") as caught:
                path.open("r+b")
            assert caught.value.errno == errno.ETXTBSY
            assert time.monotonic() - begin > 0.9
            with pytest.raises(OSError, match="busy"):
                os.truncate(path, 5)
            replacement = path.with_name("new")
            replacement.write_bytes(b"replaced")
            replacement.rename(path)
            assert reader.read() == data
        assert os.pread(other.fileno(), len(data), 0) == data
    assert path.read_bytes() == b"replaced"
    assert cluster.fsck() == []


def test_a_block_is_verified_before_it_passes(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=1, settings=RELAY)
    path, data = cluster.mountpoint(1) / "f", os.urandom(2_500_000)
    path.write_bytes(data)
    assert path.read_bytes() == data
    block = block_of(cluster, len(data))
    with block.open("r+b") as file:
        file.seek(1_200_000)
        file.write(bytes([data[1_200_000] ^ 1]))
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()


@pytest.mark.parametrize("victim", ["relay", "daemon"])
def test_the_mount_is_dead_when_relay_or_daemon_is_killed(make_cluster: Make, victim: str) -> None:
    cluster = make_cluster(workers=1, mounts=1, settings=RELAY)
    root, relay = cluster.mountpoint(1), cluster.pid("mount1")
    (root / "f").write_text("x")
    daemon = int(Path(f"/proc/{relay}/task/{relay}/children").read_text())
    os.kill(relay if victim == "relay" else daemon, signal.SIGKILL)
    assert cluster.wait("mount1", 10)
    deadline = time.monotonic() + 10
    while alive(daemon):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(OSError, match="not connected"):
        os.stat(root / "f")
    assert cluster.hearth("umount", str(root)).returncode == 0
    cluster.start("mount1")
    assert (root / "f").read_text() == "x"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_term_ends_both(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=1, settings=RELAY)
    relay = cluster.pid("mount1")
    daemon = int(Path(f"/proc/{relay}/task/{relay}/children").read_text())
    fd = os.open(cluster.mountpoint(1) / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"x")
    assert cluster.term("mount1", grace_s=12) == 0
    assert not alive(daemon)
    with pytest.raises(OSError, match="connect"):
        os.close(fd)
    assert not os.path.ismount(cluster.mountpoint(1))
