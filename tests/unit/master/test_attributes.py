import stat

import pytest
from hearthfs.common.errors import (
    Exists,
    FileTooBig,
    InvalidArgument,
    IsADirectory,
    NameTooLong,
    NoAttribute,
    NoSpace,
    Stale,
    TooBig,
)
from hearthfs.common.types import FILE_MAX_BYTES, ROOT_INODE
from hearthfs.master import attributes, commands

ROOT = ROOT_INODE


def test_chmod_chown_and_times(tree):
    number = tree.create(ROOT, b"f")
    tree.do(commands.Setattr(number, mode=0o107777, uid=3, gid=4, atime_ns=-5, mtime_ns=6))
    inode = tree.inode(number)
    assert (inode.mode, inode.uid, inode.gid) == (stat.S_IFREG | 0o7777, 3, 4)
    assert (inode.atime_ns, inode.mtime_ns, inode.ctime_ns) == (-5, 6, tree.now_ns)
    assert inode.version == 0
    before = inode
    tree.do(commands.Setattr(number, mode=0))
    assert tree.inode(number).uid == before.uid
    assert tree.inode(number).mode == stat.S_IFREG


def test_truncate_is_only_numbers(tree):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number, 100)
    for size, valid in ((200, 100), (50, 50), (80, 50), (1 << 40, 50), (10, 10)):
        tree.do(commands.Setattr(number, size_bytes=size))
        inode = tree.inode(number)
        assert inode.size_bytes == size
        assert (inode.extents[0].block, inode.extents[0].valid_bytes, inode.extents[0].length_bytes) == (
            block,
            valid,
            100,
        )
        assert inode.mtime_ns == tree.now_ns
    assert inode.version == 6
    assert tree.garbage() == []
    tree.do(commands.Setattr(number, size_bytes=0))
    assert tree.inode(number).extents == ()
    assert tree.garbage() == [block]
    tree.do(commands.Setattr(number, size_bytes=30, mtime_ns=5))
    assert (tree.inode(number).size_bytes, tree.inode(number).mtime_ns) == (30, 5)


def test_truncate_refusals(tree):
    directory = tree.mkdir(ROOT, b"d")
    fifo = tree.do(commands.Mknod(ROOT, b"p", stat.S_IFIFO, 0, 0)).inode
    number = tree.create(ROOT, b"f")
    for inode, size, error in (
        (directory, 0, IsADirectory),
        (fifo, 0, InvalidArgument),
        (number, FILE_MAX_BYTES + 1, FileTooBig),
        (number, (1 << 64) - 1, FileTooBig),
        (12345, 0, Stale),
    ):
        with pytest.raises(error):
            tree.do(commands.Setattr(inode, size_bytes=size))


def xattrs(tree, number):
    with tree.view() as view:
        return view.xattrs(number)


def test_xattrs(tree):
    number = tree.create(ROOT, b"f")
    tree.do(commands.SetXattr(number, b"user.a", b"1"))
    tree.do(commands.SetXattr(number, "user.ü".encode(), b"\0\xff" * 100))
    tree.do(commands.SetXattr(number, b"user.a", b"2", commands.XATTR_REPLACE))
    assert xattrs(tree, number) == {b"user.a": b"2", "user.ü".encode(): b"\0\xff" * 100}
    assert tree.inode(number).ctime_ns == tree.now_ns
    with pytest.raises(Exists):
        tree.do(commands.SetXattr(number, b"user.a", b"3", commands.XATTR_CREATE))
    with pytest.raises(NoAttribute):
        tree.do(commands.SetXattr(number, b"user.b", b"3", commands.XATTR_REPLACE))
    tree.do(commands.RemoveXattr(number, b"user.a"))
    with pytest.raises(NoAttribute):
        tree.do(commands.RemoveXattr(number, b"user.a"))
    tree.do(commands.Unlink(ROOT, b"f"))
    assert xattrs(tree, number) == {}


def test_xattr_limits(tree):
    number = tree.create(ROOT, b"f")
    for name, value, error in (
        (b"", b"", InvalidArgument),
        (b"user.\xff", b"", InvalidArgument),
        (b"user.\0", b"", InvalidArgument),
        (b"x" * 256, b"", NameTooLong),
        (b"user.a", b"x" * 65537, TooBig),
    ):
        with pytest.raises(error):
            tree.do(commands.SetXattr(number, name, value))
    with pytest.raises(InvalidArgument):
        tree.do(commands.SetXattr(number, b"user.a", b"", 3))
    for index in range(16):
        tree.do(commands.SetXattr(number, b"user.%d" % index, b"x" * 65536))
    with pytest.raises(NoSpace):
        tree.do(commands.SetXattr(number, b"user.more", b"x"))
    tree.do(commands.SetXattr(number, b"user.0", b""))
    tree.do(commands.SetXattr(number, b"user.more", b"x"))


def test_xattr_count(tree, monkeypatch):
    monkeypatch.setattr(attributes, "XATTRS_MAX", 2)
    number = tree.create(ROOT, b"f")
    tree.do(commands.SetXattr(number, b"user.a", b""))
    tree.do(commands.SetXattr(number, b"user.b", b""))
    with pytest.raises(NoSpace):
        tree.do(commands.SetXattr(number, b"user.c", b""))
    tree.do(commands.SetXattr(number, b"user.a", b"1"))
