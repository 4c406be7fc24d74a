import pytest
from hearthfs.common.errors import InvalidArgument
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands
from hearthfs.master.directory_policy import DEFAULT, DirectoryPolicy, policy_of


def test_nothing_set_is_the_default():
    assert policy_of({}) == policy_of({b"user.a": b"1"}) == DEFAULT == DirectoryPolicy(False, 1, False)


def test_what_the_attributes_say():
    said = {b"hearth.cache": b"1", b"hearth.replicas": b"3", b"hearth.replicate": b"before_close"}
    assert policy_of(said) == DirectoryPolicy(cache=True, replicas=3, before_close=True)
    assert policy_of(said | {b"hearth.replicas": b"many"}) == DirectoryPolicy(cache=True, replicas=1, before_close=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"hearth.replicas", b"0"),
        (b"hearth.replicas", b"17"),
        (b"hearth.replicas", b""),
        (b"hearth.replicas", b"\xff"),
        (b"hearth.cache", b"yes"),
        (b"hearth.replicate", b"later"),
        (b"hearth.replica", b"2"),
    ],
)
def test_what_means_nothing_is_refused(tree, name, value):
    with pytest.raises(InvalidArgument):
        tree.do(commands.SetXattr(ROOT_INODE, name, value))


def test_files_have_none(tree):
    number = tree.create(ROOT_INODE, b"f")
    with pytest.raises(InvalidArgument, match="belongs to directories"):
        tree.do(commands.SetXattr(number, b"hearth.replicas", b"2"))
    tree.do(commands.SetXattr(number, b"user.replicas", b"2"))


def test_directories_made_below_inherit(tree):
    before = tree.mkdir(ROOT_INODE, b"before")
    tree.do(commands.SetXattr(ROOT_INODE, b"hearth.replicas", b"2"))
    tree.do(commands.SetXattr(ROOT_INODE, b"user.colour", b"red"))
    below = tree.mkdir(ROOT_INODE, b"below")
    deep = tree.mkdir(below, b"deep")
    tree.do(commands.SetXattr(below, b"hearth.replicas", b"3"))
    with tree.view() as view:
        assert [view.policy(each).replicas for each in (ROOT_INODE, before, below, deep)] == [2, 1, 3, 2]
        assert view.xattrs(deep) == {b"hearth.replicas": b"2"}
    tree.do(commands.RemoveXattr(deep, b"hearth.replicas"))
    with tree.view() as view:
        assert view.policy(deep) == DEFAULT
