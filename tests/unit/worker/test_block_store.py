import errno
import fcntl
import os

import msgspec
import pytest
from hearthfs.common import checksums
from hearthfs.common.errors import (
    BlockCorrupt,
    BlockMissing,
    Exists,
    FileTooBig,
    HearthError,
    InvalidArgument,
    NoSpace,
    NotFound,
    Stale,
    Unavailable,
)
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import block_path, pattern, put, read_all, sums

KEY = BlockKey(0xA1, 1)
OTHER = BlockKey(0xA2, 1)
DATA = pattern((2 << 20) + 77)


def test_a_descriptor_holds_the_file_wherever_it_goes(store):
    put(store, BlockKey(1, 1), b"bytes")
    with block_path(store, BlockKey(1, 1)).open("rb") as mount:
        opened = store.open_read(BlockKey(1, 1))
        passed = os.dup(opened.fd)
        opened.close()
        with pytest.raises(BlockingIOError):
            fcntl.flock(mount, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(passed)
        fcntl.flock(mount, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_a_mount_holds_stays_its_own(store):
    """Others get a copy of what was committed."""
    put(store, KEY, DATA)
    with block_path(store, KEY).open("rb") as mount:
        fcntl.flock(mount, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert read_all(store, KEY) == DATA
        assert os.fstat(mount.fileno()).st_nlink == 0
        assert os.stat(block_path(store, KEY)).st_mode & 0o777 == 0o444


def test_more_than_was_committed_is_not_copied(store):
    put(store, KEY, DATA)
    path = block_path(store, KEY)
    path.chmod(0o644)
    with path.open("ab") as mount:
        fcntl.flock(mount, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mount.write(b"and more")
        mount.flush()
        assert read_all(store, KEY) == DATA


def test_what_a_mount_has_changed_is_served_to_nobody(store):
    put(store, KEY, DATA)
    with block_path(store, KEY).open("rb") as mount:
        fcntl.flock(mount, fcntl.LOCK_EX | fcntl.LOCK_NB)
        flip(block_path(store, KEY))
        with pytest.raises(Stale, match="a newer version follows"):
            store.open_read(KEY)
        assert not store.catalog.bad_blocks
        flip(block_path(store, KEY))
    assert read_all(store, KEY) == DATA


def test_a_mount_that_lets_go_is_waited_for(make_store):
    store = make_store()
    put(store, KEY, DATA)
    inode = block_path(store, KEY).stat().st_ino
    mount = block_path(store, KEY).open("rb")
    fcntl.flock(mount, fcntl.LOCK_EX | fcntl.LOCK_NB)
    make_store.sleep = lambda _: mount.close()
    assert read_all(store, KEY) == DATA
    assert block_path(store, KEY).stat().st_ino == inode


def write(store, key, data, offset=0):
    working = store.create(key)
    os.pwrite(working.fd, data, offset)
    os.close(working.fd)


def flip(path, at=5):
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))


# ---------------------------------------------------------------- life of a block


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, (1 << 20) + 1, 5 << 20])
@pytest.mark.parametrize("sync", [False, True])
def test_a_block_is_written_committed_and_read(store, size, sync):
    data = pattern(size)
    record = put(store, KEY, data, sync=sync)
    assert record.length_bytes == size
    assert record.digest == checksums.digest(sums(data), size)
    assert read_all(store, KEY) == data
    assert block_path(store, KEY).stat().st_mode & 0o777 == 0o444
    assert store.catalog.blocks == 1
    assert store.working_blocks == 0


def test_the_worker_computes_checksums_that_nobody_gave(store):
    write(store, KEY, DATA)
    assert store.commit(KEY, len(DATA), b"", sync=False).checksums == sums(DATA)


def test_what_was_not_committed_is_not_served(store):
    write(store, KEY, DATA)
    with pytest.raises(NotFound):
        store.open_read(KEY)


