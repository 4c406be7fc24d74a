import pytest
from hearthfs.common.errors import InvalidArgument
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, reports
from hearthfs.master.commands import HeldBlock

LATER_NS = 10**15


def compare(tree, *page, first=0, last=reports.LAST_BLOCK, started_ns=LATER_NS, worker="w1"):
    with tree.view() as view:
        return reports.compare(view, worker, page, first, last, started_ns)


def held(block, length=100, digest=1234, generation=1, working=False):
    return HeldBlock(block, generation, length, digest), working


@pytest.fixture
def blocks(tree):
    """Three published blocks on w1."""
    return [tree.publish(tree.create(ROOT_INODE, name)) for name in (b"a", b"b", b"c")]


def test_a_report_that_says_the_same(tree, blocks):
    found = compare(tree, *map(held, blocks))
    assert (found.added, found.removed, found.unknown) == ([], [], [])


def test_what_is_not_reported_is_gone(tree, blocks):
    found = compare(tree, held(blocks[1]))
    assert found.removed == [(blocks[0], 1), (blocks[2], 1)]


def test_a_page_speaks_only_of_its_range(tree, blocks):
    assert compare(tree, held(blocks[0]), last=blocks[0]).removed == []
    assert compare(tree, held(blocks[2]), first=blocks[1] + 1).removed == []
    assert compare(tree, first=blocks[0] + 1, last=blocks[1]).removed == [(blocks[1], 1)]


def test_a_young_replica_is_not_dropped(tree, blocks):
    assert compare(tree, started_ns=reports.MARGIN_NS + 1).removed == []


def test_a_replica_that_the_tables_did_not_have(tree, blocks):
    found = compare(tree, held(blocks[0]), worker="w2")
    assert [block.block for block in found.added] == [blocks[0]]


@pytest.mark.parametrize("wrong", [{"length": 99}, {"digest": 5}])
def test_a_damaged_replica(tree, blocks, wrong):
    found = compare(tree, held(blocks[0], **wrong), last=blocks[0])
    assert found.removed == [(blocks[0], 1)]
    assert found.unknown == [(blocks[0], 1)]
    other = compare(tree, held(blocks[0], **wrong), last=blocks[0], worker="w2")
    assert (other.added, other.removed, other.unknown) == ([], [], [(blocks[0], 1)])


def test_another_generation_is_unknown(tree, blocks):
    found = compare(tree, held(blocks[0], generation=2), last=blocks[0])
    assert found.unknown == [(blocks[0], 2)]
    assert found.removed == [(blocks[0], 1)]


def test_working_blocks_of_clients_stay(tree, blocks):
    block, generation = tree.allocate()
    for working in (True, False):
        found = compare(tree, *map(held, blocks), held(block, 5, 5, generation, working))
        assert (found.added, found.unknown) == ([], [])
    assert compare(tree, held(999, working=True), first=900).unknown == [(999, 1)]
    assert compare(tree, held(999), first=900).unknown == [(999, 1)]


def test_a_published_block_that_is_still_working_there_is_no_replica(tree, blocks):
    found = compare(tree, held(blocks[0], working=True), last=blocks[0])
    assert found.unknown == [(blocks[0], 1)]
    assert found.removed == [(blocks[0], 1)]


def test_garbage_that_is_gone_is_forgotten(tree, blocks):
    tree.do(commands.Unlink(ROOT_INODE, b"a"))
    tree.do(commands.Unlink(ROOT_INODE, b"b"))
    found = compare(tree, held(blocks[1]), held(blocks[2]))
    assert found.removed == [(blocks[0], 0)]
    assert found.unknown == [(blocks[1], 1)]
    tree.own(commands.UpdateReplicas("w1", (), tuple(found.removed)))
    assert tree.garbage() == [blocks[1]]


def test_what_is_to_be_deleted_or_looked_at_is_not_added_again(tree, blocks):
    tree.do(commands.ReportBadReplica(blocks[0], 1, "w1"))
    found = compare(tree, *map(held, blocks))
    assert (found.added, found.unknown) == ([], [])
    tree.own(commands.UpdateReplicas("w1", (), ((blocks[0], 1),)))
    assert [each.block for each in compare(tree, *map(held, blocks)).added] == [blocks[0]]


def test_order():
    reports.check_order([5, 6, 9], 5)
    for blocks, first in (([5, 5], 0), ([6, 5], 0), ([4], 5)):
        with pytest.raises(InvalidArgument):
            reports.check_order(blocks, first)
