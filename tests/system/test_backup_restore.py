"""``hearth backup`` and ``hearth journal`` with real daemons: a cluster goes on from a restored master."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time

import pytest
from hearthfs.cli.supervisor import hearth_command
from hearthfs.common.errors import HearthError
from hearthfs.master import restore, segment
from hearthfs.tests.support.cluster import Cluster

REJOIN_S = 30.0


@pytest.fixture
def hearth():
    """``hearth(cluster, "status")``: stdout, or for exit code 1 stderr."""

    def run(cluster, *arguments, code=0):
        done = cluster.hearth(*map(str, arguments))
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("shared"), workers=1) as made:
        with made.client() as client:
            for number in range(20):
                client.write_bytes(f"/f{number}", bytes(number))
        yield made


def content(name):
    return random.Random(name).randbytes(200_000)


class Load:
    """Writes files until it is ended; knows which were closed."""

    def __init__(self, client, directory):
        self.names, self._client, self._directory, self._ended = [], client, directory, threading.Event()
        client.makedirs(directory, exist_ok=True)
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        number = 0
        while not self._ended.is_set():
            name = f"{self._directory}/{number}"
            self._client.write_bytes(name, content(name))
            self.names.append(name)
            number += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def fingerprint(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("hearth.mdb")}


def blocks_on(cluster):
    return {path.name for node in (1, 2) for path in (cluster.disk(node) / "blocks").glob("*/*.*")}


def eventually(check):
    """What it returns, once it raises no more."""
    deadline = time.monotonic() + REJOIN_S
    while True:
        try:
            return check()
        except HearthError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_cluster_goes_on_from_a_restored_master(make_cluster, hearth, tmp_path):
    """What was archived is readable; what was written later is gone; nothing new collides with it."""
    cluster = make_cluster(workers=2, settings={"worker": {"unknown_delay_s": 1}})
    client, saved, segments = cluster.client(1), tmp_path / "saved", tmp_path / "segments"
    for name in ("/replaced", "/kept"):
        client.write_bytes(name, content(name))
    with Load(cluster.client(2), "/load") as load:
        while len(load.names) < 10:
            time.sleep(0.01)
        hearth(cluster, "backup", saved)
        known = list(load.names)
        time.sleep(0.3)
        assert len(load.names) > len(known)
    hearth(cluster, "journal", "archive", segments)
    end = segment.listed(segments)[-1].last
    # The time that will be lost.
    for number in range(20):
        client.write_bytes(f"/lost{number}", content(f"lost {number}"))
    client.write_bytes("/replaced", b"later")
    lost_blocks = blocks_on(cluster)
    epoch = json.loads(hearth(cluster, "status", "--json"))["epoch"]
    cluster.kill("master")
    old = cluster.directory / "old"
    cluster.data().rename(old)
    before = fingerprint(old)
    shown = hearth(cluster, "journal", "restore", "--backup", saved, "--segments", segments, "--data", cluster.data())
    assert f"up to record {end} " in shown
    cluster.start("master")

    for name in [*load.names, "/kept"]:
        assert eventually(lambda name=name: client.read_bytes(name)) == content(name)
    assert not any(client.exists(f"/lost{number}") for number in range(20))
    with contextlib.suppress(HearthError):  # its block was deleted when it was replaced
        assert client.read_bytes("/replaced") == content("/replaced")
    client.unlink("/replaced")
    for number in range(20):
        name = f"/new{number}"
        eventually(lambda name=name: client.write_bytes(name, content(name)))
    fresh = cluster.client(2)
    for number in range(20):
        assert fresh.read_bytes(f"/new{number}") == content(f"/new{number}")
    status = json.loads(hearth(cluster, "status", "--json"))
    assert epoch < status["epoch"]
    assert [worker["state"] for worker in status["workers"]] == ["live", "live"]
    made = {int(name.partition(".")[0], 16) for name in blocks_on(cluster) - lost_blocks}
    assert len(made) >= 20
    assert min(made) > restore.NUMBERS_PASSED
    deadline = time.monotonic() + REJOIN_S
    while found := cluster.fsck():
        assert time.monotonic() < deadline, found
    assert fingerprint(old) == before
    # Nothing that was archived is lost: the archive goes on with what was committed since.
    hearth(cluster, "journal", "archive", segments)
    assert [each.first for each in segment.listed(segments)][-1] == end + 1


def test_a_backup_is_private_whole_and_replaces_nothing(shared, hearth, tmp_path):
    file = tmp_path / "saved"
    assert "up to journal record" in hearth(shared, "backup", file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    data = file.read_bytes()
    assert "--force" in hearth(shared, "backup", file, code=1)
    assert file.read_bytes() == data
    shown = json.loads(hearth(shared, "backup", file, "--force", "--json"))
    assert shown["size_bytes"] == file.stat().st_size
    assert shown["journal_sequence"] >= 40
    assert "No such file" in hearth(shared, "backup", tmp_path / "none" / "saved", code=1)


def test_a_backup_that_fails_leaves_no_file(shared, hearth, tmp_path):
    hearth(shared, "backup", tmp_path / "saved", "--master", "127.0.0.1:1", code=1)
    assert list(tmp_path.iterdir()) == []


def test_the_archive_goes_on_where_it_ended(shared, hearth, tmp_path):
    place = tmp_path / "segments"
    assert " new segments" in hearth(shared, "journal", "archive", place, "--segment-size", "2KiB")
    first = segment.listed(place)
    assert len(first) > 2
    assert all(each.path.stat().st_size < 4096 for each in first)
    with shared.client() as client:
        client.write_bytes("/another", b"x")
    shown = json.loads(hearth(shared, "journal", "archive", place, "--json"))
    segments = segment.listed(place)
    assert [each.path.name for each in segments[len(first) :]] == shown["segments"]
    assert [each.first for each in segments[1:]] == [each.last + 1 for each in segments[:-1]]
    assert (segments[0].first, segments[-1].last) == (1, shown["last"])


def test_two_histories_never_mix_in_one_archive(shared, hearth, tmp_path):
    hearth(shared, "journal", "archive", tmp_path)
    cluster_id = json.loads(hearth(shared, "status", "--json"))["cluster_id"]
    last = segment.listed(tmp_path)[-1]
    other = segment.named(tmp_path, last.last + 1, last.last + 1)
    # The same numbers, other records; and more of them than the master has.
    record = last.last_record(cluster_id)
    changed = record._replace(body=record.body + b"!")
    kept = [*last.records(cluster_id)][:-1]
    last.path.write_bytes(segment.header(cluster_id) + b"".join(map(segment.packed, [*kept, changed])))
    assert "archive into a new directory" in hearth(shared, "journal", "archive", tmp_path, code=1)
    for ahead in (1_000, 1_001):
        other = segment.named(tmp_path, last.last + ahead, last.last + ahead)
        body = segment.packed(record._replace(number=other.last))
        other.path.write_bytes(segment.header(cluster_id) + body)
        assert "restored from a backup" in hearth(shared, "journal", "archive", tmp_path, code=1)


def test_damaged_and_foreign_segments_are_refused_in_one_line(shared, hearth, tmp_path):
    hearth(shared, "journal", "archive", tmp_path)
    last = segment.listed(tmp_path)[-1]
    data = last.path.read_bytes()
    for changed, text in (
        (data[:-1], f"restore --to {last.last - 1}"),
        (data[:5], "move it away and archive again"),
        (segment.header("other") + data, "is of cluster 'other'"),
    ):
        last.path.write_bytes(changed)
        (line,) = hearth(shared, "journal", "archive", tmp_path, code=1).splitlines()
        assert line.startswith(f"hearth: {last.path}: ")
        assert text in line
    last.path.rename(tmp_path / "moved away")  # as the message says
    hearth(shared, "journal", "archive", tmp_path)
    assert segment.listed(tmp_path)[-1].last >= last.last


def test_an_archive_that_follows_survives_the_master(make_cluster, hearth, tmp_path):
    cluster = make_cluster(workers=0)
    place = tmp_path / "segments"
    command = hearth_command("journal", "archive", str(place), "--follow", "--every", "0.2")
    environment = {**os.environ, "HEARTH_CONFIG": os.devnull, "HEARTH_CLIENT_MASTER": cluster.master_address}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert "records 1 to " in process.stdout.readline()
            cluster.restart("master")
            assert "records " in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert "Traceback" not in errors
    segments = segment.listed(place)
    assert [each.first for each in segments[1:]] == [each.last + 1 for each in segments[:-1]]
    assert len(segments) > 1


def test_tail_shows_records_to_people_and_scripts(shared, hearth):
    lines = hearth(shared, "journal", "tail", "-n", 3).splitlines()
    assert len(lines) == 3
    numbers = [int(line.split()[0]) for line in lines]
    rows = [json.loads(line) for line in hearth(shared, "journal", "tail", "--after", 0, "--json").splitlines()]
    assert [row["number"] for row in rows][: numbers[-1]] == list(range(1, numbers[-1] + 1))
    assert rows[0]["command"] == "BeginEpoch"
    assert any("'f3'" in str(row["fields"]) for row in rows)
    assert "exclude each other" in hearth(shared, "journal", "tail", "-n", 3, "--after", 0, code=1)
    assert "there is nothing after 99999999" in hearth(shared, "journal", "tail", "--after", 99999999, code=1)


def test_tail_follows_until_it_is_ended(shared):
    command = hearth_command("journal", "tail", "-n", "1", "--follow", "--json")
    environment = {**os.environ, "HEARTH_CONFIG": os.devnull, "HEARTH_CLIENT_MASTER": shared.master_address}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            first = json.loads(process.stdout.readline())
            with shared.client() as client:
                client.mkdir("/followed")
            found = []
            while "followed" not in str(found):
                found.append(json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert "Traceback" not in errors
    numbers = [first["number"], *(row["number"] for row in found)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_tail_ends_when_nobody_reads_it(shared):
    command = hearth_command("journal", "tail", "-n", "1", "--follow")
    environment = {**os.environ, "HEARTH_CONFIG": os.devnull, "HEARTH_CLIENT_MASTER": shared.master_address}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            process.stdout.readline()
            process.stdout.close()
            with shared.client() as client:
                client.mkdir("/nobody")
            errors = process.stderr.read()
            assert process.wait(20) == 1
        finally:
            process.kill()
    assert "Traceback" not in errors


def test_restore_to_a_number_needs_no_master_and_says_what_it_reached(shared, hearth, tmp_path):
    hearth(shared, "backup", tmp_path / "saved")
    with shared.client() as client:
        client.mkdir("/later")
    hearth(shared, "journal", "archive", tmp_path / "segments")
    start = json.loads(hearth(shared, "backup", tmp_path / "saved2", "--json"))["journal_sequence"]
    given = ["journal", "restore", "--backup", tmp_path / "saved", "--segments", tmp_path / "segments"]
    shown = json.loads(hearth(shared, *given, "--data", tmp_path / "new", "--to", start - 1, "--json"))
    assert shown["sequence"] == start - 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["hearth.mdb"]
    assert "is not empty" in hearth(shared, *given, "--data", tmp_path / "new", code=1)
    assert "there is no 1000000" in hearth(shared, *given, "--data", tmp_path / "none", "--to", 1_000_000, code=1)
    assert not (tmp_path / "none").exists()
    cut = (tmp_path / "saved").read_bytes()[:-5000]
    (tmp_path / "saved").write_bytes(cut)
    assert f"{tmp_path}/saved is cut: " in hearth(shared, *given, "--data", tmp_path / "none", code=1)
    assert not (tmp_path / "none").exists()


@pytest.mark.mount
def test_a_mount_forgets_what_a_restore_lost(make_cluster, hearth, tmp_path):
    cluster = make_cluster(workers=1, mounts=1)
    place = cluster.mountpoint(1)
    (place / "kept").write_bytes(b"kept" * 1000)
    hearth(cluster, "backup", tmp_path / "saved")
    (place / "lost").write_bytes(b"lost" * 1000)
    assert sorted(os.listdir(place)) == ["kept", "lost"]
    cluster.kill("master")
    cluster.data().rename(cluster.directory / "old")
    hearth(cluster, "journal", "restore", "--backup", tmp_path / "saved", "--data", cluster.data())
    cluster.start("master")

    def has_forgotten():
        try:
            return os.listdir(place) == ["kept"] and not (place / "lost").exists()
        except OSError:  # it registers again
            return False

    deadline = time.monotonic() + REJOIN_S
    while not has_forgotten():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (place / "kept").read_bytes() == b"kept" * 1000
    (place / "lost").write_bytes(b"new!" * 1000)
    assert (place / "lost").read_bytes() == b"new!" * 1000
    with cluster.client(None) as client:
        assert client.read_bytes("/lost") == b"new!" * 1000
