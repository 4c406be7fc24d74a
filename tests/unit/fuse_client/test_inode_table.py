import pytest
from hearthfs.fuse_client.inode_table import PRIVATE, InodeTable, Node
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def test_nodeid_is_the_inodes_number() -> None:
    table: InodeTable[str] = InodeTable()
    node = table.attach(42)
    assert (node.nodeid, node.inode) == (42, 42)
    assert table.attach(42) is node


def test_forgotten_node_ends() -> None:
    table: InodeTable[str] = InodeTable()
    node = table.attach(42)
    table.looked_up(node)
    table.looked_up(node)
    assert table.forget(42, 1) is None
    assert table.forget(42, 1) is node
    assert table.get(42) is None
    assert table.forget(42, 1) is None


def test_open_node_outlives_forget() -> None:
    table: InodeTable[str] = InodeTable()
    node = table.attach(42)
    table.looked_up(node)
    table.opened(node)
    assert table.forget(42, 1) is None
    assert table.closed(node) is node


def test_root_is_never_forgotten() -> None:
    table: InodeTable[str] = InodeTable()
    table.forget(1, 100)
    assert table.get(1) is not None


def test_detached_node_keeps_its_handles_and_a_lookup_makes_another() -> None:
    table: InodeTable[str] = InodeTable()
    old = table.attach(42)
    table.looked_up(old)
    table.opened(old)
    assert table.detach(42) is old
    fresh = table.attach(42)
    table.looked_up(fresh)
    assert fresh is not old
    assert fresh.nodeid >= PRIVATE
    assert fresh.inode == 42
    table.closed(old)
    assert old.detached
    assert table.current(42) is fresh


def test_node_that_is_not_open_is_not_detached() -> None:
    table: InodeTable[str] = InodeTable()
    node = table.attach(42)
    table.looked_up(node)
    assert table.detach(42) is None
    assert table.attach(42) is node


def test_detached_node_is_current_again_when_nobody_looked() -> None:
    table: InodeTable[str] = InodeTable()
    node = table.attach(42)
    table.looked_up(node)
    table.opened(node)
    node.kernel_version = 7
    table.detach(42)
    table.closed(node)
    assert table.current(42) is node
    assert not node.detached
    assert node.kernel_version is None


def test_orphan_never_comes_back() -> None:
    table: InodeTable[str] = InodeTable()
    node = table.attach(42)
    table.looked_up(node)
    table.opened(node)
    table.orphaned(node)
    table.closed(node)
    assert table.current(42) is None
    assert table.forget(42, 1) is node


class TableMachine(RuleBasedStateMachine):
    """Against a model that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.table: InodeTable[str] = InodeTable()
        self.live: list[Node[str]] = []

    def _prune(self) -> None:
        self.live = [node for node in self.live if node.lookups or node.opens]

    @rule(inode=st.integers(2, 5))
    def look_up(self, inode: int) -> None:
        node = self.table.attach(inode)
        self.table.looked_up(node)
        if node not in self.live:
            self.live.append(node)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.table.opened(data.draw(st.sampled_from(self.live)))

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        opened = [node for node in self.live if node.opens]
        if opened:
            self.table.closed(data.draw(st.sampled_from(opened)))
            self._prune()

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        known = [node for node in self.live if node.lookups]
        if known:
            node = data.draw(st.sampled_from(known))
            self.table.forget(node.nodeid, data.draw(st.integers(1, node.lookups)))
            self._prune()

    @rule(inode=st.integers(2, 5))
    def detach(self, inode: int) -> None:
        self.table.detach(inode)

    @invariant()
    def table_has_exactly_what_lives(self) -> None:
        assert {id(node) for node in self.table if node.nodeid != 1} == {id(node) for node in self.live}
        assert len({node.nodeid for node in self.live}) == len(self.live)
        for node in self.live:
            assert self.table.get(node.nodeid) is node
            if not node.detached:
                assert self.table.current(node.inode) is node


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(deadline=None)


def test_closing_what_is_not_open_is_a_bug() -> None:
    table: InodeTable[str] = InodeTable()
    with pytest.raises(AssertionError):
        table.closed(table.attach(42))
