"""Two mounts of one namespace: what one closed, the other opens (promises 2 and 3)."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hearthfs.tests.support.cluster import Cluster

from .conftest import Pair

pytestmark = pytest.mark.mount

LEASE_S = 5.0


def exists(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def test_every_close_is_seen_at_once(pair: Pair) -> None:
    """Also for names that B has just looked up in vain, after overwriting, renaming, removing."""
    for number in range(60):
        name = f"f{number}"
        a, b = pair.a / name, pair.b / name
        assert not exists(b)
        a.write_bytes(b"%d" % number * 10)
        assert b.stat().st_size == len(b"%d" % number * 10)
        assert b.read_bytes() == b"%d" % number * 10
        assert name in os.listdir(pair.b)
        with a.open("ab") as file:
            file.write(b"more")
        assert b.read_bytes() == b"%d" % number * 10 + b"more"
        a.write_bytes(b"x")
        assert b.stat().st_size == 1
        assert b.read_bytes() == b"x"
        a.rename(pair.a / "renamed")
        assert not exists(b)
        assert (pair.b / "renamed").read_bytes() == b"x"
        (pair.a / "renamed").unlink()
        assert not exists(pair.b / "renamed")
        assert os.listdir(pair.b) == []


def test_attributes_and_xattrs_are_seen_at_once(pair: Pair) -> None:
    a, b = pair.a / "f", pair.b / "f"
    a.touch()
    for number in range(20):
        a.chmod(0o600 + number % 8)
        assert b.stat().st_mode & 0o777 == 0o600 + number % 8
        os.setxattr(a, "user.x", b"%d" % number)
        assert os.getxattr(b, "user.x") == b"%d" % number
        os.utime(a, ns=(number, number))
        assert b.stat().st_mtime_ns == number
        (pair.a / f"link{number}").hardlink_to(a)
        assert b.stat().st_nlink == number + 2


def test_a_directory_that_was_only_looked_at_is_no_older_than_others_made_it(pair: Pair) -> None:
    """Looking at a small directory brings its names: what is missing is known then, until somebody makes it."""
    for number in range(20):
        a, b = pair.a / f"d{number}", pair.b / f"d{number}"
        a.mkdir()
        (a / "first").write_bytes(b"1")
        assert b.stat().st_nlink == 2
        assert not exists(b / "second")
        (a / "second").write_bytes(b"2")
        assert (b / "second").read_bytes() == b"2"
        (a / "first").unlink()
        assert not exists(b / "first")


def test_truncate_is_seen_at_once(pair: Pair) -> None:
    a, b = pair.a / "f", pair.b / "f"
    a.write_bytes(b"x" * 100_000)
    for size in (99_999, 5, 70_000, 0):
        assert len(b.read_bytes()) == b.stat().st_size
        os.truncate(a, size)
        assert b.stat().st_size == size
        assert len(b.read_bytes()) == size


def test_directories_renamed_elsewhere(pair: Pair) -> None:
    (pair.a / "d/e").mkdir(parents=True)
    (pair.a / "d/e/f").write_text("x")
    assert (pair.b / "d/e/f").read_text() == "x"
    (pair.a / "d").rename(pair.a / "moved")
    assert not exists(pair.b / "d/e/f")
    assert (pair.b / "moved/e/f").read_text() == "x"


def test_same_name_made_again_is_the_new_file(pair: Pair) -> None:
    for number in range(30):
        data = os.urandom(1 + number * 37)
        (pair.a / "f").unlink(missing_ok=True)
        (pair.a / "f").write_bytes(data)
        with (pair.a / "f").open("ab") as file:
            file.write(b"tail")
        assert (pair.b / "f").stat().st_size == len(data) + 4
        assert (pair.b / "f").read_bytes() == data + b"tail"


def test_reader_keeps_the_version_it_opened(pair: Pair) -> None:
    a, b = pair.a / "f", pair.b / "f"
    old, new = os.urandom(3_000_000), os.urandom(2_000_000)
    a.write_bytes(old)
    with b.open("rb") as reader:
        first = reader.read(100_000)
        a.write_bytes(new)
        assert b.read_bytes() == new  # a new open in the same mount
        assert first + reader.read() == old
        assert os.fstat(reader.fileno()).st_size == len(old)
        a.unlink()
        assert os.pread(reader.fileno(), 1000, 0) == old[:1000]
    assert not exists(b)


def test_open_file_unlinked_elsewhere_lives_on(pair: Pair) -> None:
    for number, size in enumerate((0, 3_000)):
        a, b = pair.a / f"f{number}", pair.b / f"f{number}"
        a.write_bytes(b"x" * size)
        with a.open("r+b", buffering=0) as file:
            b.unlink()
            os.fchmod(file.fileno(), 0o600)
            os.ftruncate(file.fileno(), 7)
            assert file.read() == b"x" * min(size, 7) + bytes(max(0, 7 - size))
            file.write(b"more")
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
            assert (status.st_mode & 0o777, status.st_nlink, status.st_size) == (0o600, 0, 11)
        assert not exists(a)
    (pair.a / "replaced").write_bytes(b"old")
    with (pair.a / "replaced").open("r+b") as file:
        (pair.b / "replaced").write_bytes(b"new")
        (pair.b / "replaced").unlink()
        os.fchmod(file.fileno(), 0o600)
        assert file.read() == b"old"


def test_chmod_by_the_reader_of_a_replaced_version_is_seen_at_once(pair: Pair) -> None:
    """Two nodes of one inode in one mount: the kernel must not remember one's attributes when the other changes."""
    a, b = pair.a / "f", pair.b / "f"
    a.write_bytes(b"old")
    with a.open("rb") as reader:
        for number in range(8):
            b.write_bytes(b"new")
            assert a.stat().st_size == 3
            os.fchmod(reader.fileno(), 0o600 + number)
            assert a.stat().st_mode & 0o777 == 0o600 + number


