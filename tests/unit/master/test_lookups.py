import stat

import pytest
from hearthfs.common.errors import (
    DataDamaged,
    InvalidArgument,
    NameTooLong,
    NotADirectory,
    NotFound,
    Stale,
    SymlinkLoop,
)
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, lookups
from hearthfs.master.tables import u64

ROOT = ROOT_INODE


def test_lookup(tree):
    directory = tree.mkdir(ROOT, b"d")
    number = tree.create(directory, b"f")
    with tree.view() as view:
        assert lookups.lookup(view, directory, b"f")[0] == number
        assert lookups.lookup(view, directory, b".")[0] == directory
        assert lookups.lookup(view, directory, b"..")[0] == ROOT
        assert lookups.lookup(view, ROOT, b"..")[0] == ROOT
        for parent, name, error in (
            (directory, b"none", NotFound),
            (number, b"x", NotADirectory),
            (number, b".", NotADirectory),
            (999, b"x", Stale),
            (ROOT, b"a/b", InvalidArgument),
            (ROOT, b"a\0", InvalidArgument),
            (ROOT, b"", InvalidArgument),
            (ROOT, b"x" * 256, NameTooLong),
        ):
            with pytest.raises(error):
                lookups.lookup(view, parent, name)


@pytest.fixture
def paths(tree):
    """/a/b/f, /a/link -> b, /abs -> /a/b, /loop -> loop, /dangling -> none, /a/up -> ../a/b/f"""
    a = tree.mkdir(ROOT, b"a")
    b = tree.mkdir(a, b"b")
    f = tree.create(b, b"f")
    for parent, name, target in (
        (a, b"link", b"b"),
        (ROOT, b"abs", b"/a/b"),
        (ROOT, b"loop", b"loop"),
        (ROOT, b"dangling", b"none"),
        (a, b"up", b"../a/b/f"),
    ):
        tree.do(commands.Symlink(parent, name, target, 0, 0))
    return {"a": a, "b": b, "f": f, "root": ROOT}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"/", "root"),
        (b"//", "root"),
        (b"/a/b/f", "f"),
        (b"/a//b/./f", "f"),
        (b"/a/b/", "b"),
        (b"/a/b/..", "a"),
        (b"/../../a", "a"),
        (b"/a/link", "b"),
        (b"/a/link/f", "f"),
        (b"/abs/f", "f"),
        (b"/abs/", "b"),
        (b"/a/up", "f"),
        (b"/a/link/..", "a"),
    ],
)
def test_resolve(tree, paths, path, found):
    walk = lookups.Walk()
    with tree.view() as view:
        inode = lookups.resolve(view, path, False, walk)
    assert walk.inode == paths[found]
    assert inode == tree.inode(paths[found])


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (b"", InvalidArgument),
        (b"a", InvalidArgument),
        (b"/a\0", InvalidArgument),
        (b"/" + b"x" * 256, NameTooLong),
        (b"/" * 4097, NameTooLong),
        (b"/none", NotFound),
        (b"/none/x", NotFound),
        (b"/a/b/f/x", NotADirectory),
        (b"/a/b/f/", NotADirectory),
        (b"/a/b/f/.", NotADirectory),
        (b"/loop", SymlinkLoop),
        (b"/loop/x", SymlinkLoop),
        (b"/dangling", NotFound),
    ],
)
def test_resolve_refusals(tree, paths, path, error):
    with tree.view() as view, pytest.raises(error):
        lookups.resolve(view, path, False, lookups.Walk())


def test_resolve_without_following(tree, paths):
    with tree.view() as view:
        for path in (b"/loop", b"/dangling", b"/abs"):
            assert stat.S_ISLNK(lookups.resolve(view, path, True, lookups.Walk()).mode)
        assert lookups.resolve(view, b"/abs/", True, lookups.Walk()).is_directory
        walk = lookups.Walk()
        lookups.resolve(view, b"/abs/f", True, walk)
    assert walk.inode == paths["f"]
    assert walk.visited >= {ROOT, paths["a"], paths["b"], paths["f"]}


