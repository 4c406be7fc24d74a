"""Daemons that hang (SIGSTOP): what the others wait for, how long, and what the one that comes back believes."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hearthfs.tests.support import scribe
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.support.scribe import Scribe

from .conftest import check_sound, timed

pytestmark = pytest.mark.mount
LEASE_S = 5.0
HANG_S = 8.0


@pytest.fixture
def cluster(make_cluster) -> Cluster:
    return make_cluster(workers=2, mounts=2)


def test_a_hanging_mount_delays_others_once(cluster: Cluster) -> None:
    here, there = cluster.mountpoint(1) / "d", cluster.mountpoint(2) / "d"
    here.mkdir()
    names = [f"f{number}" for number in range(20)]
    for name in [*names, "old", "gone"]:
        (here / name).write_bytes(b"old " + name.encode())
    for name in [*names, "old", "gone"]:  # B has all of it in its caches
        assert (there / name).read_bytes() == b"old " + name.encode()
    assert not (there / "new").exists()
    cluster.stop("mount2")
    with ThreadPoolExecutor(4) as pool:
        _, first_s = timed(lambda: (here / names[0]).write_bytes(b"new " + names[0].encode()))
        assert first_s < LEASE_S + 1.0
        waiting = [pool.submit((there / names[0]).read_bytes), pool.submit((there / names[0]).stat)]
        for name in names[1:]:
            _, seconds = timed(lambda: (here / name).write_bytes(b"new " + name.encode()))  # noqa: B023
            assert seconds < 1.0, f"{name}: it was delayed again"
        (here / "old").rename(here / "new")
        (here / "gone").unlink()
        cluster.cont("mount2")
        begin = time.monotonic()
        for name in names:
            assert (there / name).read_bytes() == b"new " + name.encode()
            assert (there / name).stat().st_size == len(b"new " + name.encode())
        assert (there / "new").read_bytes() == b"old old"
        assert sorted(path.name for path in there.iterdir()) == sorted([*names, "new"])
        assert not (there / "gone").exists()
        assert time.monotonic() - begin < 10
        assert waiting[0].result(10) == b"new " + names[0].encode()
        assert waiting[1].result(10).st_size == len(b"new " + names[0].encode())
    # It goes on as before, at full speed, in both directions.
    for number in range(10):
        (there / f"b{number}").write_bytes(b"%d" % number)
        data, seconds = timed(lambda: (here / f"b{number}").read_bytes())  # noqa: B023
        assert data == b"%d" % number
        assert seconds < 1.0
    check_sound(cluster)


@pytest.mark.parametrize("victim", ["worker1", "master"])
def test_hanging_under_load(cluster: Cluster, tmp_path: Path, seed: int, victim: str) -> None:
    chance = random.Random(seed)
    directory = cluster.mountpoint(1) / "d"
    directory.mkdir()
    notes = [tmp_path / "a", tmp_path / "b"]
    with (
        Scribe(directory, notes[0], seed, "a") as a,
        Scribe(cluster.mountpoint(2) / "d", notes[1], seed, "b") as b,
    ):
        a.wait_noted(3, 30)
        time.sleep(chance.random() * 0.2)
        cluster.stop(victim)
        time.sleep(HANG_S)
        before = a.noted, b.noted
        cluster.cont(victim)
        a.wait_noted(before[0] + 3, 30)
        b.wait_noted(before[1] + 3, 30)
        reports = a.stop(), b.stop()
    if victim == "master":
        assert [report["errors"] for report in reports] == [0, 0], "it was away for less than the timeout of a call"
    for node in (1, 2):
        for each in notes:
            assert scribe.problems(seed, each, cluster.mountpoint(node) / "d") == []
    check_sound(cluster)
