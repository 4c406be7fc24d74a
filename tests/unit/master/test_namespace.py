import stat

import pytest
from hearthfs.common.errors import (
    Exists,
    HearthError,
    InvalidArgument,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotEmpty,
    NotFound,
    NotPermitted,
    Stale,
    TooManyLinks,
)
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, namespace

ROOT = ROOT_INODE
BAD_NAMES = [
    (b"", InvalidArgument),
    (b".", InvalidArgument),
    (b"..", InvalidArgument),
    (b"a/b", InvalidArgument),
    (b"/", InvalidArgument),
    (b"a\0", InvalidArgument),
    (b"x" * 256, NameTooLong),
    (b"x" * 5000, NameTooLong),
]


@pytest.mark.parametrize(("name", "error"), BAD_NAMES)
@pytest.mark.parametrize(
    "command",
    [
        lambda name: commands.Create(ROOT, name, 0o644, 0, 0),
        lambda name: commands.Mkdir(ROOT, name, 0o755, 0, 0),
        lambda name: commands.Mknod(ROOT, name, stat.S_IFIFO, 0, 0),
        lambda name: commands.Symlink(ROOT, name, b"target", 0, 0),
        lambda name: commands.Unlink(ROOT, name),
        lambda name: commands.Rmdir(ROOT, name),
        lambda name: commands.Rename(ROOT, name, ROOT, b"good"),
        lambda name: commands.Rename(ROOT, b"good", ROOT, name),
    ],
)
def test_bad_names(tree, name, error, command):
    tree.create(ROOT, b"good")
    with pytest.raises(error):
        tree.do(command(name))


@pytest.mark.parametrize("name", [b"x" * 255, b"\xff\xfe", b"new\nline", b"...", b" ", "ü".encode()])
def test_good_names(tree, name):
    number = tree.create(ROOT, name)
    assert tree.names(ROOT) == [name]
    assert tree.inode(number).links == ((ROOT, name),)


def test_create(tree):
    reply = tree.do(commands.Create(ROOT, b"f", 0o100640, 5, 6))
    inode = tree.inode(reply.inode)
    assert (inode.mode, inode.uid, inode.gid, inode.nlink) == (stat.S_IFREG | 0o640, 5, 6, 1)
    assert inode.atime_ns == inode.mtime_ns == inode.ctime_ns == tree.now_ns
    assert not reply.existed
    assert reply.attributes == inode
    again = tree.do(commands.Create(ROOT, b"f", 0o600, 0, 0))
    assert again.existed
    assert again.inode == reply.inode
    assert again.attributes == inode
    with pytest.raises(Exists):
        tree.do(commands.Create(ROOT, b"f", 0o600, 0, 0, exclusive=True))


def test_create_allocates_for_a_new_and_for_an_old_file(tree):
    for existed in (False, True):
        reply = tree.do(commands.Create(ROOT, b"f", 0o600, 0, 0, worker_id="w2"))
        assert reply.existed is existed
        assert [block.worker_id for block in reply.blocks] == ["w2"]


def test_create_over_a_directory(tree):
    tree.mkdir(ROOT, b"d")
    with pytest.raises(IsADirectory):
        tree.do(commands.Create(ROOT, b"d", 0o600, 0, 0))


@pytest.mark.parametrize("parent", [0, 999, 1 << 63])
def test_an_unknown_parent(tree, parent):
    for command in (
        commands.Create(parent, b"f", 0, 0, 0),
        commands.Mkdir(parent, b"f", 0, 0, 0),
        commands.Unlink(parent, b"f"),
        commands.Rmdir(parent, b"f"),
        commands.Rename(parent, b"f", ROOT, b"g"),
        commands.Rename(ROOT, b"f", parent, b"g"),
        commands.CreateMany(parent, (b"f",), 0, 0, 0),
        commands.UnlinkMany(parent, (b"f",)),
    ):
        with pytest.raises((Stale, NotFound)):
            tree.do(command)


def test_a_file_is_no_parent(tree):
    number = tree.create(ROOT, b"f")
    with pytest.raises(NotADirectory):
        tree.create(number, b"g")


def test_mkdir_counts_links_and_touches_the_parent(tree):
    number = tree.mkdir(ROOT, b"d")
    assert tree.inode(ROOT).nlink == 3
    assert tree.inode(ROOT).mtime_ns == tree.inode(ROOT).ctime_ns == tree.now_ns
    assert tree.inode(number).nlink == 2
    with pytest.raises(Exists):
        tree.mkdir(ROOT, b"d")


