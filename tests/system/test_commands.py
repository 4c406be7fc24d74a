"""The ``hearth`` command against a real cluster of two workers."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hearthfs.cli.supervisor import hearth_command
from hearthfs.tests.support.cluster import Cluster, free_port

BIG = os.urandom((5 << 20) + 123)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("commands"), workers=2) as made:
        yield made


@pytest.fixture
def hearth(cluster):
    def run(*arguments, code=0, **options):
        done = cluster.hearth(*map(str, arguments), **options)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout if code != 1 else done.stderr

    return run


@pytest.fixture
def folder(hearth, request):
    """A directory in the cluster of the test's own."""
    name = f"/{request.node.name.partition('[')[0]}"
    hearth("mkdir", "-p", name)
    return name


def test_bytes_go_in_and_come_out(hearth, folder, tmp_path):
    (tmp_path / "big").write_bytes(BIG)
    hearth("put", tmp_path / "big", folder)
    hearth("get", f"{folder}/big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == BIG
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "big"]
    raw = hearth("cat", f"{folder}/big", text=False)
    assert raw == BIG


def test_stdin_and_stdout_are_dashes(hearth, folder):
    hearth("put", "-", f"{folder}/x", input="from a pipe")
    assert hearth("get", f"{folder}/x", "-") == "from a pipe"
    assert hearth("cat", f"{folder}/x", f"{folder}/x") == "from a pipe" * 2


def test_a_tree_goes_in_and_comes_out(hearth, folder, tmp_path):
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "one").write_text("1")
    (source / "a" / "b" / "two").write_text("22")
    (source / "empty").mkdir()
    assert "--recursive" in hearth("put", source, folder, code=1)
    hearth("put", "-r", source, folder)
    assert "--recursive" in hearth("get", folder, tmp_path, code=1)
    hearth("get", "-r", f"{folder}/source", tmp_path / "back")
    assert (tmp_path / "back/a/b/two").read_text() == "22"
    assert (tmp_path / "back/empty").is_dir()
    assert "two" in hearth("tree", "--depth", 4, folder)
    shown = hearth("tree", folder)
    assert "two" not in shown
    assert "empty/" in shown
    sums = {row["path"]: row["size_bytes"] for row in json.loads(hearth("du", folder, "--json"))}
    assert sums == {folder: 3, f"{folder}/source": 3}
    assert hearth("du", "-s", folder).split() == ["3", "B", "2", "files", folder]


def test_what_exists_is_kept_when_asked(hearth, folder, tmp_path):
    (tmp_path / "x").write_text("new")
    hearth("put", "-", f"{folder}/x", input="old")
    assert "x" in hearth("put", "-n", tmp_path / "x", f"{folder}/x", code=1)
    assert hearth("cat", f"{folder}/x") == "old"
    assert str(tmp_path / "x") in hearth("get", "-n", f"{folder}/x", tmp_path / "x", code=1)
    assert (tmp_path / "x").read_text() == "new"
    hearth("put", tmp_path / "x", f"{folder}/x")
    assert hearth("cat", f"{folder}/x") == "new"


def test_a_put_that_fails_leaves_no_file(hearth, folder, tmp_path):
    assert "missing" in hearth("put", tmp_path / "missing", f"{folder}/x", code=1)
    assert hearth("ls", folder) == ""


def test_ls_shows_names_sizes_and_types(hearth, folder):
    hearth("put", "-", f"{folder}/b", input="12345")
    hearth("mkdir", f"{folder}/a")
    assert hearth("ls", folder).split() == ["a", "b"]
    assert sorted(hearth("ls", "-U", folder).split()) == ["a", "b"]
    long = hearth("ls", "-l", folder).splitlines()
    assert long[0].startswith("drwxr-xr-x")
    assert "5 B" in long[1]
    rows = json.loads(hearth("ls", "--json", folder))
    assert [(row["name"], row["type"]) for row in rows] == [("a", "directory"), ("b", "file")]
    assert rows[1]["size_bytes"] == 5
    assert hearth("ls", f"{folder}/b") == f"{folder}/b\n"


def test_a_name_cannot_write_to_the_terminal(cluster, hearth, folder):
    with cluster.client(1) as client:
        client.write_bytes(f"{folder}/".encode() + b"\x1b[2J\xff", b"x")
    assert hearth("ls", folder) == "\\x1b[2J\\xff\n"
    for command in ("tree", "du", "ls"):
        assert "\x1b" not in hearth(command, folder)


def test_mv_renames(hearth, folder):
    hearth("put", "-", f"{folder}/x", input="x")
    hearth("mkdir", f"{folder}/d")
    hearth("mv", f"{folder}/x", f"{folder}/y")
    hearth("mv", f"{folder}/y", f"{folder}/d")
    assert hearth("cat", f"{folder}/d/y") == "x"
    hearth("put", "-", f"{folder}/y", input="other")
    assert "y" in hearth("mv", "-n", f"{folder}/y", f"{folder}/d", code=1)
    assert hearth("cat", f"{folder}/d/y") == "x"
    assert "not a directory" in hearth("mv", f"{folder}/y", f"{folder}/d/y", f"{folder}/missing", code=1)