def test_create_again_finds_the_same_file(store):
    write(store, KEY, DATA)
    working = store.create(KEY)
    assert working.length_bytes == len(DATA)
    assert os.pread(working.fd, 10, 0) == DATA[:10]
    os.close(working.fd)


def test_commit_again_is_the_same_commit(store):
    record = put(store, KEY, DATA)
    assert store.commit(KEY, len(DATA), sums(DATA), sync=False) == record
    assert store.commit(KEY, len(DATA), b"", sync=True).synced
    assert store.catalog.blocks == 1


@pytest.mark.parametrize("other", [DATA[:-1], b"x" + DATA[1:], b""])
def test_a_committed_block_does_not_become_another(store, other):
    put(store, KEY, DATA)
    with pytest.raises(Exists):
        store.commit(KEY, len(other), sums(other), sync=False)
    with pytest.raises(Exists):
        store.create(KEY)
    with pytest.raises(Exists):
        store.write(KEY, 0, [b"x"], 1)
    with pytest.raises(Exists):
        store.discard(KEY)
    assert read_all(store, KEY) == DATA


@pytest.mark.parametrize("length", [0, len(DATA) - 1, len(DATA) + 1, 1 << 62])
def test_a_commit_of_another_length_is_refused(store, length):
    write(store, KEY, DATA)
    with pytest.raises(InvalidArgument):
        store.commit(KEY, length, b"", sync=False)
    assert store.commit(KEY, len(DATA), sums(DATA), sync=False)


def test_a_list_of_checksums_that_does_not_fit_is_refused(store):
    write(store, KEY, DATA)
    for packed in (b"x", sums(DATA)[:-8], sums(DATA) + bytes(8)):
        with pytest.raises(InvalidArgument, match="checksums"):
            store.commit(KEY, len(DATA), packed, sync=False)


def test_a_commit_of_nothing_is_not_found(store):
    with pytest.raises(NotFound):
        store.commit(KEY, 0, b"", sync=False)


def test_generations_are_different_blocks(store):
    put(store, KEY, b"one")
    put(store, BlockKey(KEY.block, 2), b"two")
    assert read_all(store, KEY) == b"one"
    store.delete(KEY)
    assert read_all(store, BlockKey(KEY.block, 2)) == b"two"


def test_delete_and_discard_may_come_twice(store):
    put(store, KEY, DATA)
    write(store, OTHER, DATA)
    for _ in range(2):
        store.delete(KEY)
        store.discard(OTHER)
    with pytest.raises(NotFound):
        store.open_read(KEY)
    assert store.disks[0].space().used_bytes == 0


def test_an_open_block_outlives_its_deletion(store):
    put(store, KEY, DATA)
    opened = store.open_read(KEY)
    store.delete(KEY)
    assert opened.pread(len(DATA), 0) == DATA
    opened.close()


def test_changes_are_noted(store, make_store):
    put(store, KEY, DATA)
    batch = make_store.changes.take()
    assert [(r.key, r.length_bytes, r.working) for r in batch.added] == [(KEY, len(DATA), False)]
    make_store.changes.acknowledge(batch)
    store.delete(KEY)
    assert make_store.changes.take().removed == (KEY,)


def test_the_full_report_is_in_order_and_names_working_blocks(make_store):
    store = make_store(disks=2)
    keys = [BlockKey(block, generation) for block in (1, 2, 256, 1 << 40) for generation in (1, 2)]
    for key in reversed(keys):
        put(store, key, b"x")
    write(store, BlockKey(3, 1), b"y")
    reports = list(store.reports())
    assert [r.key for r in reports] == sorted([*keys, BlockKey(3, 1)])
    assert [r.key for r in reports if r.working] == [BlockKey(3, 1)]


# ---------------------------------------------------------------- writing by stream


