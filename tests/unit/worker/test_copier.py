import threading

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import BlockCorrupt, BlockMissing, DeadlineExceeded, NoSpace, Unavailable
from hearthfs.common.types import BlockKey
from hearthfs.worker.copier import Copier, Order, Source

A, B = BlockKey(1, 1), BlockKey(2, 1)
SOURCES = (Source("w1", "one:1"), Source("w2", "two:2"))


class Network:
    """Fetches are what the test says."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, key, length_bytes, digest, addresses):
        self.gate.wait(20)
        self.asked.append((key, length_bytes, digest, *addresses))
        answer = self.answers.get(addresses[0])
        if answer is not None:
            raise answer


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def copier(network, clock):
    ended = threading.Semaphore(0)
    copier = Copier(network.fetch, clock, 2, ended.release)
    copier.start()

    def run(*orders):
        copier.take(orders)
        for _ in orders:
            assert ended.acquire(timeout=20)
        return copier.results()

    copier.run, copier.ended = run, ended
    yield copier
    network.gate.set()
    copier.stop()


def order(key=A, deadline_s=10.0, sources=SOURCES):
    return Order(key, 100, 5, sources, deadline_s)


def test_the_first_source_that_has_it(copier, network):
    assert copier.run(order()) == [(A, None, ())]
    assert network.asked == [(A, 100, 5, "one:1")]


@pytest.mark.parametrize("error", [BlockCorrupt("wrong"), BlockMissing("gone")])
def test_a_bad_source_is_named_and_the_next_one_asked(copier, network, error):
    network.answers["one:1"] = error
    assert copier.run(order()) == [(A, None, ("w1",))]


def test_a_source_that_does_not_answer_is_not_bad(copier, network):
    network.answers["one:1"] = Unavailable("away")
    assert copier.run(order()) == [(A, None, ())]
    network.answers["two:2"] = BlockCorrupt("wrong")
    (_, result) = copier.run(order(B))
    assert (result.key, type(result.error), result.bad_sources) == (B, BlockCorrupt, ("w2",))


def test_without_room_nobody_else_is_asked(copier, network):
    network.answers["one:1"] = NoSpace("full")
    (result,) = copier.run(order())
    assert isinstance(result.error, NoSpace)
    assert len(network.asked) == 1


def test_an_order_that_is_over_is_not_begun(copier, network, clock):
    clock.advance(11)
    (result,) = copier.run(order())
    assert isinstance(result.error, DeadlineExceeded)
    assert network.asked == []


def test_a_bug_is_an_answer(copier, network):
    network.answers["one:1"] = network.answers["two:2"] = ZeroDivisionError()
    (result,) = copier.run(order())
    assert "bug in the worker" in str(result.error)


def test_the_same_order_is_done_once_until_the_master_knows(copier, network):
    network.gate.clear()
    copier.take([order(), order()])
    copier.take([order()])
    network.gate.set()
    copier.run(order(B))
    assert copier.ended.acquire(timeout=20)
    copier.take([order()])
    assert sorted(key for key, *_ in network.asked) == [A, B]
    copier.acknowledge(2)
    assert copier.results() == []
    assert copier.run(order()) == [(A, None, ())]
