"""Restoring offline: the tables of a record, byte for byte; or a refusal, and nothing that a master would start on."""

import shutil

import msgspec
import pytest
from hearthfs.common.errors import DataDamaged, HearthError, InvalidArgument, NotEmpty, NotFound, WrongCluster
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import check, commands, core, journal, restore, segment
from hearthfs.master.archive import Archive
from hearthfs.master.store import FILE_NAME, LmdbStore
from hearthfs.master.tables import TABLES, rows
from hearthfs.master.view import View

NOW_NS = 5_000


def tables(store):
    with store.snapshot() as reader:
        return {table: list(rows(reader, table)) for table in TABLES}


def copy(store, path):
    with path.open("wb") as file:
        return store.copy_to(file.fileno(), journal.last_number)


class Life:
    """A store that was worked on: a backup, three segments since, and what the tables were after some records."""

    def __init__(self, tree, path):
        self.tree, self.path = tree, path
        self.dumps = {}
        self.work(2)
        self.start = copy(tree.store, path / "backup")
        for _ in range(3):
            self.work(2)
            self.archive()
        with tree.view() as view:
            self.counters, self.epoch = view.counters(), view.epoch()
        self.end = max(self.dumps)

    def work(self, count):
        for _ in range(count):
            inode = self.tree.create(ROOT_INODE, b"f%d" % self.tree.now_ns)
            self.tree.publish(inode, 100)
            with pytest.raises(HearthError):
                self.tree.do(commands.Rmdir(ROOT_INODE, b"none"))
        with self.tree.store.snapshot() as reader:
            self.dumps[journal.last_number(reader)] = tables(self.tree.store)

    def archive(self):
        place = self.path / "segments"
        with Archive(place, 1 << 30) as archive, self.tree.store.snapshot() as reader:
            last = segment.listed(place)
            after = last[-1].last if last else 2
            return list(archive.write("test", journal.page(reader, after, journal.last_number(reader))))


class Past:
    """One test's files of it."""

    def __init__(self, life, path):
        self.life, self.path = life, path
        self.start, self.end, self.dumps = life.start, life.end, life.dumps
        self.backup, self.segments = path / "backup", path / "segments"
        shutil.copy(life.path / "backup", self.backup)
        shutil.copytree(life.path / "segments", self.segments)

    def restore(self, to=None, *, exact=True, data="new", **changes):
        given = {"backup": self.backup, "segments": self.segments, **changes}
        return restore.restore(given["backup"], given["segments"], to, self.path / data, NOW_NS, exact=exact)


@pytest.fixture(scope="module")
def life(tmp_path_factory, make_tree):
    path = tmp_path_factory.mktemp("life")
    store = LmdbStore(path / "data")
    made = Life(make_tree(store), path)
    store.close()
    return made


@pytest.fixture
def past(life, tmp_path):
    return Past(life, tmp_path)


@pytest.fixture
def opened(tmp_path):
    """``opened("new")``: the store of a directory that was restored."""
    stores = []

    def open_(name="new"):
        stores.append(LmdbStore(tmp_path / name))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def test_to_a_record_makes_its_tables_byte_for_byte(past, opened):
    for to in [number for number in past.dumps if number >= past.start]:
        reached = past.restore(to, data=str(to))
        assert reached == ("test", past.start, to)
        assert tables(opened(str(to))) == past.dumps[to]
    assert past.restore().sequence == past.end
    assert tables(opened()) == past.dumps[past.end]
    assert past.restore(data="backup only", segments=None).sequence == past.start


def test_in_many_batches_as_in_one(past, opened, monkeypatch):
    monkeypatch.setattr(restore, "BATCH_RECORDS", 2)
    past.restore()
    assert tables(opened()) == past.dumps[past.end]


def test_nothing_that_the_lost_time_gave_out_is_given_out_again(past, opened):
    past.restore(past.start, exact=False)
    store = opened()
    with store.snapshot() as reader:
        view = View(reader)
        assert check.problems(view) == []
        assert journal.last_number(reader) == past.start + 1
        last = list(journal.iterate(reader))[-1].request
        assert last == commands.Request(commands.Restored(restore.EPOCHS_PASSED, restore.NUMBERS_PASSED), NOW_NS)
        new, new_epoch = view.counters(), view.epoch()
    old, old_epoch = past.life.counters, past.life.epoch
    assert new.next_inode > old.next_inode + (1 << 39)
    assert new.next_cookie > old.next_cookie + (1 << 39)
    assert new.next_block > old.next_block + (1 << 39)
    assert old_epoch.epoch + 10_000 < new_epoch.epoch < old_epoch.epoch + core.EPOCH_LEAP_MAX
    assert new.inodes < old.inodes


def test_the_mark_of_a_restore_is_replayed_like_any_other_record(tree):
    assert tree.own(commands.Restored(5, 7)).inode == 0
    with tree.view() as view:
        assert (view.epoch().epoch, view.counters().next_inode, view.counters().next_block) == (6, 9, 8)
    encoded = msgspec.msgpack.encode(commands.Request(commands.Restored(5, 7), 1))
    assert msgspec.msgpack.decode(encoded, type=commands.Request).command == commands.Restored(5, 7)
    for useless in (commands.Restored(0, 7), commands.Restored(5, -1)):
        with pytest.raises(InvalidArgument):
            tree.own(useless)


