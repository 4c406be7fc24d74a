import os
from dataclasses import dataclass

import pytest
from hearthfs.common.errors import Busy, NotFound
from hearthfs.common.types import BlockKey
from hearthfs.worker.leases import Leases
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

KEYS = [BlockKey(block, 1) for block in range(4)]


@dataclass
class FakeOpen:
    """Counts like a descriptor."""

    opened: set
    name: int

    def __post_init__(self):
        self.opened.add(id(self))

    def dup(self):
        return FakeOpen(self.opened, self.name)

    def close(self):
        self.opened.remove(id(self))


class LeaseMachine(RuleBasedStateMachine):
    """Against a dictionary: id -> (keys, when it ends)."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.next_id = 0
        self.opened = set()
        self.leases = Leases(10, 6, self.new_id)
        self.model = {}

    def new_id(self):
        self.next_id += 1
        return self.next_id

    def expected(self):
        return {i: keys for i, (keys, end) in self.model.items() if end > self.now}

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def grant(self, keys):
        count = sum(len(held) for held in self.expected().values())
        blocks = {key: FakeOpen(self.opened, key.block) for key in keys}
        if count + len(keys) > 6:
            with pytest.raises(Busy):
                self.leases.grant(blocks, self.now)
        else:
            self.model[self.leases.grant(blocks, self.now)] = (keys, self.now + 10)

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds):
        self.now += seconds

    @rule(number=st.integers(0, 12))
    def renew(self, number):
        if number in self.expected():
            self.leases.renew(number, self.now)
            self.model[number] = (self.model[number][0], self.now + 10)
        else:
            with pytest.raises(NotFound):
                self.leases.renew(number, self.now)

    @rule(key=st.sampled_from(KEYS))
    def borrow(self, key):
        held = self.leases.borrow(key, self.now)
        assert (held is not None) == any(key in keys for keys in self.expected().values())
        if held is not None:
            assert held.name == key.block
            held.close()

    @invariant()
    def open_files_are_those_of_living_leases(self):
        self.leases.expire(self.now)
        assert len(self.opened) == sum(len(keys) for keys in self.expected().values())
        assert len(self.leases) == len(self.expected())

    def teardown(self):
        self.leases.close()
        assert not self.opened


TestLeases = LeaseMachine.TestCase


def test_a_lease_keeps_the_bytes_of_a_deleted_block(store):
    from hearthfs.tests.unit.worker.parts import put

    key = KEYS[1]
    put(store, key, b"abc")
    leases = Leases(10, 5, lambda: 1)
    leases.grant({key: store.open_read(key)}, 0.0)
    store.delete(key)
    held = leases.borrow(key, 9.9)
    assert os.pread(held.fd, 10, 0) == b"abc"
    held.close()
    assert leases.borrow(key, 10.0) is None
