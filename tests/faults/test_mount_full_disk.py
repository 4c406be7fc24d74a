"""Disks that fill up under a mount: the writer hears ENOSPC, nothing is torn, and deleting makes room."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from hearthfs.tests.support.cluster import Cluster

from .conftest import check_sound, outcome, wait_for

pytestmark = pytest.mark.mount
MIB = 1 << 20
FILLS = 5


@pytest.mark.parametrize("disk", ["tmpfs", "dir"], ids=["small disk", "small capacity"])
def test_filled_five_times(make_cluster, seed: int, disk: str) -> None:
    cluster = make_cluster(
        workers=1, mounts=1, disk=disk, disk_bytes=24 * MIB, settings={"worker": {"free_floor": "1MiB", "lease_s": 2}}
    )
    chance = random.Random(seed)  # a short lease: what a remote reader had open is free only when it ends
    for number in range(FILLS):
        directory = cluster.mountpoint(1) / f"fill{number}"
        directory.mkdir()
        contents = fill(directory, chance)
        stored = sum(map(len, contents.values()))
        assert stored > 6 * MIB  # the rest may be on its way from deleted to free
        check_files(cluster, directory, contents)
        # An old version stays when there is no room for a new one.
        name = max(contents, key=lambda each: len(contents[each]))
        assert outcome(partial(write, directory / name, bytes(20 * MIB))) == "ENOSPC"
        assert (directory / name).read_bytes() == contents[name]
        for path in directory.iterdir():
            path.unlink()
        again = partial(write, directory / "again", bytes(10 * MIB))
        wait_for("room", lambda again=again: outcome(again) == "ok")
        assert (directory / "again").read_bytes() == bytes(10 * MIB)
        (directory / "again").unlink()
        wait_for("all room", lambda: free_bytes(cluster) > 16 * MIB)
    check_sound(cluster)


def free_bytes(cluster: Cluster) -> int:
    space = os.statvfs(cluster.mountpoint(1))
    return space.f_bavail * space.f_frsize


def fill(directory: Path, chance: random.Random) -> dict[str, bytes]:
    """Files until three writes in a row found no room; returns those that were closed."""
    contents: dict[str, bytes] = {}
    refused = 0
    while refused < 3:
        name, data = f"f{len(contents)}-{refused}", chance.randbytes(chance.randrange(3 * MIB))
        result = outcome(partial(write, directory / name, data))
        assert result in ("ok", "ENOSPC")
        if result == "ok":
            contents[name], refused = data, 0
        else:
            refused += 1
        assert len(contents) < 200, "it never fills"
    return contents


def write(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view[:MIB]) :]


def check_files(cluster: Cluster, directory: Path, contents: dict[str, bytes]) -> None:
    """By the mount and by the SDK: what was closed is right, what was refused is absent or empty."""
    client = cluster.client(None)
    for path in directory.iterdir():
        expected = contents.get(path.name, b"")
        assert path.read_bytes() == expected
        assert client.read_bytes(f"/{directory.name}/{path.name}") == expected
    assert set(contents) <= {path.name for path in directory.iterdir()}