def test_readdir_in_pages(tree):
    names = [b"%03d" % number for number in range(50)]
    tree.do(commands.CreateMany(ROOT, tuple(names), 0o644, 0, 0))
    seen, cookie, end = [], 0, False
    while not end:
        with tree.view() as view:
            page, end = lookups.readdir(view, ROOT, cookie, 7, True)
        assert len(page) <= 7
        seen += [entry.name for _, entry, _ in page]
        assert all(inode is not None and inode.is_regular for _, _, inode in page)
        cookie = page[-1][0] if page else cookie
    assert seen == names


def test_readdir_is_bounded_by_bytes(tree, monkeypatch):
    monkeypatch.setattr(lookups, "LISTING_MAX_BYTES", 1000)
    tree.do(commands.CreateMany(ROOT, tuple(b"x" * 200 + b"%d" % n for n in range(10)), 0o644, 0, 0))
    with tree.view() as view:
        page, end = lookups.readdir(view, ROOT, 0, 0, False)
    assert 1 <= len(page) < 10
    assert not end


def test_readdir_refusals(tree):
    number = tree.create(ROOT, b"f")
    with tree.view() as view:
        with pytest.raises(NotADirectory):
            lookups.readdir(view, number, 0, 0, False)
        with pytest.raises(Stale):
            lookups.readdir(view, 999, 0, 0, False)


# ------------------------------------------------------------------ lookup_many


def find(tree, names, live=None, prefer="", directory=ROOT):
    replicas = lookups.Replicas(live or {"w1": "node-w1", "w2": "node-w2"}, prefer)
    with tree.view() as view:
        bitmap, hits = lookups.lookup_many(view, directory, names, replicas)
    found = [bool(bitmap[index >> 3] >> (index & 7) & 1) for index in range(len(names))]
    assert sum(found) == len(hits)
    return found, hits, replicas.workers


def test_lookup_many(tree):
    number = tree.create(ROOT, b"a")
    block = tree.publish(number, 100)
    tree.create(ROOT, b"empty")
    tree.mkdir(ROOT, b"d")
    tree.do(commands.Symlink(ROOT, b"l", b"a", 0, 0))
    names = [b"none", b"a", b"d", b"l", b"", b"x" * 256, b"x" * 5000, b"empty", b"a/b", b"a"]
    found, hits, workers = find(tree, names)
    assert found == [False, True, False, False, False, False, False, True, False, True]
    inode, layout, extent, worker = hits[0]
    assert (inode, layout.size_bytes, extent.block, workers[worker]) == (number, 100, block, "w1")
    assert hits[1][2] == lookups.NO_EXTENT


def test_a_file_without_a_live_replica_is_a_miss(tree):
    block = tree.publish(tree.create(ROOT, b"a"))
    assert find(tree, [b"a"], live={"w2": "n"})[0] == [False]
    assert find(tree, [b"a"], live={"w1": "n"})[0] == [True]
    tree.do(commands.ReportBadReplica(block, 1, "w1"))
    assert find(tree, [b"a"])[0] == [False]


def test_the_own_node_is_preferred(tree):
    block = tree.publish(tree.create(ROOT, b"a"))
    tree.own(commands.UpdateReplicas("w2", (commands.HeldBlock(block, 1, 100, 1234),)))
    for prefer in ("node-w1", "node-w2"):
        _, hits, workers = find(tree, [b"a"], prefer=prefer)
        assert workers[hits[0][3]] == prefer.removeprefix("node-")
    assert find(tree, [b"a"], prefer="other")[2] == ["w1", "w2"]


def test_a_dentry_without_inode_is_damage(tree):
    number = tree.create(ROOT, b"a")
    with tree.store.batch() as batch, batch.step() as txn:
        value = txn.get("inodes", u64(number))
        txn.delete("inodes", u64(number))
    with pytest.raises(DataDamaged, match="hearth fsck"):
        find(tree, [b"a"])
    with tree.store.batch() as batch, batch.step() as txn:
        txn.put("inodes", u64(number), value)


def test_a_directory_by_path(tree, paths):
    with tree.view() as view:
        assert lookups.resolve_directory(view, b"/a/link") == paths["b"]
        for path in (b"/none", b"/a/b/f", b"/a/b/f/x"):
            assert lookups.resolve_directory(view, path) == 0
        with pytest.raises(SymlinkLoop):
            lookups.resolve_directory(view, b"/loop")