def test_setgid_directories_hand_down_their_group(tree):
    parent = tree.do(commands.Mkdir(ROOT, b"shared", 0o2775, 1, 42)).inode
    directory = tree.inode(tree.do(commands.Mkdir(parent, b"d", 0o755, 1, 1)).inode)
    file = tree.inode(tree.do(commands.Create(parent, b"f", 0o644, 1, 1)).inode)
    assert (directory.gid, directory.mode & stat.S_ISGID) == (42, stat.S_ISGID)
    assert (file.gid, file.mode & stat.S_ISGID) == (42, 0)


def test_mknod_types(tree):
    for name, kind, rdev, kept in (
        (b"fifo", stat.S_IFIFO, 9, 0),
        (b"socket", stat.S_IFSOCK, 9, 0),
        (b"char", stat.S_IFCHR, 9, 9),
        (b"block", stat.S_IFBLK, 9, 9),
        (b"file", stat.S_IFREG, 9, 0),
    ):
        inode = tree.inode(tree.do(commands.Mknod(ROOT, name, kind | 0o600, 0, 0, rdev)).inode)
        assert (inode.mode, inode.rdev) == (kind | 0o600, kept)
    for kind in (stat.S_IFDIR, stat.S_IFLNK, 0o030000):
        with pytest.raises(InvalidArgument):
            tree.do(commands.Mknod(ROOT, b"bad", kind, 0, 0))


def test_symlink(tree):
    inode = tree.inode(tree.do(commands.Symlink(ROOT, b"l", b"../x", 0, 0)).inode)
    assert (inode.target, inode.size_bytes, inode.mode) == (b"../x", 4, stat.S_IFLNK | 0o777)
    for target, error in ((b"", InvalidArgument), (b"a\0b", InvalidArgument), (b"x" * 4096, NameTooLong)):
        with pytest.raises(error):
            tree.do(commands.Symlink(ROOT, b"m", target, 0, 0))


def test_link_and_unlink(tree):
    number = tree.create(ROOT, b"a")
    tree.publish(number)
    block = tree.inode(number).extents[0].block
    directory = tree.mkdir(ROOT, b"d")
    reply = tree.do(commands.Link(number, directory, b"b"))
    assert reply.attributes.nlink == 2
    assert tree.inode(number).parents == (ROOT, directory)
    tree.do(commands.Unlink(ROOT, b"a"))
    assert tree.inode(number).nlink == 1
    assert tree.inode(number).ctime_ns == tree.now_ns
    assert tree.garbage() == []
    tree.do(commands.Unlink(directory, b"b"))
    assert tree.inode(number) is None
    assert tree.garbage() == [block]
    with pytest.raises(NotFound):
        tree.do(commands.Unlink(directory, b"b"))


def test_links_of_one_name_in_one_directory(tree):
    number = tree.create(ROOT, b"a")
    tree.do(commands.Link(number, ROOT, b"b"))
    tree.do(commands.Unlink(ROOT, b"a"))
    assert tree.names(ROOT) == [b"b"]


def test_link_rules(tree):
    directory = tree.mkdir(ROOT, b"d")
    number = tree.create(ROOT, b"f")
    with pytest.raises(NotPermitted):
        tree.do(commands.Link(directory, ROOT, b"x"))
    with pytest.raises(Exists):
        tree.do(commands.Link(number, ROOT, b"d"))
    with pytest.raises(Stale):
        tree.do(commands.Link(999, ROOT, b"x"))


def test_link_max(tree, monkeypatch):
    monkeypatch.setattr(namespace, "LINK_MAX", 3)
    number = tree.create(ROOT, b"a")
    tree.do(commands.Link(number, ROOT, b"b"))
    tree.do(commands.Link(number, ROOT, b"c"))
    with pytest.raises(TooManyLinks):
        tree.do(commands.Link(number, ROOT, b"d"))


def test_unlink_and_rmdir_want_their_own_kind(tree):
    directory = tree.mkdir(ROOT, b"d")
    tree.create(directory, b"f")
    with pytest.raises(IsADirectory):
        tree.do(commands.Unlink(ROOT, b"d"))
    with pytest.raises(NotADirectory):
        tree.do(commands.Rmdir(directory, b"f"))
    with pytest.raises(NotEmpty):
        tree.do(commands.Rmdir(ROOT, b"d"))
    tree.do(commands.Unlink(directory, b"f"))
    tree.do(commands.Rmdir(ROOT, b"d"))
    assert tree.inode(directory) is None
    assert tree.inode(ROOT).nlink == 2
    with pytest.raises(Stale):
        tree.create(directory, b"f")


