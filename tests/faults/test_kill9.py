"""``kill -9`` of each daemon while writers close files and note them outside the mount.

After the restart every file that was noted is there, whole, on both nodes, and fsck finds nothing.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hearthfs.tests.support import scribe
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.support.scribe import Scribe

from .conftest import check_sound

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1800)]


ALL = ["master", "worker1", "worker2", "mount1", "mount2"]


@pytest.mark.parametrize("victim", ["master", "worker1", "mount1", "all"])
def test_every_noted_file_survives(make_cluster, tmp_path: Path, seed: int, rounds: int, victim: str) -> None:
    cluster = make_cluster(workers=2, mounts=2)
    chance = random.Random(seed)
    restarts, files, errors = [], 0, 0
    for number in range(rounds):
        name = f"round{number}"
        (cluster.mountpoint(2) / name).mkdir()
        notes = [tmp_path / f"{name}-{node}.notes" for node in (1, 2)]
        with (
            Scribe(cluster.mountpoint(1) / name, notes[0], seed + number, "a") as a,
            Scribe(cluster.mountpoint(2) / name, notes[1], seed + number, "b") as b,
        ):
            a.wait_noted(1, 30)
            a.wait_noted(a.noted + chance.randrange(10), 30)
            time.sleep(chance.random() * 0.1)  # the moment of the fault is what is random here
            before = a.noted + b.noted
            victims = ALL if victim == "all" else [victim]
            for each in chance.sample(victims, len(victims)):
                cluster.kill(each)
            time.sleep(chance.choice([0, chance.random()]))
            begin = time.monotonic()
            for each in victims:
                cluster.restart(each)
            restarts.append(time.monotonic() - begin)
            for each in (a, b):
                each.wait_noted(each.noted + 2, 60)
            errors += a.stop()["errors"] + b.stop()["errors"]
        assert before > 0
        files += a.noted + b.noted
        for directory in (cluster.mountpoint(1) / name, cluster.mountpoint(2) / name):
            for each in notes:
                assert scribe.problems(seed + number, each, directory) == [], f"round {number}, {directory}"
        check_sound(cluster)
    check_all(cluster, tmp_path, seed, rounds)
    print(
        f"{victim}: {rounds} rounds, {files} files noted, {errors} errors seen by writers; restart "
        f"{min(restarts):.2f} to {max(restarts):.2f} s, mean {sum(restarts) / len(restarts):.2f} s"
    )


def check_all(cluster: Cluster, tmp_path: Path, seed: int, rounds: int) -> None:
    """Once more at the end, on a node without worker, where every byte comes by gRPC."""
    client = cluster.client(None)
    for number in range(rounds):
        for notes in tmp_path.glob(f"round{number}-*.notes"):
            for name, history in scribe.read_notes(notes).items():
                path = f"/round{number}/{name}"
                data = client.read_bytes(path) if client.exists(path) else None
                assert scribe.problem(seed + number, name, history, data) == ""