# ------------------------------------------------------------------ refusals


@pytest.fixture
def refused(past):
    """``refused(error, text, **restore's)``: it raises that, and leaves nothing."""

    def refuse(kind, text, to=None, **changes):
        with pytest.raises(kind, match=text):
            past.restore(to, **changes)
        assert not (past.path / "new").exists()

    return refuse


def test_a_gap_between_segments_is_named(past, refused):
    first, second, _ = segment.listed(past.segments)
    second.path.unlink()
    refused(NotFound, f"records {second.first} to {second.last} are missing before .*restore --to {first.last}")
    past.restore(first.last)


def test_a_gap_after_the_backup_is_named(past, refused):
    first = segment.listed(past.segments)[0]
    first.path.unlink()
    refused(NotFound, f"records {past.start + 1} to {first.last} are missing")


def test_a_record_that_is_not_there_is_refused(past, refused):
    refused(NotFound, f"end at record {past.end}, there is no {past.end + 1}", past.end + 1)
    refused(NotFound, f"end at record {past.start}", past.start + 1, segments=None)
    refused(InvalidArgument, "take an older one", past.start - 1)


def test_segments_of_another_cluster_are_refused(past, refused):
    last = segment.listed(past.segments)[-1]
    last.path.write_bytes(segment.header("other") + b"".join(map(segment.packed, last.records("test"))))
    refused(WrongCluster, last.path.name)


def test_segments_of_another_history_are_refused(past, refused):
    """A record that the backup has, too, is another one there."""
    first = segment.listed(past.segments)[0]
    changed = list(first.records("test"))
    changed[0] = changed[1]._replace(number=changed[0].number)
    assert changed[0].number <= past.start
    first.path.write_bytes(segment.header("test") + b"".join(map(segment.packed, changed)))
    refused(InvalidArgument, f"record {changed[0].number} in .* is not the backup's")


def test_a_damaged_segment_is_refused_and_what_is_before_it_can_be_had(past, refused, opened):
    last = segment.listed(past.segments)[-1]
    last.path.write_bytes(last.path.read_bytes()[:-1])
    refused(DataDamaged, f"at record {last.last} .*restore --to {last.last - 1} ")
    past.restore(last.last - 1)
    with opened().snapshot() as reader:
        assert journal.last_number(reader) == last.last - 1


def test_a_record_that_ends_otherwise_when_it_is_replayed_is_refused(past, refused):
    first = segment.listed(past.segments)[0]
    changed = list(first.records("test"))
    number, body = changed[-1]
    record = msgspec.structs.replace(journal.decode(body), error="Exists")
    changed[-1] = (number, msgspec.msgpack.encode(record))
    first.path.write_bytes(segment.header("test") + b"".join(segment.packed(journal.Stored(*each)) for each in changed))
    refused(DataDamaged, f"journal record {number}")


def test_every_cut_of_the_backup_is_refused_by_name(past, refused):
    data = past.backup.read_bytes()
    for cut in [0, 1, 100, 4095, 4096, 8192, 8193, len(data) // 2, len(data) - 4096, len(data) - 1]:
        past.backup.write_bytes(data[:cut])
        refused(DataDamaged, str(past.backup))


def test_a_flipped_byte_of_a_value_in_the_backup_is_refused_by_name(past, refused):
    data = bytearray(past.backup.read_bytes())
    place = data.rindex(b"mtime_ns")
    data[place] ^= 1
    past.backup.write_bytes(data)
    refused(DataDamaged, f"{past.backup}: .*checksum")


def test_what_is_no_backup_is_refused(past, refused, tmp_path):
    (tmp_path / "text").write_text("something else\n" * 1000)
    refused(DataDamaged, "text", backup=tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        past.restore(backup=tmp_path / "none")


def test_only_into_a_new_or_empty_directory(past, opened):
    new = past.path / "new"
    new.mkdir()
    (new / "hearth.mdb").write_text("precious")
    with pytest.raises(NotEmpty, match=r"hearth\.mdb"):
        past.restore()
    assert (new / "hearth.mdb").read_text() == "precious"
    (new / "hearth.mdb").unlink()
    (new / "lost+found").mkdir()  # of a fresh filesystem
    past.restore()
    assert sorted(path.name for path in new.iterdir()) == [FILE_NAME, "lost+found"]
    assert (new / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert tables(opened()) == past.dumps[past.end]


def test_an_empty_directory_that_was_there_stays_empty_after_a_failure(past):
    (past.path / "new").mkdir()
    with pytest.raises(NotFound):
        past.restore(past.end + 1)
    assert list((past.path / "new").iterdir()) == []


def test_no_master_starts_on_a_restore_that_was_killed(past, monkeypatch):
    """Whatever it had got to: the directory in which it works is still there."""
    kept = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: kept.append(path))
    for data, broken in (("early", "_fill"), ("late", "_replay")):
        with monkeypatch.context() as patch:
            patch.setattr(restore, broken, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                past.restore(data=data)
        with pytest.raises(DataDamaged, match="a restore did not end here"):
            LmdbStore(past.path / data)
    assert len(kept) == 2