def test_pieces_land_where_they_belong(store):
    assert store.write(KEY, 1 << 20, [DATA[1 << 20 : 2 << 20], DATA[2 << 20 :]], len(DATA) - (1 << 20)) == len(DATA)
    assert store.write(KEY, 0, [DATA[: 1 << 20]], 1 << 20) == len(DATA)
    store.commit(KEY, len(DATA), sums(DATA), sync=False)
    assert read_all(store, KEY) == DATA


@pytest.mark.parametrize("size", [0, 2, 5])
def test_more_or_less_than_announced_is_refused(store, size):
    with pytest.raises(InvalidArgument, match="announced"):
        store.write(KEY, 0, [b"ab", b"c"], size)


def test_an_impossible_offset_is_refused_before_anything_is_made(store):
    with pytest.raises(FileTooBig):
        store.write(KEY, (1 << 64) - 1, [b"x"], 1)
    assert store.working_blocks == 0


def test_a_late_stream_does_not_touch_a_committed_block(store):
    def pieces():
        yield b"abc"
        store.commit(KEY, 3, sums(b"abc"), sync=False)
        yield b"late"

    with pytest.raises(Exists, match="meanwhile"):
        store.write(KEY, 0, pieces(), 7)
    assert read_all(store, KEY) == b"abc"


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize("copy_bytes", [0, 1, 1 << 20, len(DATA)])
def test_a_copy_can_be_changed_and_the_source_stays(store, copy_bytes):
    put(store, KEY, DATA)
    working = store.create_copy(OTHER, KEY, copy_bytes)
    length = copy_bytes or len(DATA)
    assert working.length_bytes == length
    os.pwrite(working.fd, b"!", 0)
    os.close(working.fd)
    store.commit(OTHER, length, b"", sync=False)
    assert read_all(store, OTHER) == b"!" + DATA[1:length]
    assert read_all(store, KEY) == DATA


def test_a_copy_asked_for_again_keeps_what_was_written(store):
    put(store, KEY, DATA)
    first = store.create_copy(OTHER, KEY, 0)
    os.pwrite(first.fd, b"!", 0)
    os.close(first.fd)
    again = store.create_copy(OTHER, KEY, 0)
    assert os.pread(again.fd, 1, 0) == b"!"
    os.close(again.fd)


def test_a_copy_of_a_damaged_block_is_refused_and_the_block_is_bad(store):
    put(store, KEY, DATA)
    file = block_path(store, KEY)
    flip(file)
    # As if the disk had changed its mind without anybody writing:
    status = file.stat()
    record = store.catalog.find(KEY)[1]
    store.disks[0].index.put(KEY, msgspec.structs.replace(record, ctime_ns=status.st_ctime_ns))
    with pytest.raises(BlockCorrupt):
        store.create_copy(OTHER, KEY, 0)
    assert store.working_blocks == 0
    with pytest.raises(NotFound):
        store.open_read(KEY)


def test_impossible_copies_are_refused(store):
    put(store, KEY, DATA)
    with pytest.raises(InvalidArgument, match="not the"):
        store.create_copy(OTHER, KEY, len(DATA) + 1)
    with pytest.raises(NotFound):
        store.create_copy(OTHER, BlockKey(9, 9), 0)
    with pytest.raises(Exists):
        store.create_copy(KEY, KEY, 0)
    assert store.working_blocks == 0


# ---------------------------------------------------------------- bad blocks


@pytest.mark.parametrize("at", [0, 1 << 20, len(DATA) - 1])
def test_a_flipped_byte_is_never_delivered(store, make_store, at):
    put(store, KEY, DATA)
    flip(block_path(store, KEY), at)
    with pytest.raises(BlockCorrupt):
        store.open_read(KEY)
    with pytest.raises(NotFound):
        store.open_read(KEY)
    assert KEY in make_store.changes.take().removed
    assert [p.name for p in (store.disks[0].path / "bad").iterdir()] == [str(KEY)]
    assert store.catalog.bad_blocks == 1


