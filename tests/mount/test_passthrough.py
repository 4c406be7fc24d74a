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
from hearthfs.tests.model.memory import Mapping
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


def write_all(fd: int, data: bytes) -> None:
    for offset in range(0, len(data), 1 << 20):
        os.write(fd, data[offset : offset + (1 << 20)])


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


def test_new_files_are_written_by_the_kernel(shared: Cluster, root: Path) -> None:
    data = os.urandom(3_000_001)
    written = metric(shared, "mount1", 'hearth_mount_operation_seconds_count{operation="write"}')
    (root / "f").write_bytes(data)
    assert (root / "f").stat().st_size == len(data)
    (root / "f").write_bytes(data[:1_000_000])  # O_TRUNC
    assert (root / "f").stat().st_size == 1_000_000
    fd = os.open(root / "direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 8192)
    page[:] = data[:8192]
    os.write(fd, page)
    os.close(fd)
    with (root / "appended").open("ab", buffering=0) as one, (root / "appended").open("ab", buffering=0) as two:
        for turn in range(10):
            (one, two)[turn % 2].write(b"%d" % turn)
    assert metric(shared, "mount1", 'hearth_mount_operation_seconds_count{operation="write"}') == written
    other = shared.mountpoint(2) / root.name
    for node in (root, other):
        assert (node / "f").read_bytes() == data[:1_000_000]
        assert (node / "direct").read_bytes() == data[:8192]
        assert (node / "appended").read_bytes() == b"0123456789"


def test_a_writer_that_goes_on_leaves_others_what_was_closed(shared: Cluster, root: Path) -> None:
    """Through a duplicate, after a close: in place, longer, shorter."""
    other = shared.mountpoint(2) / root.name / "f"
    fd = os.open(root / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"first version")
    os.close(os.dup(fd))
    time.sleep(0.3)  # noticed: the published block has a file of its own
    os.pwrite(fd, b"FIRST", 0)
    os.pwrite(fd, b"and more", 13)
    assert other.read_bytes() == b"first version"
    assert os.fstat(fd).st_size == 21
    os.ftruncate(fd, 5)
    assert other.read_bytes() == b"first version"
    assert (root / "f").read_bytes() == b"FIRST"  # and each close publishes
    assert other.read_bytes() == b"FIRST"
    os.pwrite(fd, b"x", 4)
    os.close(fd)
    assert other.read_bytes() == (root / "f").read_bytes() == b"FIRSx"


def test_who_asks_before_it_was_noticed_gets_a_whole_version(shared: Cluster, root: Path) -> None:
    other = shared.mountpoint(2) / root.name / "f"
    fd = os.open(root / "f", os.O_CREAT | os.O_WRONLY)
    for turn in range(20):
        os.pwrite(fd, bytes([turn]) * 100_000, 0)
        os.close(os.dup(fd))
        os.pwrite(fd, bytes([turn]) * 10, 100_000)
        seen = other.read_bytes()
        assert seen in (bytes([turn]) * 100_000, bytes([turn]) * 100_010)
        os.ftruncate(fd, 100_000)
    os.close(fd)


def test_what_a_mapping_writes_after_close_is_published_at_its_end(shared: Cluster, root: Path) -> None:
    fd = os.open(root / "f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"a" * 10_000)
    mapped = Mapping(fd, 10_000, writable=True)
    mapped.store(0, b"early")
    os.close(fd)  # the mapping has the file yet
    assert (root / "f").read_bytes()[:6] == b"earlya"
    other = shared.mountpoint(2) / root.name / "f"
    mapped.store(5000, b"later")
    mapped.sync()
    assert other.read_bytes()[5000:5005] == b"later"
    mapped.store(6000, b"last")
    mapped.close()
    deadline = time.monotonic() + 10
    while other.read_bytes()[6000:6004] != b"last":  # RELEASE is not waited for by munmap
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert other.read_bytes()[:5] == b"early"


def test_a_mapping_outlives_descriptor_and_name(shared: Cluster, root: Path) -> None:
    """Made by who creates the file, by a reader of one that is being written, and by who joins readers."""
    first = os.open(root / "own", os.O_CREAT | os.O_RDWR)
    os.ftruncate(first, 1 << 20)
    writer = os.open(root / "other's", os.O_CREAT | os.O_WRONLY)
    os.write(writer, b"w" * 10_000)
    reader = os.open(root / "other's", os.O_RDONLY)
    (root / "joined").write_bytes(b"j" * 10_000)
    sealed = os.open(root / "joined", os.O_RDONLY)
    joined = os.open(root / "joined", os.O_RDWR)
    own, seen = Mapping(first, 4096, writable=True), Mapping(reader, 4096, writable=False)
    changed = Mapping(joined, 4096, writable=True)
    for path in list(root.iterdir()):
        path.unlink()
    for fd in (first, reader, writer, joined, sealed):
        os.close(fd)
    time.sleep(0.3)
    (root / "more").write_bytes(b"m" * 10_000)  # must not find their files free
    assert own.load(0, 3) == b"\0\0\0"
    assert seen.load(0, 3) == b"www"
    assert changed.load(0, 3) == b"jjj"
    for mapping in (own, changed):
        mapping.store(0, b"yes")
        assert mapping.load(0, 4) == b"yes" + mapping.load(3, 1)
    for mapping in (own, seen, changed):
        mapping.close()
    assert (root / "more").read_bytes() == b"m" * 10_000


def test_what_a_mapping_writes_into_a_file_of_others_is_compared(shared: Cluster, root: Path) -> None:
    """It joins a file that the kernel writes: nothing but the bytes tells that they changed."""
    path, other = root / "f", shared.mountpoint(2) / root.name / "f"
    writer = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(writer, b"w" * 10_000)
    os.close(os.dup(writer))
    both = os.open(path, os.O_RDWR)
    mapped = Mapping(both, 4096, writable=True)
    for turn in range(3):
        mapped.store(turn, b"x")
        os.close(os.dup(writer))
        assert other.read_bytes()[:4] == (b"x" * (turn + 1)).ljust(4, b"w")
    mapped.store(3, b"x")
    assert other.read_bytes()[:4] == b"xxxw"
    os.close(writer)
    os.close(both)
    assert other.read_bytes()[:4] == b"xxxx"
    mapped.store(4, b"never told")
    assert other.read_bytes()[:5] == path.read_bytes()[:5] == b"xxxxw"
    mapped.close()


def test_a_writer_after_a_writer(shared: Cluster, root: Path) -> None:
    """The second opens the file while readers have the first one's file by passthrough."""
    path, other = root / "f", shared.mountpoint(2) / root.name / "f"
    path.write_bytes(b"one" * 1000)
    with path.open("rb", buffering=0) as reader:
        assert other.read_bytes() == b"one" * 1000
        with path.open("r+b", buffering=0) as writer:
            writer.write(b"two")
            assert reader.read(6) == b"twoone"
            assert other.read_bytes() == b"one" * 1000
        assert other.read_bytes() == b"two" + b"one" * 999


def test_small_files_that_are_synced_survive_what_follows(shared: Cluster, root: Path) -> None:
    """A database writes into what it made durable: the synced version has a block of its own at once."""
    fd = os.open(root / "db", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"synced")
    os.fsync(fd)
    os.pwrite(fd, b"torn", 0)
    assert (shared.mountpoint(2) / root.name / "db").read_bytes() == b"synced"
    os.close(fd)
    assert (shared.mountpoint(2) / root.name / "db").read_bytes() == b"torned"


def test_an_empty_file_s_backing_is_nobody_else_s(shared: Cluster, root: Path) -> None:
    fd = os.open(root / "empty", os.O_CREAT | os.O_WRONLY)
    reader = os.open(root / "empty", os.O_RDONLY)
    os.close(fd)
    for number in range(8):
        (root / f"f{number}").write_bytes(b"bytes of others")
    assert os.read(reader, 10) == b""
    os.close(reader)
    assert (root / "empty").read_bytes() == b""


def test_a_nearly_full_disk_is_written_through_the_daemon(tmp_path: Path) -> None:
    """There the writer hears of the limit when it writes."""
    small = {"disk": "ext4", "disk_bytes": 48 << 20}
    with Cluster(tmp_path / "c", workers=1, mounts=1, settings=RELAY, telemetry=True, **small) as cluster:
        fd = os.open(cluster.mountpoint(1) / "f", os.O_CREAT | os.O_WRONLY)
        with pytest.raises(OSError, match="No space left"):
            write_all(fd, bytes(60 << 20))
        with pytest.raises(OSError, match="No space left"):
            os.close(fd)
        assert metric(cluster, "mount1", 'hearth_mount_operation_seconds_count{operation="write"}') > 10


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
    with pytest.raises(OSError, match=r"not connected|connection abort"):
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
