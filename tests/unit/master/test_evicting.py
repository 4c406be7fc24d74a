"""What may be evicted or expire, and what not, on the pure machine."""

import pytest
from hearthfs.common.errors import InvalidArgument, IsADirectory, NotFound, NotPermitted, Stale
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands
from hearthfs.master.change import Freed, Stored
from hearthfs.master.commands import Evict, EvictMany, Expire, Victim

ROOT = ROOT_INODE
NO = NotPermitted.number
SECOND_NS = 1_000_000_000


@pytest.fixture
def cache(tree):
    """/c, a cache directory."""
    directory = tree.mkdir(ROOT, b"c")
    tree.do(commands.SetXattr(directory, b"hearth.cache", b"1"))
    return directory


def file(tree, directory, name):
    number = tree.create(directory, name)
    tree.publish(number)
    return number


def evict(tree, *numbers):
    victims = []
    for number in numbers:
        inode = tree.inode(number)
        extent = inode.extents[0] if inode and inode.extents else None
        victims.append(Victim(number, extent.block if extent else 1, extent.generation if extent else 1))
    return tree.own(Evict(tuple(victims))).errnos


def test_a_file_goes_with_its_name_and_its_block(tree, cache):
    number = file(tree, cache, b"f")
    block = tree.inode(number).extents[0].block
    mtime = tree.inode(cache).mtime_ns
    assert evict(tree, number) == (0,)
    assert tree.inode(number) is None
    assert tree.names(cache) == []
    assert tree.garbage() == [block]
    assert tree.inode(cache).mtime_ns > mtime
    holders = {holder for touch in tree.touched for holder in touch.holders}
    assert {cache, number} <= holders


def test_only_in_cache_directories(tree, cache):
    plain = tree.mkdir(ROOT, b"plain")
    assert evict(tree, file(tree, plain, b"f"), file(tree, ROOT, b"g"), file(tree, cache, b"h")) == (NO, NO, 0)
    tree.do(commands.SetXattr(cache, b"hearth.cache", b"0"))
    assert evict(tree, file(tree, cache, b"i")) == (NO,)


def test_directories_made_below_inherit(tree, cache):
    below = tree.mkdir(tree.mkdir(cache, b"x"), b"y")
    assert evict(tree, file(tree, below, b"f")) == (0,)
    tree.do(commands.RemoveXattr(below, b"hearth.cache"))
    assert evict(tree, file(tree, below, b"f")) == (NO,)


def test_the_attribute_may_be_set_as_one_of_users(tree):
    directory = tree.mkdir(ROOT, b"c")
    tree.do(commands.SetXattr(directory, b"user.hearth.cache", b"1"))
    with tree.view() as view:
        assert view.xattrs(directory) == {b"hearth.cache": b"1"}
    assert evict(tree, file(tree, directory, b"f")) == (0,)
    tree.do(commands.RemoveXattr(directory, b"user.hearth.cache"))
    assert evict(tree, file(tree, directory, b"f")) == (NO,)


def test_a_file_renamed_out_of_or_into_a_cache_directory(tree, cache):
    number = file(tree, cache, b"f")
    tree.do(commands.Rename(cache, b"f", ROOT, b"f"))
    assert evict(tree, number) == (NO,)
    tree.do(commands.Rename(ROOT, b"f", cache, b"f"))
    assert evict(tree, number) == (0,)


def test_all_names_have_to_be_in_cache_directories(tree, cache):
    number = file(tree, cache, b"f")
    tree.do(commands.Link(number, ROOT, b"g"))
    assert evict(tree, number) == (NO,)
    tree.do(commands.Unlink(ROOT, b"g"))
    tree.do(commands.Link(number, cache, b"g"))
    assert evict(tree, number) == (0,)
    assert tree.names(cache) == []


def test_pinned_files_and_directories(tree, cache):
    number = file(tree, cache, b"f")
    tree.do(commands.SetXattr(number, b"hearth.pin", b"1"))
    assert evict(tree, number) == (NO,)
    tree.do(commands.SetXattr(number, b"hearth.pin", b"0"))
    tree.do(commands.SetXattr(cache, b"hearth.pin", b"1"))
    assert evict(tree, number) == (NO,)
    assert evict(tree, file(tree, tree.mkdir(cache, b"below"), b"g")) == (NO,)
    tree.do(commands.RemoveXattr(cache, b"hearth.pin"))
    assert evict(tree, number) == (0,)
    with pytest.raises(InvalidArgument):
        tree.do(commands.SetXattr(file(tree, cache, b"h"), b"hearth.cache", b"1"))


def test_only_as_what_was_chosen(tree, cache):
    number = file(tree, cache, b"f")
    old = tree.inode(number).extents[0]
    tree.publish(number, 200)
    assert tree.own(Evict((Victim(number, old.block, old.generation),))).errnos == (Stale.number,)
    assert tree.own(Evict((Victim(999, 1, 1),))).errnos == (Stale.number,)
    empty = tree.create(cache, b"empty")
    assert tree.own(Evict((Victim(empty, 0, 0),))).errnos == (Stale.number,)
    assert tree.names(cache) == [b"f", b"empty"]


