import errno
import stat

import msgspec
import pytest
from hearthfs.common.errors import FileTooBig, InvalidArgument, IsADirectory, Stale
from hearthfs.common.types import FILE_MAX_BYTES, ROOT_INODE
from hearthfs.master import commands
from hearthfs.master.commands import HeldBlock

ROOT = ROOT_INODE
OTHER_CLIENT = 8


def test_allocate_gives_new_blocks_of_this_epoch(tree):
    blocks = tree.do(commands.Allocate(("w1", "w2", "w1"))).blocks
    assert [block.worker_id for block in blocks] == ["w1", "w2", "w1"]
    assert len({block.block for block in blocks}) == 3
    assert {block.generation for block in blocks} == {1}
    tree.own(commands.BeginEpoch("test"))
    block, generation = tree.allocate()
    assert generation == 2
    assert block not in {b.block for b in blocks}


@pytest.mark.parametrize("count", [0, 4097])
def test_allocate_bounds(tree, count):
    with pytest.raises(InvalidArgument):
        tree.do(commands.Allocate(("w1",) * count))


def test_publish_makes_the_content(tree, make_publication):
    number = tree.create(ROOT, b"f")
    block, generation = tree.allocate()
    reply = tree.do(commands.Publish(make_publication(number, block, generation, 100, size_bytes=150)))
    inode = tree.inode(number)
    assert reply.attributes == inode
    assert (inode.size_bytes, inode.version, inode.mtime_ns) == (150, 1, tree.now_ns)
    extent = inode.extents[0]
    assert (extent.block, extent.generation, extent.length_bytes, extent.valid_bytes) == (block, generation, 100, 100)
    assert (extent.workers, extent.sealed, extent.digest) == (("w1",), True, 1234)
    with tree.view() as view:
        assert view.find_working(block) is None
        assert [number for number, _ in view.held("w1", 0)] == [block]


def test_publish_replaces_and_frees_the_old_block(tree):
    number = tree.create(ROOT, b"f")
    first = tree.publish(number, 100)
    second = tree.publish(number, 50, worker="w2", mtime_ns=77)
    assert tree.inode(number).extents[0].block == second
    assert (tree.inode(number).version, tree.inode(number).mtime_ns) == (2, 77)
    assert tree.garbage("w1") == [first]
    assert tree.garbage("w2") == []


def test_publish_is_idempotent(tree, make_publication):
    number = tree.create(ROOT, b"f")
    block, generation = tree.allocate()
    item = make_publication(number, block, generation, 100)
    tree.do(commands.Publish(item))
    tree.do(commands.Setattr(number, size_bytes=30))
    before = tree.inode(number)
    assert tree.do(commands.Publish(item)).attributes == before
    assert tree.inode(number) == before
    with pytest.raises(Stale):
        tree.do(commands.Publish(make_publication(number, block, generation, 90)))


def test_publish_nothing_but_zeros(tree, make_publication):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number)
    tree.do(commands.Publish(make_publication(number, 0, 0, 0, size_bytes=1 << 30)))
    assert (tree.inode(number).size_bytes, tree.inode(number).extents) == (1 << 30, ())
    assert tree.garbage() == [block]
    empty = tree.publish(number, 0)
    assert (tree.inode(number).size_bytes, tree.inode(number).extents) == (0, ())
    assert tree.garbage() == [block, empty]


def test_publish_refusals(tree, make_publication):
    number, directory = tree.create(ROOT, b"f"), tree.mkdir(ROOT, b"d")
    fifo = tree.do(commands.Mknod(ROOT, b"p", stat.S_IFIFO, 0, 0)).inode
    block, generation = tree.allocate()
    foreign, _ = tree.allocate(client_id=OTHER_CLIENT)
    gone, _ = tree.allocate()
    tree.do(commands.Discard((gone,)))
    for item, error in (
        (make_publication(999, block, generation, 1), Stale),
        (make_publication(directory, block, generation, 1), IsADirectory),
        (make_publication(fifo, block, generation, 1), InvalidArgument),
        (make_publication(number, block, generation + 1, 1), Stale),
        (make_publication(number, foreign, generation, 1), Stale),
        (make_publication(number, gone, generation, 1), Stale),
        (make_publication(number, 1 << 63, generation, 1), Stale),
        (make_publication(number, block, generation, 10, size_bytes=9), InvalidArgument),
        (make_publication(number, block, generation, 1, size_bytes=FILE_MAX_BYTES + 1), FileTooBig),
        (make_publication(number, 0, 0, 10), InvalidArgument),
        (make_publication(number, block, generation, 1, worker_id="nobody"), InvalidArgument),
    ):
        with pytest.raises(error):
            tree.do(commands.Publish(item))
    assert tree.inode(number).version == 0
    tree.do(commands.Publish(make_publication(number, block, generation, 1)))