@pytest.mark.parametrize("length", [0, 1 << 20, len(DATA) - 1, len(DATA) + 1])
def test_a_block_of_another_length_is_never_delivered(store, length):
    put(store, KEY, DATA)
    os.truncate(block_path(store, KEY), length)
    with pytest.raises(BlockCorrupt):
        store.open_read(KEY)
    with pytest.raises(NotFound):
        store.open_read(KEY)


def test_a_block_deleted_by_hand_is_missing_and_reported(store, make_store):
    put(store, KEY, DATA)
    block_path(store, KEY).unlink()
    with pytest.raises(BlockMissing):
        store.open_read(KEY)
    assert KEY in make_store.changes.take().removed
    assert store.disks[0].space().used_bytes == 0


def test_a_touched_but_good_block_is_served_and_checked_once(store, make_store):
    put(store, KEY, DATA)
    block_path(store, KEY).chmod(0o400)
    assert read_all(store, KEY) == DATA
    make_store.calls.seen.clear()
    assert read_all(store, KEY) == DATA
    assert "verify" not in make_store.calls.seen


def test_a_working_file_deleted_by_hand_does_not_come_back_as_zeros(store):
    write(store, KEY, DATA[: 1 << 20])
    (store.disks[0].path / "working" / str(KEY)).unlink()
    with pytest.raises(BlockMissing):
        store.write(KEY, 1 << 20, [b"x"], 1)


# ---------------------------------------------------------------- full disks


def test_a_full_disk_says_enospc_and_deletes_still_work(make_store):
    store = make_store(limit=4 << 20)
    put(store, KEY, pattern(3 << 20))
    with pytest.raises(NoSpace):
        store.write(OTHER, 0, [pattern(2 << 20)], 2 << 20)
    store.discard(OTHER)
    store.delete(KEY)
    put(store, OTHER, pattern(3 << 20))


def test_a_commit_beyond_the_capacity_is_refused(make_store):
    store = make_store(limit=2 << 20)
    write(store, KEY, pattern(3 << 20))  # a client that did not keep to its limit
    with pytest.raises(NoSpace, match="beyond its limit"):
        store.commit(KEY, 3 << 20, b"", sync=False)
    assert store.catalog.blocks == 0
    store.discard(KEY)
    assert store.disks[0].space().available_bytes == 2 << 20


def test_the_limit_of_a_working_block_is_what_is_left_now(make_store):
    store = make_store(limit=10 << 20)
    put(store, KEY, pattern(4 << 20))
    working = store.create(OTHER)
    assert working.limit_bytes == 6 << 20
    os.pwrite(working.fd, pattern(1 << 20), 0)
    os.close(working.fd)
    again = store.create(OTHER)
    os.close(again.fd)
    assert again.limit_bytes == 6 << 20


def test_a_smaller_capacity_after_a_restart_only_refuses_what_is_new(make_store):
    store = make_store(limit=10 << 20)
    put(store, KEY, pattern(4 << 20))
    store = make_store(limit=1 << 20)
    assert read_all(store, KEY) == pattern(4 << 20)
    with pytest.raises(NoSpace):
        store.create(OTHER)
    store.delete(KEY)
    os.close(store.create(OTHER).fd)


def test_bad_files_give_way_to_a_writer(make_store):
    store = make_store(limit=4 << 20)
    put(store, KEY, pattern(4 << 20))
    store.mark_bad(KEY, "test")
    os.close(store.create(OTHER).fd)


