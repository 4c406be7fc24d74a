"""Every rule of quotas on the pure machine; the fixture checks the sums at the end of each test."""

import pytest
from hearthfs.common.errors import CrossDevice, InvalidArgument, QuotaExceeded
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import check, commands
from hearthfs.master.commands import RENAME_EXCHANGE, Rename

ROOT = ROOT_INODE


def used(tree, directory):
    """Bytes in use in the quota that the directory carries."""
    with tree.view() as view:
        found = view.find_quota(view.inode(directory).quota)
        return None if found is None else found.used_bytes


def limit(tree, directory, text):
    tree.do(commands.SetXattr(directory, b"hearth.quota", text))


def file(tree, directory, name, length=100):
    number = tree.create(directory, name)
    if length:
        tree.publish(number, length)
    return number


@pytest.fixture
def limited(tree):
    """/d with a quota of 1000 bytes."""
    directory = tree.mkdir(ROOT, b"d")
    limit(tree, directory, b"1000")
    return directory


def put(tree, directory, names, lengths):
    blocks = [tree.allocate() for _ in names]
    return tree.do(
        commands.PutMany(
            directory,
            tuple(names),
            0o644,
            0,
            0,
            tuple(block for block, _ in blocks),
            tuple(generation for _, generation in blocks),
            tuple(lengths),
            (7,) * len(names),
            "w1",
        )
    ).errnos


def test_publish_overwrite_truncate_and_unlink_are_counted(tree, limited):
    number = file(tree, limited, b"f", 600)
    assert used(tree, limited) == 600
    tree.publish(number, 900)
    assert used(tree, limited) == 900
    tree.do(commands.Setattr(number, size_bytes=10))  # the block is as long as before
    assert used(tree, limited) == 900
    tree.do(commands.Setattr(number, size_bytes=0))
    assert used(tree, limited) == 0
    tree.publish(number, 50)
    tree.do(commands.Setattr(number, size_bytes=1 << 40))  # a hole takes nothing
    assert used(tree, limited) == 50
    tree.do(commands.Unlink(limited, b"f"))
    assert used(tree, limited) == 0


def test_what_does_not_fit_is_refused_and_the_old_version_stays(tree, limited):
    number = file(tree, limited, b"f", 600)
    before = tree.inode(number)
    with pytest.raises(QuotaExceeded, match="1000 bytes and 600 in use"):
        tree.publish(number, 1001)
    assert tree.inode(number) == before
    other = file(tree, limited, b"g", 0)
    with pytest.raises(QuotaExceeded):
        tree.publish(other, 401)
    tree.publish(other, 400)
    with pytest.raises(QuotaExceeded):
        tree.create(limited, b"h")
    reply = tree.do(commands.CreateMany(limited, (b"f", b"h"), 0o644, 0, 0))
    assert reply.errnos == (0, QuotaExceeded.number)
    tree.create(ROOT, b"elsewhere")
    tree.publish(number, 300)  # smaller is always fine
    tree.create(limited, b"h")


def test_a_batch_is_checked_item_by_item(tree, limited):
    full = QuotaExceeded.number
    assert put(tree, limited, [b"a", b"b", b"c", b"d"], [500, 600, 400, 200]) == (0, full, 0, full)
    assert tree.names(limited) == [b"a", b"c"]
    assert put(tree, limited, [b"a"], [601]) == (full,)
    assert put(tree, limited, [b"a"], [600]) == (0,)
    assert used(tree, limited) == 1000


def test_an_unsealed_block_that_grows(tree, limited, make_publication):
    number = tree.create(limited, b"f")
    block, generation = tree.allocate()
    grow = lambda length, sealed: commands.Publish(  # noqa: E731 - the same thing three times
        make_publication(number, block, generation, length, sealed=sealed, digest=5 if sealed else 0)
    )
    tree.do(grow(400, False))
    tree.do(grow(900, False))
    assert used(tree, limited) == 900
    with pytest.raises(QuotaExceeded):
        tree.do(grow(1001, True))
    tree.do(grow(1000, True))
    assert used(tree, limited) == 1000


def test_directories_below_count_too(tree, limited):
    deep = tree.mkdir(tree.mkdir(limited, b"x"), b"y")
    file(tree, deep, b"f", 700)
    assert used(tree, limited) == used(tree, deep) == 700
    with pytest.raises(QuotaExceeded):
        file(tree, limited, b"g", 301)


def test_one_quota_in_another(tree, limited):
    inner = tree.mkdir(limited, b"inner")
    limit(tree, inner, b"500")
    number = file(tree, inner, b"f", 400)
    assert (used(tree, inner), used(tree, limited)) == (400, 400)
    with pytest.raises(QuotaExceeded):
        file(tree, inner, b"g", 200)
    file(tree, limited, b"h", 600)
    tree.do(commands.Unlink(inner, b"g"))
    with pytest.raises(QuotaExceeded):  # the inner one has room, the outer one has not
        tree.publish(number, 450)
    tree.do(commands.RemoveXattr(inner, b"hearth.quota"))
    tree.own(commands.SettleQuota((inner, number)))
    assert used(tree, inner) == used(tree, limited) == 1000


