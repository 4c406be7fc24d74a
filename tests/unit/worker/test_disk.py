import errno
import json
import os
from types import SimpleNamespace

import pytest
from hearthfs.common.errors import (
    Conflict,
    InvalidArgument,
    NewerFormat,
    SettingsError,
    Unavailable,
    WrongCluster,
)
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import BOOT, NO_FLOOR, FailingCalls, pattern, put
from hearthfs.worker.disk import UNKNOWN_BYTES, Disk, parse_name
from hearthfs.worker.identity import Identity
from hearthfs.worker.settings import Floor

KEY = BlockKey(0xABCDEF, 3)


def snapshot(path):
    return sorted((str(p.relative_to(path)), p.read_bytes() if p.is_file() else b"") for p in path.rglob("*"))


@pytest.fixture
def used_disk(tmp_path):
    disk = Disk(tmp_path / "d", None, NO_FLOOR)
    disk.inspect("w1", "")
    disk.prepare(Identity("w1", "c1"), BOOT)
    disk.close()
    return tmp_path / "d"


def refused(path, error, match, worker_id="w1", cluster_id="c1"):
    """The disk is refused for this reason, and nothing on it changes."""
    before = snapshot(path)
    disk = Disk(path, None, NO_FLOOR)
    with pytest.raises(error, match=match):
        disk.inspect(worker_id, cluster_id)
    disk.close()
    assert snapshot(path) == before


def test_a_disk_keeps_its_owner(used_disk):
    disk = Disk(used_disk, None, NO_FLOOR)
    disk.inspect("w1", "c1")
    assert disk.identity == Identity("w1", "c1")
    disk.close()


def test_a_disk_of_another_worker_cluster_or_version_is_refused(used_disk):
    refused(used_disk, Conflict, "belongs to worker 'w1', not 'w2'", worker_id="w2")
    refused(used_disk, WrongCluster, "belongs to cluster c1, not c9", cluster_id="c9")
    (used_disk / "hearth-disk.json").write_text(json.dumps({"worker_id": "w1", "cluster_id": "c1", "schema": 2}))
    refused(used_disk, NewerFormat, "schema 2")


def test_an_index_of_a_newer_version_is_refused(used_disk):
    (used_disk / "index" / "state").write_text("9 clean\n")
    refused(used_disk, NewerFormat, "schema 9")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"schema": 1}', b'{"schema": "x"}', b"\xff\xfe"])
def test_a_damaged_owner_file_is_refused(used_disk, text):
    (used_disk / "hearth-disk.json").write_bytes(text)
    refused(used_disk, SettingsError, "damaged")


def test_blocks_without_an_owner_are_refused(used_disk):
    (used_disk / "hearth-disk.json").unlink()
    refused(used_disk, SettingsError, "has blocks but no hearth-disk.json")


def test_a_directory_that_cannot_be_used_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    refused(file, SettingsError, "Not a directory")
    with pytest.raises(SettingsError, match="No such file"):
        Disk(tmp_path / "no" / "such", None, NO_FLOOR).inspect("w1", "")


def test_a_disk_has_one_worker(used_disk):
    first = Disk(used_disk, None, NO_FLOOR)
    first.inspect("w1", "")
    second = Disk(used_disk, None, NO_FLOOR)
    with pytest.raises(Conflict, match="in use by another worker"):
        second.inspect("w1", "")
    second.close()
    first.close()


def test_a_directory_made_for_a_start_that_failed_is_gone_again(tmp_path):
    disk = Disk(tmp_path / "new", None, NO_FLOOR)
    disk.inspect("w1", "")
    disk.close()
    assert not (tmp_path / "new").exists()


def test_a_crash_right_after_the_owner_is_written_can_be_started_again(tmp_path):
    calls = FailingCalls()
    calls.errors["open-directory"] = OSError(errno.EIO, "injected")
    disk = Disk(tmp_path / "d", None, NO_FLOOR, calls)
    disk.inspect("w1", "")
    with pytest.raises(OSError):
        disk.prepare(Identity("w1", "c1"), BOOT)
    disk.close()
    again = Disk(tmp_path / "d", None, NO_FLOOR)
    again.inspect("w1", "c1")
    again.prepare(Identity("w1", "c1"), BOOT)
    again.close()


@pytest.mark.parametrize(
    "name",
    ["x", "0" * 16, "0" * 16 + ".", "0" * 15 + ".1", "../../etc/passwd", "0" * 16 + ".4294967296", "G" * 16 + ".1"],
)
def test_other_names_are_none_of_ours(name):
    assert parse_name(name) is None


