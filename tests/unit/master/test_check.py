"""The check finds what breaks a law: each case breaks one."""

import msgspec
import pytest
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import check, commands
from hearthfs.master.records import Block, Counters, Dentry, Garbage, Held, Ordered, Working
from hearthfs.master.tables import MemoryStore, named, of_worker, pair, u64

ROOT = ROOT_INODE
encode = msgspec.msgpack.encode


@pytest.fixture
def broken(make_tree):
    """/d/f with a block, /g linked twice."""
    tree = make_tree(MemoryStore())
    tree.numbers = {"d": tree.mkdir(ROOT, b"d")}
    tree.numbers["f"] = tree.create(tree.numbers["d"], b"f")
    tree.block = tree.publish(tree.numbers["f"])
    tree.numbers["g"] = tree.create(ROOT, b"g")
    tree.do(commands.Link(tree.numbers["g"], ROOT, b"h"))
    tree.do(commands.SetXattr(tree.numbers["g"], b"user.a", b"1"))
    assert tree.problems() == []
    return tree


def edit(tree, *actions):
    with tree.store.batch() as batch, batch.step() as txn:
        for table, key, record in actions:
            if record is None:
                assert txn.delete(table, key)
            else:
                txn.put(table, key, record if isinstance(record, bytes) else encode(record))


def changed(tree, name, **changes):
    number = tree.numbers[name]
    return "inodes", u64(number), msgspec.structs.replace(tree.inode(number), **changes)


CASES = {
    "names inode 999, which does not exist": lambda t: [
        ("dentries", named(ROOT, b"x"), Dentry(999, 77)),
        ("order", pair(ROOT, 77), Ordered(b"x", 999, 0o100000)),
    ],
    "is an orphan": lambda t: [changed(t, "f", links=())],
    "nlink is 3": lambda t: [changed(t, "g", nlink=3)],
    "nlink is 5": lambda t: [changed(t, "d", nlink=5)],
    "does not lead to it": lambda t: [("dentries", named(t.numbers["d"], b"f"), None)],
    "does not list its name": lambda t: [changed(t, "g", links=((ROOT, b"g"),), nlink=1)],
    "is not in the directory's order": lambda t: [("order", next(k for k, _ in t.dump()["order"]), None)],
    "rows of order for": lambda t: [("order", pair(ROOT, 99), Ordered(b"zzz", 1, 0))],
    "which does not have it": lambda t: [("blocks", u64(500), Block(t.numbers["g"], 1))],
    "is recorded as None": lambda t: [("blocks", u64(t.block), None)],
    "is not in that worker's list": lambda t: [("worker_blocks", of_worker("w1", t.block), None)],
    "belongs to no file": lambda t: [("worker_blocks", of_worker("w1", 500), Held(1, 0))],
    "is a working block and part of a file": lambda t: [("working", u64(t.block), Working(7, 1, "w1", 0))],
    "counters of inodes": lambda t: [("meta", b"counters", Counters(100, 100, 100, 1, 1, 1))],
    "extended attributes of inode 999": lambda t: [("xattrs", named(999, b"user.a"), b"1")],
    "has entries and is no directory": lambda t: [changed(t, "d", mode=0o100644)],
}


@pytest.mark.parametrize("text", CASES)
def test_a_broken_law_is_found(broken, text):
    edit(broken, *CASES[text](broken))
    assert any(text in problem for problem in broken.problems()), broken.problems()


def test_more_bytes_than_the_block_has(broken):
    inode = broken.inode(broken.numbers["f"])
    extent = msgspec.structs.replace(inode.extents[0], valid_bytes=101)
    edit(broken, changed(broken, "f", extents=(extent,)))
    assert any("101 of 100 are valid" in problem for problem in broken.problems())


def test_garbage_and_results_are_no_problem(broken):
    edit(broken, ("garbage", of_worker("w1", 500), Garbage(1)))
    assert broken.problems() == []


def test_problems_are_bounded(broken, monkeypatch):
    monkeypatch.setattr(check, "PROBLEMS_MAX", 3)
    rows = [("dentries", named(ROOT, b"%d" % number), Dentry(900 + number, 500 + number)) for number in range(20)]
    edit(broken, *rows)
    assert len(broken.problems()) == 3


def test_rows_and_counts(broken):
    broken.allocate("w2")
    with broken.view() as view:
        checked = check.Check(view)
        rows = [row for row in checked.rows() if row is not None]
    kinds = [type(row).__name__ for row in rows]
    assert (kinds.count("DentryRow"), checked.dentries) == (4, 4)
    assert (kinds.count("InodeRow"), checked.inodes) == (4, 4)
    assert (kinds.count("BlockRow"), checked.blocks) == (2, 2)
    assert rows[-1].workers == ("w2",)
    assert rows[-1].client_id == 7
