"""A daemon that cannot start says in one line what is wrong, exits with 1 and leaves the disk as it was."""

import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hearthfs.cli import mountpoint
from hearthfs.cli.supervisor import hearth_command
from hearthfs.master.store import LmdbStore
from hearthfs.tests.support.cluster import Cluster, free_port

LOCKS = {"lock", "lock.mdb", "hearth.mdb-lock"}  # taken and let go again: not data


def files_below(*directories: Path) -> dict[str, str]:
    found = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")) if directory.exists() else []:
            if path.name in LOCKS:
                continue
            kind = "directory" if path.is_dir() else "socket" if path.is_socket() else ""
            found[str(path)] = kind or hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def refused(*arguments: object, before: tuple[str, ...] = (), **variables: str) -> str:
    """Runs a daemon that must not start; returns its one line."""
    environment = {**os.environ, "HEARTH_CONFIG": os.devnull, **variables}
    done = subprocess.run(
        [*before, *hearth_command(*map(str, arguments))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hearth: "), done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("hearth: ")]) == 1
    return last


WITHOUT_CAPABILITIES = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
WITHOUT_DEV_FUSE = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 && exec "$@"',
    "sh",
)


@pytest.fixture
def taken():
    """An address where somebody listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.fixture
def cluster(make_cluster) -> Cluster:
    return make_cluster(workers=1)


# ---------------------------------------------------------------- master


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:70000", "192.0.2.1:7070"])
def test_master_with_a_bad_address(tmp_path, address):
    line = refused("master", "--data", tmp_path / "data", "--listen", address)
    assert address in line
    assert files_below(tmp_path) == {}


def test_master_with_a_port_in_use(tmp_path, taken):
    line = refused("master", "--data", tmp_path / "data", "--listen", taken)
    assert taken in line
    assert "in use" in line
    assert files_below(tmp_path) == {}


def test_master_without_data_directory(tmp_path):
    assert "data" in refused("master", "--listen", f"127.0.0.1:{free_port()}")


def test_master_whose_directory_has_no_parent(tmp_path):
    data = tmp_path / "missing" / "data"
    line = refused("master", "--data", data, "--listen", f"127.0.0.1:{free_port()}")
    assert str(data) in line
    assert files_below(tmp_path) == {}


def test_master_whose_directory_cannot_be_written(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 65534, 65534)
    line = refused("master", "--data", data, "--listen", f"127.0.0.1:{free_port()}", before=WITHOUT_CAPABILITIES)
    assert str(data) in line
    assert "ermission denied" in line
    assert files_below(tmp_path) == {str(data): "directory"}


def test_a_second_master_on_the_same_data(cluster):
    line = refused("master", "--data", cluster.data(), "--listen", f"127.0.0.1:{free_port()}")
    assert str(cluster.data()) in line
    assert str(cluster.pid("master")) in line


def test_master_with_the_data_of_another_cluster(cluster):
    cluster.term("worker1")
    cluster.term("master")
    before = files_below(cluster.data())
    line = refused("master", "--data", cluster.data(), "--listen", cluster.master_address, "--cluster-id", "other")
    assert "'other'" in line
    assert files_below(cluster.data()) == before


def test_master_with_the_data_of_a_newer_version(cluster):
    cluster.term("worker1")
    cluster.term("master")
    store = LmdbStore(cluster.data())
    with store.batch() as batch, batch.step() as txn:
        txn.put("meta", b"schema", msgspec.msgpack.encode({"version": 999}))
    store.close()
    before = files_below(cluster.data())
    line = refused("master", "--data", cluster.data(), "--listen", cluster.master_address)
    assert "999" in line
    assert files_below(cluster.data()) == before


@pytest.mark.parametrize("role", ["master", "worker", "mount"])
def test_an_unknown_setting_names_the_nearest_known_one(tmp_path, role):
    arguments = {"mount": ["mount", tmp_path, "--foreground"]}.get(role, [role])
    line = refused(*arguments, **{f"HEARTH_{role.upper()}_LOGLEVEL": "info"})
    assert "'log_level'" in line


# ---------------------------------------------------------------- worker


def worker(cluster: Cluster, tmp_path: Path, **changes: object) -> list[object]:
    options = {
        "master": cluster.master_address,
        "disk": tmp_path / "disk",
        "listen": f"127.0.0.1:{free_port()}",
        "node-id": "node9",
        **changes,
    }
    return ["worker", *(part for key, value in options.items() for part in (f"--{key}", value))]


def test_worker_without_disk(cluster):
    line = refused("worker", "--master", cluster.master_address, "--listen", f"127.0.0.1:{free_port()}")
    assert "--disk" in line


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "192.0.2.1:7071"])
def test_worker_with_a_bad_address(cluster, tmp_path, address):
    line = refused(*worker(cluster, tmp_path, listen=address))
    assert address in line
    assert not (tmp_path / "disk").exists()


def test_worker_with_a_port_in_use(cluster, tmp_path, taken):
    line = refused(*worker(cluster, tmp_path, listen=taken))
    assert taken in line
    assert not (tmp_path / "disk").exists()


def test_worker_whose_master_does_not_answer(cluster, tmp_path):
    nobody = f"127.0.0.1:{free_port()}"
    line = refused(*worker(cluster, tmp_path, master=nobody), HEARTH_WORKER_START_TIMEOUT_S="2")
    assert nobody in line
    assert not (tmp_path / "disk").exists()


def test_worker_whose_disk_cannot_be_written(cluster, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    os.chown(disk, 65534, 65534)
    line = refused(*worker(cluster, tmp_path), before=WITHOUT_CAPABILITIES)
    assert str(disk) in line
    assert list(disk.iterdir()) == []


def test_worker_whose_disk_is_a_file(cluster, tmp_path):
    (tmp_path / "disk").write_text("mine")
    assert str(tmp_path / "disk") in refused(*worker(cluster, tmp_path))
    assert (tmp_path / "disk").read_text() == "mine"


def test_a_second_worker_on_the_same_disk(cluster, tmp_path):
    before = set(files_below(cluster.disk(1)))
    line = refused(*worker(cluster, tmp_path, disk=cluster.disk(1)))
    assert str(cluster.disk(1)) in line
    assert set(files_below(cluster.disk(1))) == before


def test_a_second_worker_with_the_same_id(cluster, tmp_path):
    line = refused(*worker(cluster, tmp_path, **{"worker-id": "node1"}))
    assert "node1" in line
    assert not (tmp_path / "disk").exists() or files_below(tmp_path / "disk") == {}
    assert [each["id"] for each in status(cluster)["workers"]] == ["node1"]


def test_worker_with_the_disk_of_another_cluster(cluster, tmp_path, make_cluster):
    other = make_cluster(workers=1)
    other.term("worker1")
    before = files_below(other.disk(1))
    line = refused(*worker(cluster, tmp_path, disk=other.disk(1), **{"worker-id": "node1"}))
    assert status(other)["cluster_id"] in line
    assert files_below(other.disk(1)) == before


def test_worker_with_the_disk_of_a_newer_version(cluster, tmp_path):
    cluster.term("worker1")
    (state,) = [path for path in cluster.disk(1).rglob("state") if path.is_file()]
    state.write_text("999 clean\n")
    before = files_below(cluster.disk(1))
    line = refused(*worker(cluster, tmp_path, disk=cluster.disk(1), **{"worker-id": "node1"}))
    assert "999" in line
    assert files_below(cluster.disk(1)) == before


def status(cluster: Cluster) -> dict:
    return msgspec.json.decode(cluster.hearth("status", "--json").stdout)


# ---------------------------------------------------------------- mount


def mount(cluster: Cluster, mountpoint: Path, *options: object) -> list[object]:
    return ["mount", mountpoint, "--master", cluster.master_address, "--node-id", "node1", *options]


@pytest.fixture
def place(tmp_path) -> Iterator[Path]:
    made = tmp_path / "mnt"
    made.mkdir()
    yield made
    mountpoint.unmount(str(made), force=True)


def is_mounted(place: Path) -> bool:
    return bool(re.search(rf" {re.escape(str(place))} ", Path("/proc/self/mountinfo").read_text()))


@pytest.mark.mount
@pytest.mark.parametrize("how", [["--foreground"], []], ids=["foreground", "background"])
def test_mount_whose_mount_point_is_missing(cluster, place, how, tmp_path):
    missing = place / "missing"
    line = refused(*mount(cluster, missing, "--log-file", tmp_path / "log", *how))
    assert str(missing) in line
    assert not missing.exists()


@pytest.mark.mount
@pytest.mark.parametrize("how", [["--foreground"], []], ids=["foreground", "background"])
def test_mount_whose_master_does_not_answer(cluster, place, how, tmp_path):
    nobody = f"127.0.0.1:{free_port()}"
    line = refused("mount", place, "--master", nobody, "--log-file", tmp_path / "log", *how, HEARTH_MOUNT_TIMEOUT_S="2")
    assert nobody in line
    assert not is_mounted(place)
    assert list(place.iterdir()) == []


@pytest.mark.mount
def test_mount_on_a_file(cluster, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in refused(*mount(cluster, tmp_path / "file", "--foreground"))


@pytest.mark.mount
def test_mount_on_a_mount(make_cluster):
    cluster = make_cluster(workers=1, mounts=1)
    line = refused(*mount(cluster, cluster.mountpoint(1), "--foreground"))
    assert "hearth umount" in line
    assert cluster.mountpoint(1).is_dir()


@pytest.mark.mount
def test_mount_without_privilege(cluster, place):
    line = refused(*mount(cluster, place, "--foreground"), before=WITHOUT_CAPABILITIES)
    assert not is_mounted(place)
    assert "CAP_SYS_ADMIN" in line


@pytest.mark.mount
def test_mount_without_dev_fuse(cluster, place):
    line = refused(*mount(cluster, place, "--foreground"), before=WITHOUT_DEV_FUSE)
    assert "/dev/fuse" in line
    assert not is_mounted(place)


@pytest.mark.mount
def test_mount_of_another_cluster(cluster, place):
    line = refused(*mount(cluster, place, "--foreground", "--cluster-id", "other"))
    assert "other" in line
    assert not is_mounted(place)
