"""A worker that is filled ten times over: cache directories make room by themselves, others say ENOSPC; nothing is
torn, nothing is lost that may not go, deletes work."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hearthfs.client.client import Client
from hearthfs.client.mount_root import MountRoot
from hearthfs.common.errors import NoSpace, QuotaExceeded
from hearthfs.connector.hearth import HearthStore
from hearthfs.tests.support.cluster import Cluster

from .conftest import check_sound, outcome, wait_for

MIB = 1 << 20
DISK_BYTES = 64 * MIB
FILLS = 10
NAMES = ("open", "leased", "pinned", "other")


@pytest.fixture
def small(make_cluster: Callable[..., Cluster]) -> Cluster:
    """One worker of 64 MiB."""
    return make_cluster(
        workers=1, disk_bytes=DISK_BYTES, settings={"worker": {"free_floor": "1MiB", "lease_s": 2}}, telemetry=True
    )


def keep_ordinary(client: Client) -> dict[str, bytes]:
    """Some files that may not go, the oldest of all."""
    kept = {f"/plain/{number}": random.Random(number).randbytes(MIB) for number in range(6)}
    assert client.put_many(list(kept), list(kept.values())) == [None] * len(kept)
    client.mkdir("/pinned")
    client.setxattr("/pinned", "hearth.cache", b"1")
    client.setxattr("/pinned", "hearth.pin", b"1")
    pinned = {f"/pinned/{number}": bytes([number]) * MIB for number in range(2)}
    assert client.put_many(list(pinned), list(pinned.values())) == [None] * len(pinned)
    return kept | pinned


def check_kept(client: Client, kept: dict[str, bytes]) -> None:
    for path, data in kept.items():
        assert client.read_bytes(path) == data


def evicted(cluster: Cluster) -> int:
    import json

    status = json.loads(cluster.hearth("status", "--json").stdout)
    return sum(each["files"] for each in status["evicted"])


def test_ten_times_by_the_connectors_store(small: Cluster, seed: int) -> None:
    """As the engine's stores do it: chunks with a depth, in batches, none waited for."""
    client, chance = small.client(1), random.Random(seed)
    kept = keep_ordinary(client)
    client.makedirs("/kv")
    client.setxattr("/kv", "hearth.cache", b"1")
    found = MountRoot(cluster_id="", master=small.master_address, node_id="node1", worker_socket="", path="/kv")
    store = HearthStore(client, found, "/no mount")
    written: dict[str, bytes] = {}
    refused = 0
    for batch in range(FILLS * DISK_BYTES // (8 * MIB)):
        chunks = {f"{batch:03}-{depth:02}.kv": chance.randbytes(MIB) for depth in range(8)}
        views = [memoryview(data) for data in chunks.values()]
        errors = store.store("model/0", list(chunks), views, 10.0, replace=False, depths=range(8))
        assert {type(error) for error in errors} <= {type(None), NoSpace}
        refused += sum(error is not None for error in errors)
        written |= {name: data for (name, data), error in zip(chunks.items(), errors, strict=True) if error is None}
    assert refused == 0
    check_kept(client, kept)
    names = sorted(client.listdir("/kv/model/0"))
    assert len(names) > 20
    assert names[-1].startswith(f"{FILLS * DISK_BYTES // (8 * MIB) - 1:03}")  # the newest are there
    check_whole(client, "/kv/model/0", written)
    assert evicted(small) > 400
    check_holes(names)
    client.rmtree("/kv")
    wait_for("room", lambda: client.statvfs().available_bytes > 40 * MIB)
    check_sound(small)


def check_whole(client: Client, directory: str, written: dict[str, bytes]) -> None:
    """Each file is what was stored, or nothing at all."""
    names = client.listdir(directory)
    memory = [bytearray(MIB) for _ in names]
    for name, error, found in zip(names, client.get_many(names, memory, directory=directory), memory, strict=True):
        assert error is None
        assert found == written[name]


def check_holes(names: list[str]) -> None:
    """Of a prompt the deepest chunks go first: what is left begins at its beginning."""
    left: dict[str, list[int]] = {}
    for name in names:
        prompt, depth = name.removesuffix(".kv").split("-")
        left.setdefault(prompt, []).append(int(depth))
    whole = sum(sorted(depths) == list(range(len(depths))) for depths in left.values())
    assert whole == len(left), left


@pytest.mark.mount
@pytest.mark.parametrize("cache", [True, False], ids=["cache directory", "ordinary directory"])
def test_ten_times_by_a_mount(make_cluster: Callable[..., Cluster], seed: int, cache: bool) -> None:
    cluster = make_cluster(
        workers=1,
        mounts=1,
        disk_bytes=DISK_BYTES,
        settings={"worker": {"free_floor": "1MiB", "lease_s": 2}},
    )
    client, chance = cluster.client(1), random.Random(seed)
    kept = keep_ordinary(client)
    directory = cluster.mountpoint(1) / "fill"
    directory.mkdir()
    if cache:
        os.setxattr(directory, "user.hearth.cache", b"1")
        assert os.getxattr(directory, "hearth.cache") == b"1"
    contents: dict[str, bytes] = {}
    results: dict[str, int] = {}
    below = directory / "below"  # made after the mark, so it has it too
    below.mkdir()
    for number in range(FILLS * DISK_BYTES // (2 * MIB)):
        path = (below if number % 2 else directory) / f"f{number}"
        data = chance.randbytes(chance.randrange(MIB, 3 * MIB))
        result = outcome(partial(write, path, data))
        results[result] = results.get(result, 0) + 1
        if result == "ok":
            contents[str(path.relative_to(cluster.mountpoint(1)))] = data
    assert set(results) <= {"ok", "ENOSPC"}
    left = check_whole_by_mount(cluster, directory, contents)
    check_kept(client, kept)
    if cache:
        assert results["ok"] > 0.9 * sum(results.values()), results
        assert left < len(contents)
    else:
        assert left == len(contents) == results["ok"]
        assert results["ENOSPC"] > 200
        assert evicted(cluster) == 0
    for path in [*below.iterdir(), *(each for each in directory.iterdir() if each.is_file())]:
        path.unlink()
    wait_for("room", lambda: outcome(partial(write, directory / "again", bytes(20 * MIB))) == "ok")
    check_sound(cluster)


def write(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view[:MIB]) :]


def check_whole_by_mount(cluster: Cluster, top: Path, contents: dict[str, bytes]) -> int:
    """How many of the files are there; a write that was refused may have left an empty one."""
    there = 0
    for path in files_below(top):
        data = path.read_bytes()
        expected = contents.get(str(path.relative_to(cluster.mountpoint(1))), b"")
        assert data == expected, path
        there += bool(data)
    return there


def files_below(top: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(top):
        for name in names:
            yield Path(directory) / name


def test_what_is_open_leased_or_pinned_stays(small: Cluster) -> None:
    """With eviction going on all the time."""
    here, elsewhere = small.client(1), small.client(None)
    here.makedirs("/kv")
    here.setxattr("/kv", "hearth.cache", b"1")
    data = {f"/kv/{name}": os.urandom(MIB) for name in NAMES}
    assert here.put_many(list(data), list(data.values())) == [None] * 4
    here.setxattr("/kv/pinned", "hearth.pin", b"1")
    with here.open("/kv/open", buffering=0) as opened, elsewhere.open("/kv/leased", buffering=0) as leased:
        assert fill(here, 3 * DISK_BYTES) == 0
        assert sorted(set(here.listdir("/kv")) & set(NAMES)) == ["leased", "open", "pinned"]
        assert opened.read() == data["/kv/open"]
        assert leased.read() == data["/kv/leased"]
    here.setxattr("/kv/pinned", "hearth.pin", b"0")
    wait_for("what is pinned no more", lambda: (fill(here, DISK_BYTES), "pinned" not in here.listdir("/kv"))[1])
    assert here.evict("/kv")[1] == 0
    assert here.listdir("/kv") == []
    check_sound(small)


def fill(client: Client, size_bytes: int) -> int:
    """With new files; how many got no room."""
    data, refused = os.urandom(MIB), 0
    for _ in range(size_bytes // (8 * MIB)):
        names = [f"fill-{random.getrandbits(64):016x}" for _ in range(8)]
        errors = client.put_many(names, [data] * 8, directory="/kv")
        assert {type(error) for error in errors} <= {type(None), NoSpace}
        refused += sum(error is not None for error in errors)
    return refused


def test_a_disk_that_others_fill_gives_misses(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=1, disk="tmpfs", disk_bytes=DISK_BYTES, settings={"worker": {"free_floor": "1MiB"}})
    client = cluster.client(1)
    client.makedirs("/kv")
    client.setxattr("/kv", "hearth.cache", b"1")
    names = [f"{number}" for number in range(16)]
    data = os.urandom(MIB)
    assert client.put_many(names, [data] * 16, directory="/kv") == [None] * 16
    stranger = cluster.disk(1) / "stranger"
    with stranger.open("wb") as file:
        for _ in range(DISK_BYTES // MIB):
            if outcome(partial(write_some, file)) != "ok":
                break
    wait_for("files made room", lambda: len(client.listdir("/kv")) < 16)
    found = client.lookup_many("/kv", names).found
    assert list(found).count(True) == len(client.listdir("/kv"))
    memory = [bytearray(MIB) for _ in names]
    for there, error, got in zip(found, client.get_many(names, memory, directory="/kv"), memory, strict=True):
        assert (error is None and got == data) if there else error is not None
    stranger.unlink()
    wait_for("stores work again", lambda: client.put_many(names, [data] * 16, directory="/kv") == [None] * 16)
    check_sound(cluster)


def write_some(file) -> None:
    file.write(bytes(MIB))
    file.flush()


def test_a_worker_that_is_started_with_less_room_evicts_down(small: Cluster) -> None:
    client = small.client(1)
    client.makedirs("/kv")
    client.setxattr("/kv", "hearth.cache", b"1")
    fill(client, 56 * MIB)
    before = len(client.listdir("/kv"))
    small.term("worker1")
    small.disk_bytes = 24 * MIB
    small.restart("master")  # and nothing is known but what the tables say
    small.restart("worker1")
    wait_for("eviction", lambda: client.statvfs().used_bytes <= 23 * MIB)
    assert 10 < len(client.listdir("/kv")) < before
    check_sound(small)


def test_a_quota_in_a_cache_directory_makes_room_there_only(small: Cluster) -> None:
    client = small.client(1)
    for name in ("/kv", "/other"):
        client.makedirs(name)
        client.setxattr(name, "hearth.cache", b"1")
    assert client.put_many([f"/other/{n}" for n in range(8)], [bytes(MIB)] * 8) == [None] * 8
    client.setxattr("/kv", "hearth.quota", b"20MiB")
    deadline = time.monotonic() + 30
    stored = 0
    while stored < 60:
        error = client.put_many([f"/kv/{stored}"], [bytes(MIB)])[0]
        assert error is None or isinstance(error, QuotaExceeded)
        stored += error is None
        assert time.monotonic() < deadline, f"{stored} files in the end"
    assert 10 <= len(client.listdir("/kv")) <= 20
    assert len(client.listdir("/other")) == 8
    space = client.statvfs("/kv")
    assert space.total_bytes == 20 * MIB
    assert space.used_bytes == len(client.listdir("/kv")) * MIB
    assert space.available_bytes == space.total_bytes - space.used_bytes
    assert client.statvfs("/other").total_bytes == client.statvfs().total_bytes > 60 * MIB
    check_sound(small)


def test_files_expire(small: Cluster) -> None:
    client = small.client(1)
    client.makedirs("/kv/below")
    client.setxattr("/kv", "hearth.cache", b"1")
    client.setxattr("/kv", "hearth.ttl", b"1s")
    client.put_many(["/kv/old", "/kv/below/old"], [b"x", b"y"])
    wait_for("it expired", lambda: not client.exists("/kv/old"))
    assert client.exists("/kv/below/old")  # it was made before its directory's directory was told
    check_sound(small)


@pytest.mark.mount
def test_a_quota_by_a_mount(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=1, mounts=1, settings={"mount": {"relay": "auto"}})
    directory = cluster.mountpoint(1) / "d"
    directory.mkdir()
    assert cluster.hearth("quota", "/d", "4MiB").returncode == 0
    old = os.urandom(3 * MIB)
    (directory / "f").write_bytes(old)
    assert outcome(lambda: (directory / "f").write_bytes(bytes(5 * MIB))) == "EDQUOT"
    assert cluster.client(1).read_bytes("/d/f") == old
    wait_for("the old version to be seen here too", lambda: (directory / "f").read_bytes() == old)
    space = os.statvfs(directory)  # through the relay, which says which directory is asked
    assert (space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize) == (4 * MIB, MIB)
    assert os.statvfs(cluster.mountpoint(1)).f_blocks * space.f_frsize > 4 * MIB
    (directory / "g").write_bytes(bytes(MIB))
    assert outcome(lambda: (directory / "h").write_bytes(b"x")) == "EDQUOT"
    (directory / "g").unlink()
    (directory / "h").write_bytes(b"x")
    assert outcome(lambda: os.link(directory / "h", cluster.mountpoint(1) / "h")) == "EXDEV"
    assert cluster.hearth("quota", "/d").stdout.strip() == "3.0 MiB of 4.0 MiB used"
    check_sound(cluster)