def test_an_unsealed_block_grows_until_it_is_sealed(tree, make_publication):
    number = tree.create(ROOT, b"f")
    block, generation = tree.allocate()
    for length, sealed, digest in ((10, False, 0), (20, False, 0), (20, True, 55)):
        item = make_publication(number, block, generation, length, sealed=sealed, digest=digest)
        tree.do(commands.Publish(item))
        extent = tree.inode(number).extents[0]
        assert (extent.length_bytes, extent.valid_bytes, extent.sealed, extent.digest) == (
            length,
            length,
            sealed,
            digest,
        )
    assert tree.inode(number).version == 3
    tree.do(commands.Publish(make_publication(number, block, generation, 20, sealed=False, digest=0)))
    assert tree.inode(number).extents[0].sealed
    with pytest.raises(Stale):
        tree.do(commands.Publish(make_publication(number, block, generation, 30, sealed=False, digest=0)))


def test_a_block_is_published_once(tree, make_publication):
    a, b = tree.create(ROOT, b"a"), tree.create(ROOT, b"b")
    block, generation = tree.allocate()
    tree.do(commands.Publish(make_publication(a, block, generation, 1)))
    with pytest.raises(Stale):
        tree.do(commands.Publish(make_publication(b, block, generation, 1)))


def test_discard(tree):
    block, _ = tree.allocate("w2")
    foreign, _ = tree.allocate("w2", client_id=OTHER_CLIENT)
    tree.do(commands.Discard((block, foreign, 999)))
    tree.do(commands.Discard((block,)))
    assert tree.garbage("w2") == [block]
    with tree.view() as view:
        assert [number for number, _ in view.working_blocks()] == [foreign]


def test_working_blocks_survive_their_session_but_not_their_client(tree):
    block, _ = tree.allocate()
    tree.own(commands.DropWorking((block,)))
    assert tree.garbage() == []  # the client has a session
    tree.own(commands.EndSessions((70,)))
    tree.own(commands.RegisterSession(71, 7, "node", "sdk", "again", False))
    tree.own(commands.DropWorking((block,)))
    assert tree.garbage() == []
    tree.own(commands.EndSessions((71,)))
    tree.own(commands.DropWorking((block, 999)))
    assert tree.garbage() == [block]


# ------------------------------------------------------------------ replicas


def workers_of(tree, number):
    return tree.inode(number).extents[0].workers


def test_a_replica_comes_and_goes(tree):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number, 100)
    tree.own(commands.UpdateReplicas("w2", (HeldBlock(block, 1, 100, 1234),)))
    assert workers_of(tree, number) == ("w1", "w2")
    tree.own(commands.UpdateReplicas("w2", (HeldBlock(block, 1, 100, 1234),)))
    assert workers_of(tree, number) == ("w1", "w2")
    tree.own(commands.UpdateReplicas("w1", (), ((block, 1),)))
    assert workers_of(tree, number) == ("w2",)
    tree.own(commands.UpdateReplicas("w2", (), ((block, 9),)))
    assert workers_of(tree, number) == ("w2",)
    tree.own(commands.UpdateReplicas("w2", (), ((block, 1),)))
    assert workers_of(tree, number) == ()
    tree.own(commands.UpdateReplicas("w1", (HeldBlock(block, 1, 100, 1234),)))
    assert workers_of(tree, number) == ("w1",)
    tree.do(commands.Unlink(ROOT, b"f"))
    assert tree.garbage("w1") == [block]
    tree.own(commands.UpdateReplicas("w1", (), ((block, 1),)))
    assert tree.garbage("w1") == []