def test_rm_removes_and_is_careful(hearth, folder):
    hearth("mkdir", "-p", f"{folder}/a/b")
    hearth("put", "-", f"{folder}/a/x", input="x")
    assert "--recursive" in hearth("rm", f"{folder}/a", code=1)
    assert "missing" in hearth("rm", f"{folder}/missing", code=1)
    hearth("rm", "-f", f"{folder}/missing")
    hearth("rm", "-r", f"{folder}/a")
    assert hearth("ls", folder) == ""
    assert "whole cluster" in hearth("rm", "-r", "/", code=1)


def test_stat_asks_every_replica(hearth, folder, tmp_path):
    (tmp_path / "big").write_bytes(BIG)
    hearth("put", tmp_path / "big", folder)
    record = json.loads(hearth("stat", "--json", "--checksums", f"{folder}/big"))
    assert record["size_bytes"] == len(BIG)
    assert record["block"]["sealed"] is True
    (replica,) = record["replicas"]
    assert replica["state"] == "ok"
    assert len(replica["checksums"]) == 6
    text = hearth("stat", f"{folder}/big")
    assert "sealed" in text
    assert "MiB" not in text


def test_status_and_df_count_what_is_there(hearth, cluster, folder):
    record = json.loads(hearth("status", "--json"))
    assert {worker["id"]: worker["state"] for worker in record["workers"]} == {"node1": "live", "node2": "live"}
    assert "node2" in hearth("status")
    assert "total" in hearth("df")
    assert json.loads(hearth("df", "--json"))["totals"]["total_bytes"] > 0


def test_what_may_go_when_room_is_short_is_said_by_command(hearth, cluster, folder):
    hearth("mkdir", f"{folder}/below")
    for name in ("a", "b", "below/c"):
        hearth("put", "-", f"{folder}/{name}", input=name)
    assert "no cache directory" in hearth("ttl", folder, "1h", code=1)
    assert "0 files evicted, 3 kept" in hearth("evict", folder)
    hearth("cache", "-r", folder)
    hearth("pin", f"{folder}/a")
    hearth("ttl", folder, "1h")
    assert (hearth("ttl", folder).strip(), hearth("ttl", f"{folder}/below").strip()) == ("1h", "-")
    assert "1h30" in hearth("ttl", folder, "1h30", code=1)
    hearth("quota", folder, "1MiB")
    assert hearth("quota", f"{folder}/below").strip() == "-"
    assert json.loads(hearth("df", f"{folder}/below", "--json"))["total_bytes"] == 1 << 20
    assert "quota" in hearth("put", "-", f"{folder}/big", input="x" * (2 << 20), code=1)
    assert "2 files evicted, 1 kept" in hearth("evict", folder)
    assert hearth("ls", folder).split() == ["a", "below"]
    hearth("pin", "--off", f"{folder}/a")
    assert "1 files evicted, 0 kept" in hearth("evict", folder)
    assert {"reason": "asked", "files": 3} in [
        {key: each[key] for key in ("reason", "files")} for each in json.loads(hearth("status", "--json"))["evicted"]
    ]
    hearth("quota", folder, "0")
    assert hearth("quota", folder).strip() == "-"


def test_fsck_is_clean_after_all_of_this(hearth):
    assert hearth("fsck") == "clean\n"


def test_fsck_finds_a_block_that_was_taken_away(make_cluster):
    cluster = make_cluster(workers=1)
    cluster.hearth("put", "-", "/x", input="x" * 1000)
    cluster.term("worker1")
    (block,) = [path for path in (cluster.disk(1) / "blocks").rglob("*") if path.is_file()]
    content = block.read_bytes()
    block.unlink()
    cluster.start("worker1")
    done = cluster.hearth("fsck", "--settle", "0")
    assert done.returncode == 3
    assert content
    assert "1 warnings" in done.stdout or "1 errors" in done.stdout


def test_fsck_says_which_worker_did_not_answer(make_cluster):
    cluster = make_cluster(workers=2)
    cluster.kill("worker2")
    (finding,) = cluster.fsck()
    assert (finding["kind"], finding["where"]) == ("unchecked", "node2")


def test_doctor_judges_this_node(hearth, tmp_path, cluster):
    record = json.loads(hearth("doctor", "--json", "--disk", tmp_path))
    subjects = {line["subject"]: line["verdict"] for line in record["lines"]}
    assert subjects[f"port {cluster.master_address}"] == "ok"
    assert subjects["version of the master"] == "ok"
    found = cluster.hearth("doctor", "--disk", str(tmp_path / "missing"))
    assert found.returncode == 3
    assert "-> mkdir -p" in found.stdout


