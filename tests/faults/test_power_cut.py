"""A node's power is cut: what its filesystem had not written is lost, and so are all processes on it."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from hearthfs.client.client import Client
from hearthfs.common.errors import HearthError
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.support.loop_disk import LoopDisk

from .conftest import check_logs, check_sound, wait_for

pytestmark = [pytest.mark.mount, pytest.mark.timeout(3600)]

DISK_BYTES = 256 << 20
SIZES = (0, 1, 4096, 70_001, 1 << 20, (1 << 20) + 1)
Make = Callable[..., Cluster]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], LoopDisk]]:
    """Makes the place of a daemon's data in the cluster that is made next."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(LoopDisk(tmp_path / "cluster1" / name, DISK_BYTES))


class Writer(Thread):
    """Writes files until the first error, through SDK and mount in turn, every other one synced. ``noted``: name to
    bytes and whether they were synced, of calls that returned."""

    def __init__(self, client: Client, mounted: Path | None, directory: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._client, self._mounted, self._directory = client, mounted, directory
        self._chance = random.Random(f"{seed} {directory}")
        self.noted: dict[str, tuple[bytes, bool]] = {}
        self.tried = ""
        self.error: Exception | None = None

    def run(self) -> None:
        number = 0
        try:
            while True:
                name = f"{self._directory}/f{number}"
                data, synced = self._chance.randbytes(self._chance.choice(SIZES)), number % 2 == 0
                self.tried = name
                self._write(name, data, synced, by_mount=self._mounted is not None and number % 4 < 2)
                self.noted[name] = (data, synced)
                number += 1
        except (OSError, HearthError) as error:
            self.error = error

    def _write(self, name: str, data: bytes, synced: bool, *, by_mount: bool) -> None:
        if not by_mount:
            self._client.write_bytes(name, data, sync=synced)
            return
        assert self._mounted is not None
        with (self._mounted / name.lstrip("/")).open("wb", buffering=0) as file:
            file.write(data)
            if synced:
                os.fsync(file)


def test_the_disk_of_a_worker_keeps_what_was_synced(make_cluster: Make, disk, seed: int, rounds: int) -> None:
    """Files that were only closed are whole, or not to be had; none has wrong bytes; the worker starts by itself."""
    power = disk("worker1-disk1")
    cluster = make_cluster(workers=2, mounts=2, settings={"worker": {"unknown_delay_s": 1.0}})
    chance, synced, closed, lost = random.Random(seed), 0, 0, 0
    for number in range(rounds):
        directory = f"/round{number}"
        (cluster.mountpoint(2) / directory[1:]).mkdir()
        client = cluster.client(1, timeout_s=5.0)
        writer = Writer(client, cluster.mountpoint(1), directory, seed)
        writer.start()
        wait_for("files", lambda noted=writer.noted: len(noted) >= 4)
        time.sleep(chance.random())
        power.cut()
        cluster.kill("worker1")
        cluster.kill("mount1")
        writer.join(60)
        assert writer.error is not None
        client.close()
        cluster.unmount(1)
        power.power_on()
        cluster.start("worker1")
        cluster.start("mount1")
        gone = check_files(cluster, writer)
        synced += sum(was_synced for _, was_synced in writer.noted.values())
        closed += sum(not was_synced for _, was_synced in writer.noted.values())
        lost += len(gone)
        for name in gone:
            cluster.client(2).unlink(name)
        check_sound(cluster)
    print(f"{rounds} rounds: {synced} files synced, all there; {closed} only closed, {lost} of them lost")


def check_files(cluster: Cluster, writer: Writer) -> list[str]:
    """Those that cannot be had any more."""
    remote, gone = cluster.client(None), []
    for name, (data, synced) in writer.noted.items():
        if not synced:
            try:
                assert remote.read_bytes(name) == data, name
            except HearthError:
                gone.append(name)
        else:
            assert remote.read_bytes(name) == data, name
    if writer.tried not in writer.noted and remote.exists(writer.tried):
        with contextlib.suppress(HearthError):
            assert len(remote.read_bytes(writer.tried)) in SIZES
        remote.unlink(writer.tried)
    return gone


def test_the_disk_of_the_master_keeps_what_was_acknowledged(make_cluster: Make, disk, seed: int, rounds: int) -> None:
    power = disk("master")
    cluster = make_cluster(workers=2)
    chance, acknowledged = random.Random(seed), 0
    for number in range(rounds):
        directory = f"/round{number}"
        cluster.client(2).mkdir(directory)
        with contextlib.ExitStack() as stack:
            writers = []
            for each in range(3):
                client = stack.enter_context(cluster.client(chance.choice([1, 2]), timeout_s=2.0))
                client.mkdir(f"{directory}/{each}")
                writers.append(Writer(client, None, f"{directory}/{each}", seed))
                writers[-1].start()
            wait_for("files", lambda writers=writers: all(len(writer.noted) >= 2 for writer in writers))
            time.sleep(chance.random() * 0.5)
            power.cut()
            stopped_by_itself = cluster.wait("master", 10)  # it cannot commit any more
            cluster.kill("master")
            for writer in writers:
                writer.join(60)
        assert stopped_by_itself
        power.power_on()
        cluster.start("master")
        for writer in writers:
            for name, (data, _) in writer.noted.items():
                assert cluster.client(None).read_bytes(name) == data, name
            acknowledged += len(writer.noted)
        check_sound(cluster)
    check_logs(cluster)
    print(f"{rounds} rounds: {acknowledged} files acknowledged, all there")
