"""Replicas: made as directories ask for them, made again when they are lost or bad, moved when workers are emptied."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
from hearthfs.client.client import Client
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.tests.support.cluster import Cluster

from .conftest import block_files, check_sound, wait_for

LONG_ROUNDS = 20
"""From ``--rounds 20`` on the tests run with default settings, at the sizes of the record."""
QUICK = {"master": {"worker_suspect_s": 1.0, "worker_lost_s": 3.0, "repair_scan_s": 2.0}}


@pytest.fixture
def long(rounds: int) -> bool:
    return rounds >= LONG_ROUNDS


def settings(long: bool, **more: dict[str, object]) -> dict[str, dict[str, object]]:
    return {**({} if long else QUICK), **more}


def replicated(cluster: Cluster, directory: str = "/d", count: int = 2, *options: str) -> str:
    assert cluster.hearth("mkdir", directory).returncode == 0
    done = cluster.hearth("replicas", directory, str(count), *options)
    assert done.returncode == 0, done.stderr
    return directory


def contents(seed: int, count: int, size: int = CHUNK_BYTES + 4321) -> dict[str, bytes]:
    chance = random.Random(seed)
    return {f"f{number:03d}": chance.randbytes(size + number) for number in range(count)}


def put(client: Client, files: dict[str, bytes], directory: str = "/d") -> None:
    assert set(client.put_many(list(files), list(files.values()), directory=directory)) == {None}


def holders(client: Client, name: str, directory: str = "/d") -> set[str]:
    return {each.worker_id for each in client.locate(f"{directory}/{name}") if not each.suspect}


def check_read(client: Client, files: dict[str, bytes], directory: str = "/d") -> None:
    buffers = [bytearray(len(data)) for data in files.values()]
    errors = client.get_many(list(files), buffers, directory=directory, timeout_s=20)
    assert errors == [None] * len(files)
    assert [bytes(each) for each in buffers] == list(files.values())


def wait_replicated(
    client: Client, files: dict[str, bytes], count: int = 2, directory: str = "/d", timeout_s: float = 60.0
) -> float:
    """Until each file has so many live replicas; the seconds it took."""
    begin = time.monotonic()
    for name in files:
        wait_for(f"{count} replicas of {name}", lambda: len(holders(client, name, directory)) >= count, timeout_s)  # noqa: B023
    return time.monotonic() - begin


def status(cluster: Cluster) -> dict:
    done = cluster.hearth("status", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ------------------------------------------------------------------ made as asked for


def test_a_directory_asks_and_those_below_inherit(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=3, settings=QUICK)
    client, files = cluster.client(1), contents(seed, 5)
    replicated(cluster)
    client.mkdir("/d/below")
    client.mkdir("/plain")
    for directory in ("/d", "/d/below", "/plain"):
        put(client, files, directory)
    wait_replicated(client, files)
    wait_replicated(client, files, directory="/d/below")
    assert all(holders(client, name, "/plain") == {"node1"} for name in files)
    # Asked for later: what is there gets its replicas too.
    assert cluster.hearth("replicas", "/plain", "3").stdout == "/plain: 3, background\n"
    wait_replicated(client, files, 3, "/plain")
    check_sound(cluster)


def test_a_close_waits_for_replicas(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=2, settings=QUICK)
    client, files = cluster.client(1), contents(seed, 8)
    replicated(cluster, "/d", 2, "--before-close")
    begin = time.monotonic()
    put(client, files)
    assert all(holders(client, name) == {"node1", "node2"} for name in files)
    with client.open("/d/one", "wb") as file:
        file.write(files["f000"])
    assert holders(client, "one") == {"node1", "node2"}
    print(f"two closes with 2 replicas: {time.monotonic() - begin:.3f} s")
    # With fewer workers there are as many replicas as there can be, and nobody waits for more.
    cluster.kill("worker2")
    wait_for("the loss", lambda: [each["state"] for each in status(cluster)["workers"]] == ["live", "lost"])
    begin = time.monotonic()
    put(client, contents(seed + 1, 1))
    assert time.monotonic() - begin < 3


@pytest.mark.mount
def test_a_close_through_a_mount_waits_too(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=2, mounts=1, settings=QUICK)
    replicated(cluster, "/d", 2, "--before-close")
    here = cluster.mountpoint(1) / "d"
    assert os.getxattr(here, "hearth.replicas") == b"2"
    (here / "below").mkdir()
    assert os.getxattr(here / "below", "hearth.replicate") == b"before_close"
    with pytest.raises(OSError, match="Invalid argument"):
        os.setxattr(here, "hearth.replicas", b"many")
    (here / "f").write_bytes(b"x" * 100_000)
    assert holders(cluster.client(1), "f") == {"node1", "node2"}


# ------------------------------------------------------------------ made again


@pytest.mark.mount
def test_a_worker_is_killed_for_good(make_cluster: Callable[..., Cluster], seed: int, long: bool) -> None:
    cluster = make_cluster(workers=3, mounts=3, settings=settings(long))
    client, files = cluster.client(1), contents(seed, 100 if long else 20)
    replicated(cluster)
    put(client, files)
    wait_replicated(client, files)
    cluster.kill("worker1")
    begin = time.monotonic()
    reader = cluster.client(3)
    check_read(reader, files)  # from the first moment on
    for name, data in files.items():
        assert (cluster.mountpoint(2) / "d" / name).read_bytes() == data
    wait_for("the loss", lambda: status(cluster)["workers"][0]["state"] == "lost", 60)
    for name in files:
        wait_for(f"2 replicas of {name}", lambda: holders(reader, name) == {"node2", "node3"}, 60)  # noqa: B023
    print(f"{len(files)} files remade {time.monotonic() - begin:.1f} s after the worker was killed")
    assert time.monotonic() - begin < 60
    assert status(cluster)["unavailable_files"] == 0
    check_read(reader, files)
    check_sound(cluster, warnings=True)
    done = cluster.hearth("worker", "drain", "node1", "--forget")
    assert done.returncode == 0, done.stderr
    assert [each["id"] for each in status(cluster)["workers"]] == ["node2", "node3"]
    check_sound(cluster)


def test_a_master_killed_during_repair_forgets_nothing(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=3, settings=QUICK)
    client, files = cluster.client(1), contents(seed, 40, 200_000)
    replicated(cluster)
    put(client, files)
    wait_replicated(client, files)
    cluster.kill("worker1")
    reader = cluster.client(2)
    wait_for("repair to begin", lambda: any(len(holders(reader, name) - {"node1"}) == 2 for name in files), 30)
    cluster.kill("master")
    cluster.start("master")
    for name in files:
        wait_for(f"2 replicas of {name}", lambda: holders(reader, name) == {"node2", "node3"}, 60)  # noqa: B023
    check_read(reader, files)


def flip(path: Path, chance: random.Random) -> None:
    path.chmod(0o600)
    with path.open("r+b", buffering=0) as file:
        at = chance.randrange(path.stat().st_size)
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ (1 << chance.randrange(8))]), at)


@pytest.mark.mount
def test_flipped_bytes_are_found_and_made_good(make_cluster: Callable[..., Cluster], seed: int, long: bool) -> None:
    """One byte in each of many blocks: some while their worker is down, some while it is up and they are closed. A
    third each is then read through a mount, by descriptor and by gRPC, and some by nobody but the scrubber."""
    scrub = {"scrub_cycle_s": 10.0 if long else 4.0, "scrub_pause_pressure": 0}
    cluster = make_cluster(workers=3, mounts=1, settings=settings(long, worker=scrub))
    client, files = cluster.client(1), contents(seed, 100 if long else 24)
    chance = random.Random(seed)
    replicated(cluster)
    put(client, files)
    wait_replicated(client, files)
    names_of = {f"{client.entry(f'/d/{name}').extents[0].block:016x}": name for name in files}
    paths = {names_of[path.name.partition(".")[0]]: path for path in block_files(cluster, 1)}
    assert paths.keys() == files.keys()
    names = list(files)
    down, up, unread = names[: len(names) // 3], names[len(names) // 3 : 2 * len(names) // 3], names[-len(names) // 3 :]
    sound = {name: path.read_bytes() for name, path in paths.items()}
    cluster.term("worker1")
    for name in down:
        flip(paths[name], chance)
    cluster.start("worker1")
    wait_for("worker 1", lambda: status(cluster)["workers"][0]["state"] == "live")
    for name in (*up, *unread):
        flip(paths[name], chance)
    begin = time.monotonic()
    remote, wrong = cluster.client(None), []
    for number, name in enumerate([*down, *up]):
        if number % 3 == 0:
            data = (cluster.mountpoint(1) / "d" / name).read_bytes()
        else:
            memory = bytearray(len(files[name]))
            assert (client if number % 3 == 1 else remote).get_many([f"/d/{name}"], [memory]) == [None]
            data = bytes(memory)
        if data != files[name]:
            wrong.append(name)
    assert wrong == []

    def is_sound(name: str) -> bool:
        """Two replicas, or more, of which none is the damaged file. (Inode numbers are used again: bytes tell.)"""
        having, path = holders(client, name), paths[name]
        return len(having) >= 2 and ("node1" not in having or (path.exists() and path.read_bytes() == sound[name]))

    for name in files:
        wait_for(f"good replicas of {name}", lambda: is_sound(name), 60)  # noqa: B023
    print(f"{len(files)} flipped blocks found and remade in {time.monotonic() - begin:.1f} s")
    assert time.monotonic() - begin < 30 + scrub["scrub_cycle_s"]
    assert len(list((cluster.disk(1) / "bad").iterdir())) == 8  # kept to be looked at, within the bound
    for each in (client, remote):
        check_read(each, files)
    check_sound(cluster)


@pytest.mark.mount
def test_a_worker_hangs_under_read_load(make_cluster: Callable[..., Cluster], seed: int, long: bool) -> None:
    # Mounts forget closed files at once: each read opens its block anew.
    cluster = make_cluster(workers=2, mounts=2, settings={"mount": {"warm_files": 1}})
    client, files = cluster.client(1), contents(seed, 12, 300_000)
    replicated(cluster)
    put(client, files)
    wait_replicated(client, files)
    readers = {
        "sdk at home": sdk_read(cluster.client(1), files),
        "sdk elsewhere": sdk_read(cluster.client(None), files),
        "mount at home": mount_read(cluster.mountpoint(1) / "d", files),
        "mount elsewhere": mount_read(cluster.mountpoint(2) / "d", files),
    }
    worst, errors, counts, ended = dict.fromkeys(readers, 0.0), [], dict.fromkeys(readers, 0), Event()

    def load(what: str, read: Callable[[str], object]) -> None:
        chance = random.Random(f"{seed} {what}")
        while not ended.is_set():
            name, begin = chance.choice(list(files)), time.monotonic()
            try:
                read(name)
            except (OSError, AssertionError) as error:
                errors.append((what, name, repr(error)[:300]))
            worst[what] = max(worst[what], time.monotonic() - begin)
            counts[what] += 1

    threads = [Thread(target=load, args=item) for item in readers.items()]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)
        cluster.stop("worker1")
        time.sleep(30 if long else 8)
        cluster.cont("worker1")
        time.sleep(2)
    finally:
        cluster.cont("worker1")
        ended.set()
        for thread in threads:
            thread.join()
    print(f"reads {counts}; worst, s: { {what: round(seconds, 2) for what, seconds in worst.items()} }")
    assert errors == []
    assert max(worst.values()) < 5
    check_sound(cluster)


def sdk_read(client: Client, files: dict[str, bytes]) -> Callable[[str], None]:
    def read(name: str) -> None:
        memory = bytearray(len(files[name]))
        (error,) = client.get_many([name], [memory], directory="/d")
        assert error is None, error
        assert memory == files[name]

    return read


def mount_read(directory: Path, files: dict[str, bytes]) -> Callable[[str], None]:
    def read(name: str) -> None:
        with (directory / name).open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            data = b"".join(iter(lambda: file.read(1 << 20), b""))
        assert data == files[name]

    return read


# ------------------------------------------------------------------ moved


def test_drain_empties_a_worker(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=3, settings=QUICK)
    client, files, twice = cluster.client(1), contents(seed, 30, 100_000), contents(seed + 1, 10, 100_000)
    client.mkdir("/plain")
    put(client, files, "/plain")
    replicated(cluster)
    put(client, twice)
    wait_replicated(client, twice)
    assert {name: holders(client, name, "/plain") for name in files} == {name: {"node1"} for name in files}
    done = cluster.hearth("worker", "drain", "node1", "--wait", "--timeout", "60")
    assert (done.returncode, done.stdout) == (0, "node1: empty\n"), done.stderr
    assert block_files(cluster, 1) == []
    assert "drained: empty" in cluster.hearth("status").stdout
    assert all("node1" not in holders(client, name, "/plain") for name in files)
    assert {name: holders(client, name) for name in twice} == {name: {"node2", "node3"} for name in twice}
    put(client, {"new": b"new"}, "/plain")
    assert holders(client, "new", "/plain") <= {"node2", "node3"}
    assert cluster.hearth("worker", "drain", "nobody").returncode == 1
    cluster.kill("worker1")
    check_read(cluster.client(2), files, "/plain")
    check_read(cluster.client(2), twice)
    assert cluster.hearth("worker", "drain", "node1", "--forget").returncode == 0
    check_sound(cluster)


def test_drain_survives_a_restart_and_can_be_called_off(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=2, settings=QUICK)
    client, files = cluster.client(1), contents(seed, 5, 100_000)
    client.mkdir("/plain")
    assert cluster.hearth("worker", "drain", "node1").returncode == 0
    cluster.restart("master")
    cluster.restart("worker1")
    wait_for("the worker", lambda: status(cluster)["workers"][0]["state"] == "live")
    put(client, files, "/plain")
    assert all(holders(client, name, "/plain") == {"node2"} for name in files)
    assert cluster.hearth("worker", "drain", "node1", "--stop").returncode == 0
    put(client, files, "/plain")
    assert all(holders(client, name, "/plain") == {"node1"} for name in files)


def test_rebalance_evens_workers_out(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=3, disk_bytes=64 << 20, settings=QUICK)
    client, files = cluster.client(1), contents(seed, 40, CHUNK_BYTES)
    client.mkdir("/plain")
    for item in files.items():  # one by one they stay at home
        put(client, dict([item]), "/plain")
    wait_for("heartbeats", lambda: used(cluster)[0] > 0.5)
    done = cluster.hearth("worker", "rebalance", "--to-within", "10", "--wait", "--timeout", "60")
    assert (done.returncode, done.stdout) == (0, "balanced\n"), done.stderr
    wait_for("heartbeats", lambda: max(used(cluster)) - min(used(cluster)) < 0.25)
    assert abs(sum(used(cluster)) - 40 / 64) < 0.1  # moved, not copied
    check_read(cluster.client(2), files, "/plain")
    check_sound(cluster)


def used(cluster: Cluster) -> list[float]:
    disks = [worker["disks"][0] for worker in status(cluster)["workers"]]
    return [disk["used_bytes"] / disk["capacity_bytes"] for disk in disks]


# ------------------------------------------------------------------ fsck --repair


def test_fsck_has_replicas_made_good(make_cluster: Callable[..., Cluster], seed: int) -> None:
    cluster = make_cluster(workers=2, settings={**QUICK, "worker": {"report_s": 600}})
    client, files = cluster.client(1), contents(seed, 6, 100_000)
    replicated(cluster)
    put(client, files)
    wait_replicated(client, files)
    # The master is told wrong things of the workers: replicas that are not there, and none where there are.
    for path in block_files(cluster, 1)[:2]:
        path.unlink()
    cluster.client(1).get_many(list(files), [bytearray(len(data)) for data in files.values()], directory="/d")
    done = cluster.hearth("fsck", "--repair", "--json", "--settle", "1")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["findings"] == []
    assert cluster.hearth("fsck").stdout == "clean\n"
    wait_replicated(client, files)
    cluster.kill("worker2")
    wait_for("the loss", lambda: status(cluster)["workers"][1]["state"] == "lost")
    done = cluster.hearth("fsck", "--repair", "--settle", "0.2", "--timeout", "1")
    assert done.returncode == 3
    assert "did not answer" in done.stdout