@pytest.mark.parametrize("step", ["write", "publish"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_enospc_of_the_disk_leaves_nothing_torn(store, make_store, step, number):
    make_store.calls.errors[step] = OSError(number, "injected")

    def write_and_commit():
        store.write(KEY, 0, [DATA], len(DATA))
        store.commit(KEY, len(DATA), sums(DATA), sync=False)

    with pytest.raises(NoSpace):
        write_and_commit()
    with pytest.raises(NotFound):
        store.open_read(KEY)
    store.discard(KEY)
    assert not list((store.disks[0].path / "working").iterdir())
    make_store.calls.errors.clear()
    put(store, KEY, DATA)
    assert read_all(store, KEY) == DATA


@pytest.mark.parametrize("step", ["sync-block", "sync-shard"])
def test_a_failed_fsync_fails_the_commit_and_the_disk(store, make_store, step):
    write(store, KEY, DATA)
    make_store.calls.errors[step] = OSError(errno.EIO, "injected")
    with pytest.raises(Unavailable):
        store.commit(KEY, len(DATA), sums(DATA), sync=True)
    assert store.disks[0].failed
    make_store.calls.errors.clear()
    with pytest.raises(NoSpace):
        store.create(OTHER)


@pytest.mark.parametrize("step", ["copy-range", "part-done"])
def test_a_copy_that_fails_leaves_nothing(store, make_store, step):
    put(store, KEY, DATA)
    make_store.calls.errors = {"clone": OSError(errno.EXDEV, ""), step: OSError(errno.ENOSPC, "")}
    with pytest.raises(NoSpace):
        store.create_copy(OTHER, KEY, 0)
    assert not list((store.disks[0].path / "working").iterdir())
    assert store.working_blocks == 0


def test_a_fill_that_fails_leaves_nothing(store, make_store):
    def broken(pwrite):
        pwrite(b"abc", 0)
        raise BlockCorrupt("source")

    with pytest.raises(BlockCorrupt):
        store.fill(KEY, 3, broken)
    make_store.calls.errors["fill"] = OSError(errno.ENOSPC, "")
    with pytest.raises(NoSpace):
        store.fill(KEY, 3, broken)
    assert not list((store.disks[0].path / "working").iterdir())
    assert store.disks[0].space().used_bytes == 0


def test_an_index_without_room_does_not_lose_a_committed_block(store, monkeypatch):
    disk = store.disks[0]
    monkeypatch.setattr(disk.index, "put", lambda key, record: False)
    put(store, KEY, DATA)
    assert read_all(store, KEY) == DATA
    assert disk.space().used_bytes == block_path(store, KEY).stat().st_blocks * 512
    monkeypatch.undo()
    assert read_all(store, KEY) == DATA
    assert disk.blocks == 1
    assert disk.space().used_bytes == block_path(store, KEY).stat().st_blocks * 512
    monkeypatch.setattr(disk.index, "drop", lambda key: False)
    store.delete(KEY)
    with pytest.raises(BlockMissing):
        store.open_read(KEY)


# ---------------------------------------------------------------- several disks


def test_blocks_go_where_most_room_is(make_store):
    store = make_store(disks=3, limit=8 << 20)
    for block in range(6):
        put(store, BlockKey(block, 1), pattern(2 << 20, block))
    assert [disk.blocks for disk in store.disks] == [2, 2, 2]
    for block in range(6):
        assert read_all(store, BlockKey(block, 1)) == pattern(2 << 20, block)


def test_writers_that_have_not_written_yet_are_spread_too(make_store):
    store = make_store(disks=2, limit=8 << 20)
    for block in range(6):
        os.close(store.create(BlockKey(block, 1)).fd)
    assert sorted(store.disks.index(disk) for disk in store._working.values()) == [0, 0, 0, 1, 1, 1]


def test_a_copy_stays_on_the_disk_of_its_source_while_that_has_room(make_store):
    store = make_store(disks=2, limit=8 << 20)
    put(store, KEY, pattern(1 << 20))
    home = store.catalog.find(KEY)[0]
    os.close(store.create_copy(OTHER, KEY, 0).fd)
    assert store._working[OTHER] is home
    write(store, BlockKey(5, 1), pattern(7 << 20))
    store.refresh_working()
    write(store, BlockKey(6, 1), pattern(7 << 20))
    store.refresh_working()
    os.close(store.create_copy(BlockKey(7, 1), KEY, 0).fd)
    assert store._working[BlockKey(7, 1)] is not home
    with pytest.raises(NoSpace):
        store.create_copy(BlockKey(8, 1), KEY, 0)


# ---------------------------------------------------------------- crashes


class Killed(BaseException):
    """The process ends here."""


COMMIT_STEPS = [
    "open-working",
    "stat-working",
    "statvfs",
    "sync-block",
    "publish",
    "seal-block",
    "sync-shard",
    "index",
]


@pytest.mark.parametrize("step", COMMIT_STEPS)
@pytest.mark.parametrize("packed", [sums(DATA), b""])
def test_killed_at_any_step_of_a_commit_the_block_is_there_wholly_or_not(make_store, monkeypatch, step, packed):
    store = make_store()
    write(store, KEY, DATA)
    if step == "index":

        def die(*_):
            raise Killed

        monkeypatch.setattr(store.disks[0].index, "put", die)
    make_store.calls.errors[step] = Killed()
    with pytest.raises(Killed):
        store.commit(KEY, len(DATA), packed, sync=True)
    monkeypatch.undo()
    store = make_store(crash=True)
    try:
        assert read_all(store, KEY) == DATA
        assert step in ("seal-block", "sync-shard", "index")
    except NotFound:
        assert step not in ("seal-block", "sync-shard", "index")
    # The client asks again, and gets the same answer in both cases.
    record = store.commit(KEY, len(DATA), packed, sync=True)
    assert record.checksums == sums(DATA)
    assert read_all(store, KEY) == DATA
    assert store.working_blocks == 0


def test_working_blocks_and_their_bytes_outlive_a_kill(make_store):
    write(make_store(), KEY, DATA)
    store = make_store(crash=True)
    assert [r.key for r in store.reports() if r.working] == [KEY]
    assert store.disks[0].space().used_bytes >= len(DATA)
    store.commit(KEY, len(DATA), sums(DATA), sync=False)
    assert read_all(store, KEY) == DATA


def test_half_made_files_are_swept_at_start(make_store):
    store = make_store()
    working = store.disks[0].path / "working"
    (working / f"{KEY}.part").write_bytes(b"half")
    (working / "notes.txt").write_bytes(b"somebody's")
    store = make_store(crash=True)
    assert [p.name for p in working.iterdir()] == ["notes.txt"]
    assert store.working_blocks == 0


def test_killed_between_file_and_record_of_a_delete_the_block_is_gone(make_store, monkeypatch):
    store = make_store()
    put(store, KEY, DATA)

    def die(*_):
        raise Killed

    monkeypatch.setattr(store.disks[0].index, "drop", die)
    with pytest.raises(Killed):
        store.delete(KEY)
    monkeypatch.undo()
    store = make_store(crash=True)
    with pytest.raises(BlockMissing):
        store.open_read(KEY)


def test_after_another_boot_an_unsynced_block_is_whole_or_unavailable(make_store):
    store = make_store()
    put(store, KEY, DATA)
    put(store, OTHER, DATA)
    store = make_store(boot="boot-2")  # an orderly end: the index is trusted, the bytes are not
    flip(block_path(store, OTHER))
    make_store.calls.seen.clear()
    assert read_all(store, KEY) == DATA
    assert "verify" in make_store.calls.seen
    with pytest.raises(BlockCorrupt):
        store.open_read(OTHER)
    make_store.calls.seen.clear()
    assert read_all(store, KEY) == DATA
    assert "verify" not in make_store.calls.seen


def test_errors_are_of_one_family(store, make_store):
    put(store, KEY, DATA)
    for step in ("open-block", "check-block"):
        for number in (errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM):
            make_store.calls.errors = {step: OSError(number, "injected")}
            with pytest.raises(HearthError):
                store.open_read(KEY)
    make_store.calls.errors = {}
    assert read_all(store, KEY) == DATA