def test_one_victim_twice_goes_once(tree, cache):
    number = file(tree, cache, b"f")
    assert evict(tree, number, number) == (0, 0)


def test_what_somebody_asked_to_be_evicted(tree, cache):
    file(tree, cache, b"f")
    tree.create(cache, b"empty")
    tree.mkdir(cache, b"d")
    file(tree, ROOT, b"plain")
    reply = tree.do(EvictMany(cache, (b"f", b"empty", b"missing", b"d")))
    assert reply.errnos == (0, 0, NotFound.number, IsADirectory.number)
    assert tree.do(EvictMany(ROOT, (b"plain",))).errnos == (NO,)
    assert tree.names(cache) == [b"d"]


# ------------------------------------------------------------------ time to live


def expire(tree, number, after_s):
    """Whether it goes so long after its last change."""
    return tree.own(Expire((number,), tree.inode(number).ctime_ns + after_s * SECOND_NS)).inodes == (number,)


def test_a_file_expires_after_its_directory_said_so(tree, cache):
    tree.do(commands.SetXattr(cache, b"hearth.ttl", b"2m"))
    number = file(tree, cache, b"f")
    assert not expire(tree, number, 119)
    tree.do(commands.Setattr(number, mtime_ns=0))  # what a copy sets does not count
    assert not expire(tree, number, 119)
    assert expire(tree, number, 120)
    assert tree.names(cache) == []


@pytest.mark.parametrize(
    "attributes",
    [
        {b"hearth.cache": b"1", b"hearth.ttl": b"0"},
        {b"hearth.cache": b"1"},
        {b"hearth.ttl": b"1s"},
        {b"hearth.cache": b"1", b"hearth.ttl": b"1s", b"hearth.pin": b"1"},
    ],
)
def test_what_does_not_expire(tree, attributes):
    for name, value in attributes.items():
        tree.do(commands.SetXattr(ROOT, name, value))
    assert not expire(tree, file(tree, ROOT, b"f"), 1 << 30)


def test_a_time_in_the_past_is_no_age(tree, cache):
    tree.do(commands.SetXattr(cache, b"hearth.ttl", b"1"))
    assert not expire(tree, file(tree, cache, b"f"), -3600)


def test_with_several_names_the_longest_time_counts(tree, cache):
    other = tree.mkdir(cache, b"other")
    tree.do(commands.SetXattr(cache, b"hearth.ttl", b"60"))
    tree.do(commands.SetXattr(other, b"hearth.ttl", b"100"))
    number = file(tree, cache, b"f")
    tree.do(commands.Link(number, other, b"g"))
    assert not expire(tree, number, 99)
    assert expire(tree, number, 100)


def test_what_was_never_published_stays(tree, cache):
    tree.do(commands.SetXattr(cache, b"hearth.ttl", b"1"))
    assert not expire(tree, tree.create(cache, b"f"), 1 << 30)


@pytest.mark.parametrize("text", [b"", b"-1", b"soon", b"1w", b"1e9", b"99999999999999999999"])
def test_what_is_no_time(tree, text):
    with pytest.raises(InvalidArgument):
        tree.do(commands.SetXattr(ROOT, b"hearth.ttl", text))


# ------------------------------------------------------------------ what the policy hears


def moved(tree, command):
    tree.do(command)
    return tree.moved


def test_the_policy_hears_of_blocks_in_cache_directories(tree, cache, make_publication):
    number = tree.create(cache, b"f")
    block, generation = tree.allocate()
    (stored,) = moved(tree, commands.Publish(make_publication(number, block, generation, 100)))
    assert stored == Stored(("w1",), (), block, 100, 0, (cache, b"f"))
    other, generation = tree.allocate("w2")
    put = commands.PutMany(cache, (b"f",), 0o644, 0, 0, (other,), (generation,), (70,), (1,), "w2", depths=(9,))
    assert moved(tree, put) == (
        Freed(("w1",), (), block, 100),
        Stored(("w2",), (), other, 70, 9, (cache, b"f")),
    )
    held = commands.HeldBlock(other, generation, 70, 1)
    assert moved(tree, commands.UpdateReplicas("w1", (held,))) == (Stored(("w1",), (), other, 70, 9, (cache, b"f")),)
    assert moved(tree, commands.UpdateReplicas("w1", (), ((other, generation),))) == (Freed(("w1",), (), other, 70),)
    assert moved(tree, commands.Unlink(cache, b"f")) == (Freed(("w2",), (), other, 70),)


def test_and_of_nothing_that_stays(tree, make_publication):
    number = tree.create(ROOT, b"f")
    block, generation = tree.allocate()
    assert moved(tree, commands.Publish(make_publication(number, block, generation, 100))) == ()


def test_and_of_what_is_renamed_into_a_cache_directory(tree, cache):
    number = file(tree, ROOT, b"f")
    (stored,) = moved(tree, commands.Rename(ROOT, b"f", cache, b"f"))
    assert stored.block == tree.inode(number).extents[0].block


def test_quotas_are_named(tree, cache):
    tree.do(commands.SetXattr(cache, b"hearth.quota", b"1000"))
    quota = tree.inode(cache).quota
    number = tree.create(cache, b"f")
    tree.publish(number)
    (stored,) = tree.moved
    assert stored.quotas == (quota,)
