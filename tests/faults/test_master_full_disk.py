"""The disk of the master is full: what grows is refused with ENOSPC, reads and deletes go on, and it comes back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hearthfs.common.errors import NoSpace
from hearthfs.tests.support.cluster import Cluster

from .conftest import check_sound, wait_for

MIB = 1 << 20
VALUE = bytes(60_000)
FILLS = 2


@pytest.fixture
def cluster(tmp_path: Path):
    settings = {"master": {"reserve_bytes": 6 * MIB, "journal_retention_records": 100}}
    cluster = Cluster(tmp_path / "cluster", workers=1, settings=settings, start=False)
    data = cluster.data()
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "hearth-test", str(data)], check=True)
    try:
        with cluster:
            cluster.start("master")
            cluster.start("worker1")
            yield cluster
    finally:
        subprocess.run(["umount", str(data)], check=True)


def test_metadata_that_fill_a_disk(cluster: Cluster) -> None:
    client = cluster.client(1)
    client.write_bytes("/witness", b"here")
    for number in range(FILLS):
        directory = f"/fill{number}"
        client.mkdir(directory)
        made = fill(client, directory)
        assert made > 20
        for grows in (lambda: client.mkdir("/more"), lambda: client.write_bytes("/other", b"x")):
            with pytest.raises(NoSpace):
                grows()
        assert client.read_bytes("/witness") == b"here"
        assert len(client.listdir(directory)) >= made
        if number:  # also after a death in this state
            cluster.kill("master")
            cluster.restart("master")
            assert client.read_bytes("/witness") == b"here"
        client.rmtree(directory)
        wait_for("room", lambda: has_room(client), 40)
    client.write_bytes("/other", b"x")
    assert client.read_bytes("/other") == b"x"
    check_sound(cluster)


def fill(client, directory: str) -> int:
    for made in range(2000):
        try:
            client.mkdir(f"{directory}/{made}")
            client.setxattr(f"{directory}/{made}", "user.fill", VALUE)
        except NoSpace:
            return made
    raise AssertionError("it never fills")


def has_room(client) -> bool:
    try:
        client.mkdir("/room")
    except NoSpace:
        return False
    client.rmdir("/room")
    return True