@pytest.mark.parametrize(
    "change", [{"generation": 2}, {"length_bytes": 99}, {"digest": 5}, {"block": 777}], ids=lambda c: next(iter(c))
)
def test_what_is_not_the_file_becomes_garbage(tree, change):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number, 100)
    values = {"block": block, "generation": 1, "length_bytes": 100, "digest": 1234} | change
    tree.own(commands.UpdateReplicas("w2", (HeldBlock(**values),)))
    assert workers_of(tree, number) == ("w1",)
    assert tree.garbage("w2") == [values["block"]]


def test_a_committed_working_block_is_not_garbage(tree):
    block, generation = tree.allocate("w2")
    tree.own(commands.UpdateReplicas("w2", (HeldBlock(block, generation, 5, 5),)))
    assert tree.garbage("w2") == []


def test_a_bad_replica_is_dropped_and_deleted(tree):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number, 100)
    tree.do(commands.ReportBadReplica(block, 1, "w2"))
    tree.do(commands.ReportBadReplica(block, 2, "w1"))
    assert workers_of(tree, number) == ("w1",)
    tree.do(commands.ReportBadReplica(block, 1, "w1"))
    assert workers_of(tree, number) == ()
    assert orders(tree) == [(block, True)]
    assert (0, b"", number, False, (number, ROOT)) in tree.touched


def orders(tree, worker="w1"):
    with tree.view() as view:
        return [(block, order.doubted) for block, order in view.garbage(worker, 100)]


def test_a_doubted_replica_that_its_worker_finds_good_counts_again(tree):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number, 100)
    tree.do(commands.ReportBadReplica(block, 1, "w1"))
    tree.own(commands.UpdateReplicas("w1", (HeldBlock(block, 1, 100, 1234),)))
    assert workers_of(tree, number) == ("w1",)
    assert orders(tree) == []
    tree.do(commands.ReportBadReplica(block, 1, "w1"))
    tree.own(commands.UpdateReplicas("w1", (), ((block, 1),)))
    assert workers_of(tree, number) == ()
    assert orders(tree) == []


def test_a_doubted_replica_of_a_deleted_file_is_deleted(tree):
    block = tree.publish(tree.create(ROOT, b"f"), 100)
    tree.do(commands.ReportBadReplica(block, 1, "w1"))
    tree.do(commands.Unlink(ROOT, b"f"))
    tree.own(commands.UpdateReplicas("w1", (HeldBlock(block, 1, 100, 1234),)))
    assert orders(tree) == [(block, False)]


def test_a_replica_is_dropped_only_if_enough_others_live(tree):
    number = tree.create(ROOT, b"f")
    block = tree.publish(number, 100)
    drop = commands.DropReplicas("w1", ((block, 1, 1),), ("w1", "w2"))
    tree.own(drop)
    assert workers_of(tree, number) == ("w1",)
    tree.own(commands.UpdateReplicas("w2", (HeldBlock(block, 1, 100, 1234),)))
    for kept in (
        commands.DropReplicas("w1", ((block, 1, 2),), ("w1", "w2")),
        commands.DropReplicas("w1", ((block, 1, 1),), ("w1",)),
        commands.DropReplicas("w1", ((block, 2, 1), (999, 1, 1)), ("w1", "w2")),
    ):
        tree.own(kept)
        assert workers_of(tree, number) == ("w1", "w2")
    tree.own(drop)
    assert workers_of(tree, number) == ("w2",)
    assert orders(tree) == [(block, False)]
    tree.own(drop)
    assert workers_of(tree, number) == ("w2",)


# ------------------------------------------------------------------ batches


def put(tree, names, blocks, **changes):
    values = {
        "parent": ROOT,
        "names": tuple(names),
        "mode": 0o644,
        "uid": 0,
        "gid": 0,
        "blocks": tuple(block for block, _ in blocks),
        "generations": tuple(generation for _, generation in blocks),
        "lengths_bytes": tuple(100 + index for index in range(len(blocks))),
        "digests": tuple(1000 + index for index in range(len(blocks))),
        "worker_id": "w1",
    }
    return tree.do(commands.PutMany(**values | changes))


def test_put_many_makes_whole_files(tree):
    reply = put(tree, [b"a", b"b"], [tree.allocate(), tree.allocate()])
    assert reply.errnos == (0, 0)
    inode = tree.inode(reply.inodes[1])
    assert (inode.size_bytes, inode.version, inode.extents[0].digest) == (101, 1, 1001)
    assert tree.inode(ROOT).mtime_ns == tree.now_ns


