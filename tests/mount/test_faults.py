"""Daemons that die, hang, or come back while the mount is in use. Each test has a cluster of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hearthfs.client.retry import RetryPolicy
from hearthfs.common.credentials import TOKEN_FILE_VARIABLE
from hearthfs.fuse_client.kernel_mount import check_mountpoint
from hearthfs.tests.support.cluster import Cluster

pytestmark = pytest.mark.mount

Make = Callable[..., Cluster]

LEASE_S = 5.0
MARGIN_S = 4.0
"""What a busy machine may add to a wait whose length the settings say."""
FILES = 50
"""So many are closed and noted before something is killed."""

WRITER = """
import os, select, sys, time
directory, noted, prefix = sys.argv[1:]
number = 0
while not select.select([0], [], [], 0)[0]:  # until its standard input is closed
    number += 1
    name = f"{prefix}{number}"
    try:
        with open(os.path.join(directory, name), "wb", buffering=0) as file:
            file.write(name.encode() * 5000)
        with open(noted, "a") as note:
            note.write(name + "\\n")
    except OSError as error:
        print(name, error, flush=True)
        time.sleep(0.05)
"""


@contextlib.contextmanager
def writer(directory: Path, noted: Path, prefix: str) -> Iterator[subprocess.Popen[str]]:
    """Writes until ``communicate``; what it prints are its errors."""
    command = [sys.executable, "-c", WRITER, str(directory), str(noted), prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(what: str, check: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)


def wait_noted(noted: Path, more: int) -> None:
    """Until the writer has closed ``more`` files than now."""

    def count() -> int:
        return len(noted.read_text().split()) if noted.exists() else 0

    target = count() + more
    wait_for(f"{more} files more", lambda: count() >= target, 60)


def is_disconnected(directory: Path) -> bool:
    try:
        os.stat(directory)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def lost(noted: Path, directory: Path) -> list[str]:
    problems = []
    names = noted.read_text().split()
    for name in names:
        try:
            if (directory / name).read_bytes() != name.encode() * 5000:
                problems.append(f"{name}: wrong bytes")
        except OSError as error:
            problems.append(f"{name}: {error}")
    assert len(names) > 10
    return problems


@pytest.mark.parametrize("victim", ["master", "worker1"])
def test_closed_files_survive_kills(make_cluster: Make, tmp_path: Path, victim: str) -> None:
    cluster = make_cluster(workers=2, mounts=2)
    noted = tmp_path / "noted"
    with writer(cluster.mountpoint(1), noted, "f") as process:
        for _ in range(2):
            wait_noted(noted, FILES)
            cluster.kill(victim)
            cluster.start(victim)
        wait_noted(noted, FILES)
        output, _ = process.communicate(timeout=60)
    assert lost(noted, cluster.mountpoint(1)) == [], output
    assert lost(noted, cluster.mountpoint(2)) == []


def test_closed_files_survive_the_death_of_the_mount(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster(workers=2, mounts=2, settings={"master": {"session_lease_s": LEASE_S}})
    noted = tmp_path / "noted"
    with writer(cluster.mountpoint(1), noted, "f") as process:
        wait_noted(noted, FILES)
        cluster.kill("mount1")
        assert process.stdout is not None
        # The call that waited is told "connection abort", the next one that nobody is there.
        assert any("not connected" in line for line in process.stdout)
        process.communicate(timeout=60)
    with pytest.raises(OSError, match="not connected"):
        os.statvfs(cluster.mountpoint(1))
    # The kernel may answer stat from attributes that the mount gave it, for what was left of the lease then.
    wait_for("the end of the attributes", lambda: is_disconnected(cluster.mountpoint(1)), LEASE_S + MARGIN_S)
    with pytest.raises(OSError, match="hearth umount"):
        check_mountpoint(str(cluster.mountpoint(1)))
    assert cluster.hearth("umount", str(cluster.mountpoint(1))).returncode == 0
    cluster.start("mount1")
    assert lost(noted, cluster.mountpoint(1)) == []
    assert lost(noted, cluster.mountpoint(2)) == []


def test_dead_master(make_cluster: Make) -> None:
    """Open files go on being read; other calls wait, then EIO; when it is back all goes on."""
    timeout_s = 2.0
    # A call gives up when its next delay would end after its timeout. A delay is at most double all before it and the
    # first: a third of the timeout was waited for sure. Timers may be early by a few per cent.
    shortest_s = 0.95 * (timeout_s - RetryPolicy().first_delay_s) / 3
    cluster = make_cluster(workers=1, mounts=1, settings={"mount": {"timeout_s": timeout_s, "attempt_timeout_s": 1}})
    root = cluster.mountpoint(1)
    data = os.urandom(3_000_000)
    (root / "f").write_bytes(data)
    with (root / "f").open("rb", buffering=0) as file, (root / "w").open("wb", buffering=0) as written:
        cluster.kill("master")
        time.sleep(0.2)
        assert file.read(len(data)) == data
        fd = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT)
        os.close(fd)
        begin = time.monotonic()
        with pytest.raises(OSError, match="Input/output error"):
            (root / "new").mkdir()
        assert shortest_s < time.monotonic() - begin < timeout_s + MARGIN_S
        written.write(b"x" * 1000)
        begin = time.monotonic()
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(written.fileno())
        assert time.monotonic() - begin < timeout_s + MARGIN_S
        cluster.start("master")
        deadline = time.monotonic() + 20
        while True:
            try:
                os.fsync(written.fileno())
                break
            except OSError:
                assert time.monotonic() < deadline
    assert (root / "w").read_bytes() == b"x" * 1000
    assert (root / "f").read_bytes() == data


def test_dead_worker(make_cluster: Make) -> None:
    """Its only copies read as EIO within a deadline; open descriptors go on; it comes back and all is there."""
    cluster = make_cluster(workers=2, mounts=2, settings={"mount": {"timeout_s": 3}})
    data = os.urandom(2_000_000)
    for name in ("open", "closed"):
        (cluster.mountpoint(1) / name).write_bytes(data)
    with (cluster.mountpoint(1) / "open").open("rb", buffering=0) as file:
        cluster.kill("worker1")
        begin = time.monotonic()
        with pytest.raises(OSError, match="Input/output error"):
            (cluster.mountpoint(2) / "closed").read_bytes()
        assert time.monotonic() - begin < 15
        assert file.read(len(data)) == data
    (cluster.mountpoint(1) / "new").write_bytes(data)  # to the worker that lives
    assert (cluster.mountpoint(2) / "new").read_bytes() == data
    cluster.start("worker1")
    deadline = time.monotonic() + 20
    while True:
        try:
            assert (cluster.mountpoint(2) / "closed").read_bytes() == data
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_node_without_worker(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=2)
    for size in (0, 5, 9_000_001):
        data = os.urandom(size)
        (cluster.mountpoint(2) / f"f{size}").write_bytes(data)
        assert (cluster.mountpoint(1) / f"f{size}").read_bytes() == data
        assert (cluster.mountpoint(2) / f"f{size}").read_bytes() == data
        with (cluster.mountpoint(2) / f"f{size}").open("ab") as file:
            file.write(b"more")
        assert (cluster.mountpoint(1) / f"f{size}").read_bytes() == data + b"more"
    fd = os.open(cluster.mountpoint(2) / "synced", os.O_CREAT | os.O_WRONLY)
    os.write(fd, data)
    os.close(os.dup(fd))  # publishes without sync
    os.fsync(fd)
    os.close(fd)
    assert (cluster.mountpoint(1) / "synced").read_bytes() == data
    with (cluster.mountpoint(2) / "f9000001").open("rb") as reader:
        first = reader.read(1000)
        (cluster.mountpoint(1) / "f9000001").write_bytes(b"other")
        assert first + reader.read() == data + b"more"


def test_block_too_big_to_fetch_is_read_by_ranges(make_cluster: Make) -> None:
    cluster = make_cluster(workers=2, mounts=2, settings={"mount": {"fetch_limit_bytes": 1_000_000}})
    data = os.urandom(20_000_003)
    (cluster.mountpoint(1) / "f").write_bytes(data)
    assert (cluster.mountpoint(2) / "f").read_bytes() == data
    with (cluster.mountpoint(2) / "f").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 5000, 12_345_678) == data[12_345_678 : 12_345_678 + 5000]


def test_flipped_bit_is_never_delivered(make_cluster: Make) -> None:
    """One copy is bad: the other is read. The only one is bad: EIO. The name stays usable."""
    cluster = make_cluster(workers=2, mounts=2)
    data = os.urandom(2_500_000)
    a, b = cluster.mountpoint(1) / "f", cluster.mountpoint(2) / "f"
    a.write_bytes(data)
    blocks = [path for path in cluster.disk(1).rglob("*") if path.is_file() and path.stat().st_size == len(data)]
    assert len(blocks) == 1
    with blocks[0].open("r+b") as file:
        file.seek(1_200_000)
        byte = file.read(1)
        file.seek(1_200_000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(OSError, match="Input/output error"):
        b.read_bytes()
    a.write_bytes(data)
    assert b.read_bytes() == data


def test_disk_full(make_cluster: Make) -> None:
    cluster = make_cluster(
        workers=1, mounts=1, disk="tmpfs", disk_bytes=64 << 20, settings={"worker": {"free_floor": "0"}}
    )
    root = cluster.mountpoint(1)
    (root / "kept").write_bytes(b"x" * 1_000_000)
    with pytest.raises(OSError, match="No space left"):
        (root / "big").write_bytes(bytes(100 << 20))
    assert (root / "kept").read_bytes() == b"x" * 1_000_000
    (root / "big").unlink()
    deadline = time.monotonic() + 20
    while True:
        try:
            (root / "small").write_bytes(b"y" * 20_000_000)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert (root / "small").read_bytes() == b"y" * 20_000_000


# ------------------------------------------------------------------ life of the mount


def test_mount_without_master_leaves_nothing_behind(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster(workers=1, mounts=1, start=False)
    cluster.mountpoint(1).mkdir()
    done = cluster.hearth(
        "mount", str(cluster.mountpoint(1)), "--master", cluster.master_address, "--foreground", timeout_s=40
    )
    assert done.returncode == 1
    assert cluster.master_address in done.stderr
    assert not os.path.ismount(cluster.mountpoint(1))
    assert os.listdir(cluster.mountpoint(1)) == []


@pytest.mark.parametrize("place", ["missing", "file"])
def test_bad_mount_point_is_one_clear_line(make_cluster: Make, tmp_path: Path, place: str) -> None:
    cluster = make_cluster(workers=0, mounts=0)
    (tmp_path / "file").touch()
    done = cluster.hearth("mount", str(tmp_path / place), "--master", cluster.master_address, "--foreground")
    assert done.returncode == 1
    assert str(tmp_path / place) in done.stderr
    assert "Traceback" not in done.stderr


def test_term_unmounts_and_ends_also_without_master(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=1)
    root = cluster.mountpoint(1)
    held = (root / "f").open("wb", buffering=0)
    held.write(b"x")
    cluster.kill("master")
    waiting = threading.Thread(target=lambda: subprocess.run(["ls", root / "nothing"], capture_output=True))
    waiting.start()
    begin = time.monotonic()
    cluster.term("mount1", grace_s=10)
    assert time.monotonic() - begin < 10
    assert not os.path.ismount(root)
    waiting.join(20)
    with pytest.raises(OSError):
        held.close()


@pytest.mark.parametrize("how", ["umount", "lazy", "abort"])
def test_daemon_ends_with_its_mount(make_cluster: Make, how: str) -> None:
    cluster = make_cluster(workers=1, mounts=1)
    root = cluster.mountpoint(1)
    (root / "f").write_text("x")
    if how == "umount":
        subprocess.run(["umount", root], check=True)
    elif how == "lazy":
        fd = os.open(root, os.O_RDONLY)
        subprocess.run(["umount", "-l", root], check=True)
        os.close(fd)
    else:
        connection = os.stat(root).st_dev
        Path(f"/sys/fs/fuse/connections/{os.minor(connection)}/abort").write_text("1")
    assert cluster.wait("mount1", 15)
    assert not os.path.ismount(root)


def test_second_mount_over_the_first_is_refused(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=1)
    done = cluster.hearth("mount", str(cluster.mountpoint(1)), "--master", cluster.master_address, "--foreground")
    assert done.returncode == 1
    assert "hearth umount" in done.stderr


def test_memory_does_not_grow(make_cluster: Make) -> None:
    cluster = make_cluster(workers=1, mounts=1)
    root = cluster.mountpoint(1)

    def resident_kib() -> int:
        fields = Path(f"/proc/{cluster.pid('mount1')}/status").read_text()
        return int(fields.split("VmRSS:")[1].split()[0])

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{cluster.pid('mount1')}/fd"))

    def work() -> None:
        for number in range(60):
            (root / f"f{number}").write_bytes(b"x" * 300_000)
            assert len((root / f"f{number}").read_bytes()) == 300_000
        for number in range(60):
            (root / f"f{number}").unlink()

    work()
    work()
    before, open_before = resident_kib(), descriptors()
    for _ in range(4):
        work()
    assert resident_kib() < before + 30_000
    assert descriptors() < open_before + 20


def test_user_mounts_by_fusermount(make_cluster: Make, tmp_path: Path) -> None:
    """A user without root: fusermount3 mounts; allow_other without permission in fuse.conf is explained."""
    cluster = make_cluster(workers=1, mounts=0)
    script = """