def test_links(tree, limited):
    number = file(tree, limited, b"f", 300)
    tree.do(commands.Link(number, limited, b"g"))
    assert used(tree, limited) == 300
    with pytest.raises(CrossDevice):
        tree.do(commands.Link(number, ROOT, b"g"))
    outside = file(tree, ROOT, b"o")
    with pytest.raises(CrossDevice):
        tree.do(commands.Link(outside, limited, b"o"))
    with pytest.raises(CrossDevice):  # one of two names
        tree.do(Rename(limited, b"f", ROOT, b"f"))
    tree.do(commands.Unlink(limited, b"f"))
    assert used(tree, limited) == 300
    tree.do(commands.Unlink(limited, b"g"))
    assert used(tree, limited) == 0


def test_renames_of_files(tree, limited):
    file(tree, ROOT, b"in", 400)
    file(tree, limited, b"out", 500)
    tree.do(Rename(ROOT, b"in", limited, b"in"))
    assert used(tree, limited) == 900
    tree.do(Rename(limited, b"out", ROOT, b"out"))
    assert used(tree, limited) == 400
    file(tree, ROOT, b"big", 700)
    with pytest.raises(QuotaExceeded):
        tree.do(Rename(ROOT, b"big", limited, b"big"))
    tree.do(Rename(ROOT, b"big", limited, b"in"))  # what it replaces makes room
    assert used(tree, limited) == 700
    file(tree, ROOT, b"x", 200)
    tree.do(Rename(ROOT, b"x", limited, b"in", RENAME_EXCHANGE))
    assert used(tree, limited) == 200


def test_renames_of_directories(tree, limited):
    full, empty = tree.mkdir(ROOT, b"full"), tree.mkdir(ROOT, b"empty")
    file(tree, full, b"f", 100)
    with pytest.raises(CrossDevice):
        tree.do(Rename(ROOT, b"full", limited, b"full"))
    tree.do(Rename(ROOT, b"empty", limited, b"empty"))
    file(tree, empty, b"f", 250)
    assert used(tree, limited) == 250
    with pytest.raises(CrossDevice):
        tree.do(Rename(limited, b"empty", ROOT, b"empty"))
    tree.do(Rename(limited, b"empty", limited, b"other"))
    # A directory with a quota of its own takes it along.
    other = tree.mkdir(ROOT, b"e")
    limit(tree, other, b"2000")
    with pytest.raises(QuotaExceeded):
        file(tree, other, b"f", 2001)
    file(tree, other, b"g", 700)
    tree.do(Rename(ROOT, b"e", limited, b"e"))
    assert (used(tree, other), used(tree, limited)) == (700, 950)
    tree.do(Rename(limited, b"e", ROOT, b"e"))
    assert (used(tree, other), used(tree, limited)) == (700, 250)


def test_a_limit_may_change_and_be_below_what_is_used(tree, limited):
    number = file(tree, limited, b"f", 800)
    limit(tree, limited, b"500")
    with pytest.raises(QuotaExceeded):
        tree.publish(number, 801)
    tree.publish(number, 700)
    limit(tree, limited, b"2KiB")
    tree.publish(number, 2048)
    limit(tree, limited, b"0")
    tree.publish(number, 1 << 30)
    assert used(tree, limited) is None


@pytest.mark.parametrize("text", [b"", b"much", b"-1", b"1e400", b"9999999P", b"\xff"])
def test_what_is_no_limit(tree, text):
    with pytest.raises(InvalidArgument):
        limit(tree, ROOT, text)


def test_what_was_there_before_is_settled_from_the_top(tree):
    top = tree.mkdir(ROOT, b"top")
    below = tree.mkdir(top, b"below")
    old = file(tree, below, b"old", 300)
    limit(tree, top, b"1000")
    new = file(tree, top, b"new", 100)
    assert used(tree, top) == 100
    tree.own(commands.SettleQuota((below,)))
    file(tree, below, b"fresh", 50)
    tree.own(commands.SettleQuota((old, new, 999)))
    tree.own(commands.SettleQuota((old, new)))
    assert used(tree, top) == 450
    with tree.view() as view:
        quota = view.inode(top).quota
    tree.own(commands.FinishQuota(quota))
    with tree.view() as view:
        assert view.find_quota(quota).settled


def test_a_quota_that_is_taken_away(tree, limited):
    number = file(tree, limited, b"f", 300)
    with tree.view() as view:
        quota = view.inode(limited).quota
    tree.do(commands.RemoveXattr(limited, b"hearth.quota"))
    tree.publish(number, 5000)  # no limit at once, also for those that still count in it
    tree.own(commands.SettleQuota((number,)))
    tree.own(commands.FinishQuota(quota))
    with tree.view() as view:
        assert view.find_quota(quota) is None
    limit(tree, limited, b"400")
    tree.own(commands.SettleQuota((number,)))
    assert used(tree, limited) == 5000


def test_with_its_directory_a_quota_goes(tree, limited):
    with tree.view() as view:
        quota = view.inode(limited).quota
    tree.do(commands.Rmdir(ROOT, b"d"))
    with tree.view() as view:
        assert view.find_quota(quota) is None


def test_the_check_finds_a_wrong_sum(tree, limited):
    number = file(tree, limited, b"f", 300)
    with tree.store.batch() as batch, batch.step() as txn:
        from hearthfs.master.change import Change
        from hearthfs.master.quotas import add

        change = Change(txn, now_ns=0)
        add(change, tree.inode(number).quota, 5)
        change.flush()
    with tree.view() as view:
        assert any("counts 305 bytes, its files have 300" in each for each in check.problems(view))
    tree.do(commands.Unlink(limited, b"f"))
    with tree.store.batch() as batch, batch.step() as txn:
        change = Change(txn, now_ns=0)
        add(change, tree.inode(limited).quota, -5)
        change.flush()