def test_a_name_says_block_and_generation():
    assert parse_name(str(KEY)) == KEY
    assert parse_name(str(BlockKey((1 << 64) - 1, (1 << 32) - 1))) == BlockKey((1 << 64) - 1, (1 << 32) - 1)


def test_a_link_in_place_of_a_block_is_not_followed(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    disk = store.disks[0]
    put(store, KEY, b"abc")
    file = disk.path / "blocks" / "ef" / str(KEY)
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(Unavailable):
        store.open_read(KEY)


def test_a_directory_in_place_of_a_block_is_no_block(store):
    disk = store.disks[0]
    disk._shard(KEY)
    (disk.path / "blocks" / "ef" / str(KEY)).mkdir()
    with pytest.raises(InvalidArgument, match="not a regular file"):
        disk.open_block(KEY)


def statvfs(calls, **values):
    defaults = {"f_blocks": 1000, "f_bavail": 500, "f_frsize": 4096, "f_files": 100, "f_favail": 50}
    result = SimpleNamespace(**defaults | values)
    calls.statvfs = lambda step, fd: result


@pytest.mark.parametrize(
    ("limit", "floor", "filesystem", "capacity", "available"),
    [
        (None, NO_FLOOR, {}, 500 * 4096, 500 * 4096),
        (100 * 4096, NO_FLOOR, {}, 100 * 4096, 100 * 4096),
        (900 * 4096, NO_FLOOR, {}, 500 * 4096, 500 * 4096),
        (None, Floor(0.1, 0), {}, 400 * 4096, 400 * 4096),
        (None, Floor(0.0, 600 * 4096), {}, 0, -100 * 4096),
        (None, NO_FLOOR, {"f_files": 0, "f_favail": 0}, 500 * 4096, 500 * 4096),
        (None, NO_FLOOR, {"f_favail": 0}, 0, 0),
        (None, NO_FLOOR, {"f_blocks": 0, "f_bavail": 0}, UNKNOWN_BYTES, UNKNOWN_BYTES),
        (4096, Floor(0.5, 0), {"f_blocks": 0, "f_bavail": 0}, 4096, 4096),
    ],
)
def test_the_tighter_limit_wins_and_unknown_is_not_full(make_store, limit, floor, filesystem, capacity, available):
    disk = make_store(limit=limit, floor=floor).disks[0]
    statvfs(make_store.calls, **filesystem)
    assert disk.space() == (capacity, 0, available)


def test_used_is_what_the_files_take(make_store):
    store = make_store(limit=1 << 30)
    disk = store.disks[0]
    data = pattern(1 << 20)
    put(store, KEY, data)
    working = store.create(BlockKey(7, 1))
    os.ftruncate(working.fd, 1 << 40)  # a hole takes nothing
    os.pwrite(working.fd, pattern(8192), 0)
    os.close(working.fd)
    store.refresh_working()
    on_disk = sum(p.stat().st_blocks * 512 for name in ("blocks", "working") for p in (disk.path / name).rglob("*.*"))
    assert disk.space().used_bytes == on_disk
    assert disk.space().available_bytes == (1 << 30) - on_disk
    store.delete(KEY)
    store.discard(BlockKey(7, 1))
    assert disk.space().used_bytes == 0


def test_the_books_stay_right_over_many_rounds(make_store):
    store = make_store(limit=10 << 20)
    for block in range(30):
        put(store, BlockKey(block, 1), pattern(1 << 20))
        store.delete(BlockKey(block, 1))
    assert store.disks[0].space().used_bytes == 0
    assert store.disks[0].blocks == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_disk_that_answers_eio_is_failed_and_takes_nothing_new(make_store, number):
    store = make_store(disks=2)
    key_on = {}
    for block in range(2):
        put(store, BlockKey(block, 1), b"x")
    failing = store.disks[0]
    failing.calls = FailingCalls()
    failing.calls.errors["statvfs"] = OSError(number, "injected")
    with pytest.raises(Unavailable):
        failing.space()
    assert failing.failed
    failing.calls.errors.clear()
    for block in range(10, 14):
        put(store, BlockKey(block, 1), b"x")
        key_on[block] = store.catalog.find(BlockKey(block, 1))[0]
    assert set(key_on.values()) == {store.disks[1]}
    for block in range(2):
        store.open_read(BlockKey(block, 1)).close()


def test_only_the_last_bad_files_are_kept(store):
    disk = store.disks[0]
    for block in range(20):
        put(store, BlockKey(block, 1), b"x")
        store.mark_bad(BlockKey(block, 1), "test")
    assert len(list((disk.path / "bad").iterdir())) == 8
    disk.drop_bad_files()
    assert not list((disk.path / "bad").iterdir())
