"""What lookups remember never says more than the tables."""

import hypothesis.strategies as st
from hearthfs.master import commands, lookups
from hearthfs.master.readable_names import ReadableNames
from hearthfs.master.tables import MemoryStore
from hearthfs.tests.unit.master.conftest import Tree
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

ROOT = 1
W1, BOTH = frozenset({"w1"}), frozenset({"w1", "w2"})


def test_only_in_the_state_it_was_learned_in():
    names = ReadableNames()
    names.committed(5, ())
    names.learn(ROOT, 5, W1, [(b"a", 10), (b"b", 11)])
    assert set(names.names(ROOT, 5, W1)) == {b"a", b"b"}
    assert not names.names(ROOT, 6, W1)
    assert not names.names(ROOT, 5, BOTH)
    assert not names.names(2, 5, W1)


def test_an_answer_from_an_older_state_is_not_learned():
    names = ReadableNames()
    names.committed(6, ())
    names.learn(ROOT, 5, W1, [(b"a", 10)])
    assert not len(names)


def test_other_workers_alive_make_all_of_it_worthless():
    names = ReadableNames()
    names.learn(ROOT, 0, BOTH, [(b"a", 10)])
    names.learn(ROOT, 0, W1, [(b"b", 11)])
    assert set(names.names(ROOT, 0, W1)) == {b"b"}


def test_the_oldest_go():
    names = ReadableNames(names_max=10)
    for directory in range(1, 5):
        names.learn(directory, 0, W1, [(b"%d" % n, directory * 10 + n) for n in range(4)])
    assert len(names) == 10
    assert [len(names.names(directory, 0, W1)) for directory in range(1, 5)] == [0, 2, 4, 4]
    names.learn(9, 0, W1, [(b"%d" % n, 100 + n) for n in range(50)])
    assert len(names) == 10


class AgainstTheTables(RuleBasedStateMachine):
    """Files of few names come and go in two directories, get other bytes, lose replicas; workers die and come back.
    A lookup that remembers says what one says that does not."""

    NAMES = (b"a", b"b", b"c", b"d")

    @initialize()
    def start(self) -> None:
        self.tree = Tree(MemoryStore())
        self.readable = ReadableNames(names_max=5)
        self.directories = [ROOT, self.do(commands.Mkdir(ROOT, b"dir", 0o755, 0, 0)).inode]
        self.live = {"w1": "n1", "w2": "n2"}

    def do(self, command):
        try:
            return self.tree.do(command)
        except OSError:
            return None
        finally:
            self.readable.committed(self.tree.store.version(), self.tree.touched)

    @rule(directory=st.sampled_from((0, 1)), name=st.sampled_from(NAMES), worker=st.sampled_from(("w1", "w2")))
    def put(self, directory, name, worker):
        block = self.do(commands.Allocate((worker,))).blocks[0]
        columns = ((block.block,), (block.generation,), (10,), (7,))
        self.do(commands.PutMany(self.directories[directory], (name,), 0o644, 0, 0, *columns, worker))

    @rule(directory=st.sampled_from((0, 1)), name=st.sampled_from(NAMES))
    def unlink(self, directory, name):
        self.do(commands.Unlink(self.directories[directory], name))

    @rule(one=st.sampled_from(NAMES), other=st.sampled_from(NAMES), flags=st.sampled_from((0, 2)))
    def rename(self, one, other, flags):
        self.do(commands.Rename(self.directories[0], one, self.directories[1], other, flags))

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES))
    def link(self, name, other):
        with self.tree.view() as view:
            dentry = view.find_dentry(ROOT, name)
        if dentry is not None:
            self.do(commands.Link(dentry.inode, self.directories[1], other))

    @rule(directory=st.sampled_from((0, 1)), name=st.sampled_from(NAMES), worker=st.sampled_from(("w1", "w2")))
    def lose_replica(self, directory, name, worker):
        with self.tree.view() as view:
            dentry = view.find_dentry(self.directories[directory], name)
            inode = view.find_inode(dentry.inode) if dentry else None
        for extent in inode.extents if inode else ():
            self.do(commands.ReportBadReplica(extent.block, extent.generation, worker))

    @rule(live=st.sampled_from(({"w1": "n1"}, {"w2": "n2"}, {"w1": "n1", "w2": "n2"}, {})))
    def workers(self, live):
        self.live = live

    @rule(directory=st.sampled_from((0, 1)), names=st.lists(st.sampled_from(NAMES)))
    def look(self, directory, names):
        with self.tree.view() as view:
            number = self.directories[directory]
            bitmap, hits = lookups.lookup_many(view, number, names, lookups.Replicas(self.live, ""))
            replicas = lookups.Replicas(self.live, "")
            assert lookups.find_many(view, number, names, replicas, self.readable) == (bitmap, len(hits))


TestAgainstTheTables = AgainstTheTables.TestCase