def test_cookies_are_stable(tree):
    for name in (b"a", b"b", b"c", b"d"):
        tree.create(ROOT, name)
    with tree.view() as view:
        seen = view.listing(ROOT, 0, 2)
    tree.do(commands.Unlink(ROOT, b"a"))
    tree.do(commands.Unlink(ROOT, b"c"))
    tree.create(ROOT, b"a")
    tree.create(ROOT, b"0")
    with tree.view() as view:
        rest = view.listing(ROOT, seen[-1][0], 100)
    assert [entry.name for _, entry in seen] == [b"a", b"b"]
    assert [entry.name for _, entry in rest] == [b"d", b"a", b"0"]


# ------------------------------------------------------------------ rename


def rename(tree, source, target, flags=0):
    return tree.do(commands.Rename(*source, *target, flags))


def test_rename_moves(tree):
    number = tree.create(ROOT, b"a")
    directory = tree.mkdir(ROOT, b"d")
    rename(tree, (ROOT, b"a"), (directory, b"b"))
    assert tree.names(ROOT) == [b"d"]
    assert tree.names(directory) == [b"b"]
    assert tree.inode(number).links == ((directory, b"b"),)
    for touched in (number, ROOT, directory):
        assert tree.inode(touched).ctime_ns == tree.now_ns


def test_rename_moves_a_directory(tree):
    a, b = tree.mkdir(ROOT, b"a"), tree.mkdir(ROOT, b"b")
    child = tree.mkdir(a, b"child")
    tree.create(child, b"f")
    rename(tree, (a, b"child"), (b, b"moved"))
    assert (tree.inode(a).nlink, tree.inode(b).nlink) == (2, 3)
    assert tree.inode(child).links == ((b, b"moved"),)


def test_rename_replaces_a_file(tree):
    old, new = tree.create(ROOT, b"old"), tree.create(ROOT, b"new")
    block = tree.publish(old)
    with tree.view() as view:
        cookie = view.dentry(ROOT, b"old").cookie
    rename(tree, (ROOT, b"new"), (ROOT, b"old"))
    assert tree.names(ROOT) == [b"old"]
    assert tree.inode(old) is None
    assert tree.garbage() == [block]
    with tree.view() as view:
        dentry = view.dentry(ROOT, b"old")
    assert (dentry.inode, dentry.cookie) == (new, cookie)


def test_rename_replaces_an_empty_directory(tree):
    a, b = tree.mkdir(ROOT, b"a"), tree.mkdir(ROOT, b"b")
    tree.create(a, b"f")
    rename(tree, (ROOT, b"a"), (ROOT, b"b"))
    assert tree.inode(b) is None
    assert tree.inode(ROOT).nlink == 3
    assert tree.names(a) == [b"f"]


def test_rename_refusals_change_nothing(tree):
    """R017: directory over non-empty directory, file over directory, directory over file."""
    a, b = tree.mkdir(ROOT, b"a"), tree.mkdir(ROOT, b"b")
    tree.create(b, b"inside")
    tree.create(ROOT, b"f")
    child = tree.mkdir(a, b"child")
    tables = ("results", "clients", "journal", "meta")
    before = tree.dump(tables)
    for source, target, error in (
        ((ROOT, b"a"), (ROOT, b"b"), NotEmpty),
        ((ROOT, b"f"), (ROOT, b"b"), IsADirectory),
        ((ROOT, b"a"), (ROOT, b"f"), NotADirectory),
        ((ROOT, b"a"), (a, b"x"), InvalidArgument),
        ((ROOT, b"a"), (child, b"x"), InvalidArgument),
        ((a, b"child"), (ROOT, b"a"), NotEmpty),
        ((ROOT, b"missing"), (ROOT, b"x"), NotFound),
    ):
        with pytest.raises(error):
            rename(tree, source, target)
        assert tree.dump(tables) == before


def test_rename_to_itself_and_to_another_name_of_it(tree):
    number = tree.create(ROOT, b"a")
    tree.do(commands.Link(number, ROOT, b"b"))
    rename(tree, (ROOT, b"a"), (ROOT, b"b"))
    rename(tree, (ROOT, b"a"), (ROOT, b"a"))
    assert tree.names(ROOT) == [b"a", b"b"]
    directory = tree.mkdir(ROOT, b"d")
    rename(tree, (ROOT, b"d"), (ROOT, b"d"))
    assert tree.inode(directory).nlink == 2