def test_nothing_is_coloured_in_a_pipe(hearth, folder):
    for command in (["status"], ["df"], ["doctor"], ["tree", "/"], ["ls", "-l", "/"]):
        assert "\x1b" not in hearth(*command)


def test_a_relative_path_is_refused(hearth):
    assert "absolute path" in hearth("ls", "model", code=1)


# ---------------------------------------------------------------- up


@pytest.mark.mount
def test_up_is_a_whole_cluster_until_ctrl_c(tmp_path):
    master, worker = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = hearth_command("up", "--data", str(tmp_path / "d"), "--listen", master, "--worker-listen", worker)
    mountpoint = tmp_path / "d" / "mnt"
    for content in ("first", "second"):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HEARTH_CONFIG": os.devnull}
        ) as up:
            lines = [up.stdout.readline() for _ in range(4)]
            assert "HearthFS is up" in lines[-1], lines
            if content == "second":
                assert (mountpoint / "x").read_text() == "first"
            (mountpoint / "x").write_text(content)
            up.send_signal(signal.SIGINT)
            assert up.wait(30) == 0
            assert up.stdout.read() == "stopped\n"
        assert list(mountpoint.iterdir()) == []


@pytest.mark.mount
def test_up_that_is_killed_takes_its_daemons_along(tmp_path):
    master, worker = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = hearth_command("up", "--data", str(tmp_path / "d"), "--listen", master, "--worker-listen", worker)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HEARTH_CONFIG": os.devnull}
    ) as up:
        lines = [up.stdout.readline() for _ in range(4)]
        pids = [int(line.partition("pid ")[2].partition(",")[0]) for line in lines[:3]]
        up.kill()
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "daemons outlived hearth up"
        time.sleep(0.05)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


# ---------------------------------------------------------------- mount and umount


@pytest.mark.mount
def test_mount_goes_to_the_background_and_umount_ends_it(make_cluster, tmp_path):
    cluster = make_cluster(workers=1)
    place = tmp_path / "mnt"
    place.mkdir()
    options = ["--worker-socket", str(cluster.socket(1)), "--node-id", "node1", "--log-file", str(tmp_path / "log")]
    done = cluster.hearth("mount", str(place), "--master", cluster.master_address, *options)
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout.partition("pid ")[2].partition(",")[0])
    (place / "x").write_text("hello")
    assert cluster.hearth("cat", f"{place}/x").stdout == "hello"
    assert cluster.hearth("ls", str(place)).stdout == "x\n"
    with (place / "x").open():
        busy = cluster.hearth("umount", str(place))
        assert busy.returncode == 1
        assert "in use" in busy.stderr
    assert cluster.hearth("umount", str(place)).stdout == f"{place}: unmounted\n"
    again = cluster.hearth("umount", str(place))
    assert (again.returncode, again.stdout) == (0, f"{place}: not mounted, nothing to do\n")
    deadline = time.monotonic() + 15
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, "the daemon outlived its mount"
        time.sleep(0.05)


@pytest.mark.mount
@pytest.mark.parametrize("how", ["daemon killed", "daemon stopped", "master killed"])
def test_umount_works_on_a_mount_that_does_not(make_cluster, how):
    cluster = make_cluster(workers=1, mounts=1)
    place = cluster.mountpoint(1)
    (place / "x").write_text("hello")
    # Held open by another process: closing it asks the daemon, and the next fork of ours would close it.
    with (place / "x").open() as file:
        holder = subprocess.Popen(["sleep", "100"], stdin=file)
    try:
        if how == "master killed":
            cluster.kill("master")
        elif how == "daemon killed":
            cluster.kill("mount1")
        else:
            cluster.stop("mount1")
        begin = time.monotonic()
        done = cluster.hearth("umount", str(place), *(["--force"] if how == "master killed" else []))
        assert done.returncode == 0, done.stderr
        assert time.monotonic() - begin < 10
        assert list(place.iterdir()) == []
        assert cluster.hearth("umount", str(place)).returncode == 0
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.mount
def test_mount_by_mount_8(make_cluster, tmp_path):
    """Through the helper, as mount(8) calls it for an fstab line."""
    cluster = make_cluster(workers=1)
    place = tmp_path / "mnt"
    place.mkdir()
    helper = [*hearth_command()[:-1], "hearthfs.cli.mount_helper"]
    program = "from hearthfs.cli.mount_helper import main; main()"
    options = f"rw,_netdev,node_id=node1,worker_socket={cluster.socket(1)},log_file={tmp_path / 'log'}"
    done = subprocess.run(
        [helper[0], "-P", "-c", program, cluster.master_address, str(place), "-n", "-o", options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (place / "x").write_text("hello")
    assert cluster.hearth("umount", str(place)).returncode == 0
