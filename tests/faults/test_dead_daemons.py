"""Daemons that are gone: what still works, what fails, and that nothing waits for ever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hearthfs.common.errors import HearthError
from hearthfs.tests.support.cluster import Cluster

from .conftest import check_sound, outcome, timed, wait_for

pytestmark = pytest.mark.mount
DATA = random.Random(11).randbytes((6 << 20) + 321)
TIMEOUT_S = 4.0
MARGIN_S = 3.0


@pytest.fixture
def cluster(make_cluster) -> Cluster:
    return make_cluster(workers=2, mounts=2, settings={"mount": {"timeout_s": TIMEOUT_S}})


def test_a_dead_worker(cluster: Cluster) -> None:
    here, there = cluster.mountpoint(1), cluster.mountpoint(2)
    (here / "kv").mkdir()
    names = [f"f{number}" for number in range(3)]
    for name in names:
        (here / "kv" / name).write_bytes(DATA)
    (there / "kv/other").write_bytes(DATA)
    client = cluster.client(2)
    cluster.kill("worker1")
    # Its only copies: EIO by the mount, in bounded time, from the first moment on.
    result, seconds = timed(lambda: outcome((there / "kv/f0").read_bytes))
    assert result == "EIO"
    assert seconds < TIMEOUT_S + MARGIN_S
    # A miss for those who ask in batches.
    wait_for("misses", lambda: client.lookup_many("/kv", names).hits == 0, 10)
    errors, seconds = timed(lambda: client.get_many(names, [bytearray(len(DATA)) for _ in names], directory="/kv"))
    assert all(isinstance(error, HearthError) for error in errors)
    assert seconds < 5
    # What others have is not touched, new files find another place, also for the node whose worker is dead.
    assert (here / "kv/other").read_bytes() == DATA
    (here / "kv/new").write_bytes(DATA[:100])
    assert (there / "kv/new").read_bytes() == DATA[:100]
    # And it can be stored again.
    assert client.put_many(["f0"], [DATA[::-1]], directory="/kv") == [None]
    (there / "kv/f1").write_bytes(DATA[::-1])
    assert client.lookup_many("/kv", names).found == [True, True, False]
    for name in ("f0", "f1"):
        assert (there / "kv" / name).read_bytes() == DATA[::-1]
        assert (here / "kv" / name).read_bytes() == DATA[::-1]
    check_sound(cluster, warnings=True)
    cluster.restart("worker1")
    wait_for("the old copy", lambda: client.lookup_many("/kv", names).hits == 3)
    assert (there / "kv/f2").read_bytes() == DATA
    assert (there / "kv/f0").read_bytes() == DATA[::-1]
    check_sound(cluster)


def test_a_dead_master(cluster: Cluster) -> None:
    here = cluster.mountpoint(1)
    (here / "f").write_bytes(DATA)
    with (here / "f").open("rb", buffering=0) as file, ThreadPoolExecutor(8) as pool:
        assert file.read(1000) == DATA[:1000]
        cluster.kill("master")
        time.sleep(6)  # more than a session lease: nothing that the kernel cached is valid any more
        forget_pages_of(file.fileno())
        data, seconds = timed(lambda: DATA[:1000] + read_rest(file))
        assert data == DATA
        assert seconds < 2, "an open file needs no master"
        calls = [
            lambda: os.stat(here / "nobody"),
            lambda: os.listdir(here),
            lambda: (here / "new").write_bytes(b"x"),
            lambda: (here / "f").rename(here / "g"),
            lambda: (here / "f").unlink(),
            lambda: (here / "d").mkdir(),
            lambda: os.statvfs(here),
        ]
        for result, seconds in pool.map(lambda call: timed(lambda: outcome(call)), calls):
            assert result == "EIO"
            assert seconds < TIMEOUT_S + MARGIN_S
        check_killable(here)
        assert file.read(1) == b""
    cluster.restart("master")
    wait_for("the mount to go on", lambda: outcome(lambda: (here / "again").write_bytes(DATA)) == "ok", 10)
    assert (here / "f").read_bytes() == DATA
    # The other mount connects again by itself, too; a call of it may give up before that.
    again = cluster.mountpoint(2) / "again"
    wait_for("the other mount to go on", lambda: outcome(again.stat) == "ok", 10)
    assert again.read_bytes() == DATA
    check_sound(cluster)


def forget_pages_of(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def read_rest(file) -> bytes:
    parts = []
    while part := file.read(1 << 20):
        parts.append(part)
    return b"".join(parts)


def check_killable(directory: Path) -> None:
    """A program that waits for the mount ends when it is killed."""
    program = f"import os; print(flush=True); os.stat({str(directory / 'x')!r})"
    waiting = subprocess.Popen([sys.executable, "-IS", "-c", program], stdout=subprocess.PIPE)
    try:
        assert waiting.stdout is not None
        waiting.stdout.readline()
        waiting.send_signal(signal.SIGKILL)
        waiting.wait(TIMEOUT_S + MARGIN_S)
    finally:
        waiting.kill()
        waiting.stdout.close()


@pytest.mark.parametrize("dead", ["master", "worker1", "all"])
def test_leaving_a_mount_whose_cluster_is_dead(cluster: Cluster, dead: str) -> None:
    """``hearth umount`` and SIGTERM end in bounded time, also with a file being written and calls waiting."""
    here = cluster.mountpoint(1)
    (here / "f").write_bytes(DATA)
    with ThreadPoolExecutor(4) as pool, (here / "new").open("wb", buffering=0) as file:
        file.write(DATA[:100_000])
        for name in ["master", "worker1", "worker2"] if dead == "all" else [dead]:
            cluster.kill(name)
        waiting = pool.submit(outcome, lambda: os.stat(here / "nobody"))
        begin = time.monotonic()
        cluster.term("mount1", TIMEOUT_S + 6)
        assert time.monotonic() - begin < TIMEOUT_S + 6
        assert waiting.result(MARGIN_S) in ("ENOENT", "EIO", "ENOTCONN", "ECONNABORTED")
        outcome(file.close)
    assert str(here) not in Path("/proc/self/mountinfo").read_text()
    done, seconds = timed(lambda: cluster.hearth("umount", str(cluster.mountpoint(2))))
    assert done.returncode == 0, done.stderr
    assert seconds < 10
    assert cluster.wait("mount2", 10)
    assert str(cluster.mountpoint(2)) not in Path("/proc/self/mountinfo").read_text()