def test_fsync_of_a_version_that_is_gone(cluster: Cluster, pair: Pair) -> None:
    """Overwritten elsewhere, its block deleted: nothing of it is left to be made durable."""
    size = 123_457
    fd = os.open(pair.a / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * size)
    os.close(os.dup(fd))  # publishes
    (pair.b / "f").write_bytes(b"new")
    deadline = time.monotonic() + 10
    while any(path.stat().st_size == size for path in (cluster.disk(1) / "blocks").glob("??/*")):
        assert time.monotonic() < deadline, "the old version's block is still there"
        time.sleep(0.05)
    os.fsync(fd)
    os.close(fd)
    assert (pair.a / "f").read_bytes() == b"new"


def test_last_close_wins_and_versions_never_mix(pair: Pair) -> None:
    a, b = pair.a / "f", pair.b / "f"
    a.write_bytes(b"o" * 1_500_000)
    with a.open("r+b") as one, b.open("r+b") as two:
        for offset in range(0, 1_500_000, 500_000):
            one.seek(offset)
            one.write(b"1" * 500_000)
            two.seek(offset)
            two.write(b"2" * 500_000)
        one.close()
        assert set(b.read_bytes()) == set(b"1")
        two.close()
    assert set(a.read_bytes()) == set(b"2")
    assert set(b.read_bytes()) == set(b"2")


def test_slow_writer_is_seen_in_whole_steps(pair: Pair) -> None:
    """``(echo a; sleep 1; echo b) > f`` while the other mount reads in a loop."""
    for _ in range(2):
        seen = set()
        writer = subprocess.Popen(["sh", "-c", "(echo a; sleep 0.5; echo b) > f"], cwd=pair.a)
        while writer.poll() is None:
            try:
                seen.add((pair.b / "f").read_bytes())
            except FileNotFoundError:
                seen.add(b"")
        assert (pair.b / "f").read_bytes() == b"a\nb\n"
        assert seen <= {b"", b"a\n", b"a\nb\n"}
        (pair.a / "f").unlink()


def test_two_mounts_create_and_unlink_in_one_directory(pair: Pair) -> None:
    """Nothing stale, no close over 1 s."""
    stop = time.monotonic() + 8
    problems: list[str] = []
    slowest = [0.0]

    def work(ours: Path, theirs: Path, prefix: str) -> None:
        number = 0
        while time.monotonic() < stop:
            number += 1
            name = f"{prefix}{number}"
            fd = os.open(ours / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(fd, name.encode())
            begin = time.monotonic()
            os.close(fd)
            slowest[0] = max(slowest[0], time.monotonic() - begin)
            if (theirs / name).read_bytes() != name.encode():
                problems.append(f"{name}: wrong bytes")
            (theirs / name).unlink()
            if exists(ours / name):
                problems.append(f"{name}: still there")

    threads = [
        threading.Thread(target=work, args=(pair.a, pair.b, "a")),
        threading.Thread(target=work, args=(pair.b, pair.a, "b")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert slowest[0] < 1.0


def test_writer_and_rename_in_many_threads(pair: Pair) -> None:
    """Temporary name, close, rename; the other mount loads it at once: every byte is there."""
    problems: list[str] = []

    def store(thread: int) -> None:
        for number in range(8):
            name = f"{thread}-{number}"
            data = os.urandom(1 + (thread * 8 + number) * 40_009)
            (pair.a / f"{name}.tmp").write_bytes(data)
            (pair.a / f"{name}.tmp").rename(pair.a / name)
            problems.extend(str(side / name) for side in (pair.b, pair.a) if (side / name).read_bytes() != data)

    threads = [threading.Thread(target=store, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_stopped_daemon_delays_one_close_by_the_lease(cluster: Cluster, pair: Pair) -> None:
    (pair.a / "f").write_text("old")
    assert (pair.b / "f").read_text() == "old"
    os.listdir(pair.b)
    cluster.stop("mount2")
    try:
        begin = time.monotonic()
        (pair.a / "f").write_text("new")
        first_s = time.monotonic() - begin
        begin = time.monotonic()
        for number in range(20):
            (pair.a / f"g{number}").write_text("x")
        rest_s = time.monotonic() - begin
    finally:
        cluster.cont("mount2")
    assert first_s < LEASE_S + 1
    assert rest_s < 3
    assert (pair.b / "f").read_text() == "new"
    assert len(os.listdir(pair.b)) == 21