def test_put_many_replaces_in_place(tree):
    old = tree.create(ROOT, b"a")
    block = tree.publish(old)
    reply = put(tree, [b"a"], [tree.allocate()])
    assert reply.inodes == (old,)
    assert tree.inode(old).version == 2
    assert tree.garbage() == [block]
    assert (0, b"", old, True, (old, ROOT)) in tree.touched


def test_put_many_twice_with_the_same_blocks(tree):
    blocks = [tree.allocate()]
    first = put(tree, [b"a"], blocks)
    assert put(tree, [b"a"], blocks).errnos == (0,)
    assert tree.inode(first.inodes[0]).version == 1


def test_put_many_item_by_item(tree):
    tree.mkdir(ROOT, b"d")
    tree.do(commands.Symlink(ROOT, b"l", b"x", 0, 0))
    good, other = tree.allocate(), tree.allocate()
    reply = put(
        tree,
        [b"d", b"l", b"a/b", b"stale", b"good", b"twice", b"empty"],
        [other, other, other, (999, 1), good, good, (0, 0)],
        lengths_bytes=(1, 1, 1, 1, 1, 1, 0),
    )
    expected = (errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.ESTALE, 0, errno.ESTALE, 0)
    assert reply.errnos == expected
    assert tree.names(ROOT) == [b"d", b"l", b"good", b"empty"]
    with tree.view() as view:
        assert [number for number, _ in view.working_blocks()] == [other[0]]


def test_put_many_of_one_name_twice(tree):
    first, second = tree.allocate(), tree.allocate()
    reply = put(tree, [b"a", b"a"], [first, second])
    assert reply.inodes[0] == reply.inodes[1]
    assert tree.inode(reply.inodes[0]).extents[0].block == second[0]
    assert tree.garbage() == [first[0]]


def test_put_many_keeps_what_can_be_read(tree):
    old = tree.create(ROOT, b"a")
    block = tree.publish(old)
    new = tree.allocate()
    reply = put(tree, [b"a"], [new], keep_existing=True, live_workers=("w1",))
    assert (reply.errnos, reply.inodes) == ((0,), (old,))
    assert tree.inode(old).extents[0].block == block
    assert tree.garbage() == [new[0]]
    newer = tree.allocate()
    put(tree, [b"a"], [newer], keep_existing=True, live_workers=("w2",))  # nobody alive has it: replaced
    assert tree.inode(old).extents[0].block == newer[0]


def test_put_many_columns(tree):
    with pytest.raises(InvalidArgument):
        put(tree, [b"a", b"b"], [tree.allocate()])
    with pytest.raises(Stale):
        put(tree, [b"a"], [tree.allocate()], parent=999)
    with pytest.raises(InvalidArgument):
        put(tree, [b"a"], [tree.allocate()], worker_id="nobody")


def test_publish_many(tree, make_publication):
    a, b = tree.create(ROOT, b"a"), tree.create(ROOT, b"b")
    block, generation = tree.allocate()
    reply = tree.do(
        commands.PublishMany(
            (
                make_publication(a, block, generation, 10),
                make_publication(999, block, generation, 10),
                make_publication(b, block, generation, 10),
            )
        )
    )
    assert reply.errnos == (0, errno.ESTALE, errno.ESTALE)
    assert tree.inode(a).size_bytes == 10


def test_publish_only_if_the_content_is_still_that_version(tree, make_publication):
    number = tree.create(ROOT, b"f")
    first = tree.publish(number, 100)
    block, generation = tree.allocate()
    item = make_publication(number, block, generation, 50)
    with pytest.raises(Stale, match="version 1 now, not 7"):
        tree.do(commands.Publish(msgspec.structs.replace(item, if_version=7)))
    assert tree.inode(number).extents[0].block == first
    tree.do(commands.Publish(msgspec.structs.replace(item, if_version=1)))
    assert tree.inode(number).extents[0].block == block
    # The same request again, after the version has moved on by it.
    tree.do(commands.Publish(msgspec.structs.replace(item, if_version=1)))
    assert tree.inode(number).version == 2