import os, sys, idna
from hearthfs.fuse_client import kernel_mount
from hearthfs.common.errors import NotPermitted
from hearthfs.fuse_client.main import serve
from hearthfs.fuse_client.settings import MountSettings
os.setgroups([]); os.setgid(1000); os.setuid(1000)  # nothing is imported from here on: it may be out of reach
place = sys.argv[1]
if not kernel_mount.allow_other_permitted(open("/etc/fuse.conf").read() if os.path.exists("/etc/fuse.conf") else ""):
    try:
        kernel_mount.mount(place, "x", allow_other=True)
        sys.exit("allow_other was allowed")
    except NotPermitted as error:
        assert "user_allow_other" in str(error), error
serve(MountSettings(mountpoint=place, master=sys.argv[2]))
"""
    place = Path("/tmp") / f"hearth-user-{os.getpid()}"
    place.mkdir()
    os.chown(place, 1000, 1000)
    mode = os.stat("/dev/fuse").st_mode
    os.chmod("/dev/fuse", 0o666)  # as udev has it everywhere but in some containers
    token = Path("/tmp") / f"hearth-user-token-{os.getpid()}"
    token.touch(0o600)
    token.write_bytes(Path(os.environ[TOKEN_FILE_VARIABLE]).read_bytes())
    os.chown(token, 1000, 1000)
    command = [sys.executable, "-c", script, str(place), cluster.master_address]
    environment = {**os.environ, TOKEN_FILE_VARIABLE: str(token)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + 30
        while str(place) not in Path("/proc/mounts").read_text():  # root may not stat it
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        become = "import os, sys; os.setgroups([]); os.setgid(1000); os.setuid(1000);"
        probe = "assert os.listdir(sys.argv[1]) == [] and os.stat(sys.argv[1]).st_ino == 1"
        subprocess.run([sys.executable, "-c", become + probe, str(place)], check=True)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=15)[1]
        assert process.returncode == 0, errors
        assert str(place) not in Path("/proc/mounts").read_text()
    finally:
        os.chmod("/dev/fuse", mode)
        process.kill()
        process.communicate()
        subprocess.run(["umount", "-l", place], capture_output=True)
        place.rmdir()
        token.unlink()
