from hearthfs.common.types import BlockKey
from hearthfs.worker.reports import Changes, Report, pages
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

KEYS = [BlockKey(block, 1) for block in range(6)]


class Told(RuleBasedStateMachine):
    """A master that hears heartbeats, some of which or whose answers are lost, ends up with the truth."""

    def __init__(self):
        super().__init__()
        self.changes = Changes()
        self.here = {}
        self.master = {}
        self.version = 0

    @rule(key=st.sampled_from(KEYS))
    def add(self, key):
        self.version += 1
        self.here[key] = Report(key, self.version, self.version)
        self.changes.note(key, self.here[key])

    @rule(key=st.sampled_from(KEYS))
    def remove(self, key):
        self.here.pop(key, None)
        self.changes.note(key, None)

    def deliver(self, batch):
        for report in batch.added:
            self.master[report.key] = report
        for key in batch.removed:
            self.master.pop(key, None)

    @rule(limit=st.integers(1, 4), answered=st.booleans())
    def heartbeat(self, limit, answered):
        batch = self.changes.take(limit)
        self.deliver(batch)
        if answered:
            self.changes.acknowledge(batch)

    @rule()
    def lost_heartbeat(self):
        self.changes.take()

    @rule(key=st.sampled_from(KEYS), then=st.booleans())
    def change_while_on_the_way(self, key, then):
        batch = self.changes.take()
        (self.add if then else self.remove)(key)
        self.deliver(batch)
        self.changes.acknowledge(batch)

    @invariant()
    def what_the_master_does_not_know_is_pending(self):
        pending = {report.key for report in self.changes.take().added} | set(self.changes.take().removed)
        for key in KEYS:
            assert key in pending or self.master.get(key) == self.here.get(key)


TestTold = Told.TestCase


@given(st.lists(st.integers(0, 1000), unique=True).map(sorted), st.integers(1, 7))
def test_pages_hold_every_report_in_order(blocks, size):
    reports = [Report(BlockKey(block, 1), 1, 1) for block in blocks]
    made = list(pages(iter(reports), size))
    assert [report for page in made for report in page.blocks] == reports
    assert [page.start for page in made] == [True] + [False] * (len(made) - 1)
    assert [page.end for page in made] == [False] * (len(made) - 1) + [True]
    assert all(len(page.blocks) <= size for page in made)


def test_too_many_changes_ask_for_a_full_report_instead():
    changes = Changes(limit=3)
    for block in range(5):
        changes.note(BlockKey(block, 1), None)
    assert changes.overflowed
    assert len(changes) <= 3
    changes.begin_full_report()
    assert not changes.overflowed