def test_rename_noreplace(tree):
    tree.create(ROOT, b"a")
    tree.create(ROOT, b"b")
    with pytest.raises(Exists):
        rename(tree, (ROOT, b"a"), (ROOT, b"b"), commands.RENAME_NOREPLACE)
    with pytest.raises(Exists):
        rename(tree, (ROOT, b"a"), (ROOT, b"a"), commands.RENAME_NOREPLACE)
    rename(tree, (ROOT, b"a"), (ROOT, b"c"), commands.RENAME_NOREPLACE)
    assert tree.names(ROOT) == [b"b", b"c"]


def test_rename_exchange(tree):
    a, d = tree.mkdir(ROOT, b"a"), tree.mkdir(ROOT, b"d")
    file, child = tree.create(ROOT, b"f"), tree.mkdir(a, b"child")
    rename(tree, (ROOT, b"f"), (a, b"child"), commands.RENAME_EXCHANGE)
    assert tree.inode(file).links == ((a, b"child"),)
    assert tree.inode(child).links == ((ROOT, b"f"),)
    assert (tree.inode(a).nlink, tree.inode(ROOT).nlink) == (2, 5)
    rename(tree, (ROOT, b"a"), (ROOT, b"d"), commands.RENAME_EXCHANGE)
    assert tree.inode(a).links == ((ROOT, b"d"),)
    assert tree.inode(d).links == ((ROOT, b"a"),)
    with pytest.raises(NotFound):
        rename(tree, (ROOT, b"a"), (ROOT, b"none"), commands.RENAME_EXCHANGE)
    with pytest.raises(InvalidArgument):
        rename(tree, (ROOT, b"d"), (a, b"child"), commands.RENAME_EXCHANGE)
    with pytest.raises(InvalidArgument):
        rename(tree, (a, b"child"), (ROOT, b"d"), commands.RENAME_EXCHANGE)


@pytest.mark.parametrize("flags", [3, 4, 8, 1 << 31])
def test_rename_flags(tree, flags):
    tree.create(ROOT, b"a")
    with pytest.raises(InvalidArgument):
        rename(tree, (ROOT, b"a"), (ROOT, b"b"), flags)


# ------------------------------------------------------------------ batches, touches


def test_create_many(tree):
    tree.mkdir(ROOT, b"d")
    old = tree.create(ROOT, b"old")
    reply = tree.do(commands.CreateMany(ROOT, (b"a", b"old", b"a/b", b"d", b"c"), 0o600, 1, 2))
    assert [HearthError if errno else 0 for errno in reply.errnos] == [0, 0, HearthError, HearthError, 0]
    assert reply.inodes[1] == old
    assert tree.inode(reply.inodes[0]).uid == 1
    assert tree.names(ROOT) == [b"d", b"old", b"a", b"c"]
    reply = tree.do(commands.CreateMany(ROOT, (b"a", b"new"), 0o600, 1, 2, exclusive=True))
    assert [bool(errno) for errno in reply.errnos] == [True, False]


def test_unlink_many(tree):
    tree.mkdir(ROOT, b"d")
    number = tree.create(ROOT, b"a")
    block = tree.publish(number)
    tree.create(ROOT, b"b")
    reply = tree.do(commands.UnlinkMany(ROOT, (b"a", b"missing", b"d", b"b", b"a")))
    assert [bool(errno) for errno in reply.errnos] == [False, True, True, False, True]
    assert tree.names(ROOT) == [b"d"]
    assert tree.garbage() == [block]


def test_touches_name_what_caches_must_forget(tree):
    directory = tree.mkdir(ROOT, b"d")
    number = tree.create(directory, b"f")
    touched = set(tree.touched)
    assert (directory, b"f", 0, False, (directory,)) in touched
    assert (0, b"", directory, False, (directory, ROOT)) in touched  # its mtime, cached below ROOT
    tree.do(commands.Link(number, ROOT, b"g"))
    tree.publish(number)
    assert set(tree.touched) == {(0, b"", number, True, (number, directory, ROOT))}
    tree.do(commands.Unlink(directory, b"f"))
    assert (directory, b"f", 0, False, (directory,)) in tree.touched
    assert (0, b"", number, False, (number, directory, ROOT)) in tree.touched
