"""What repair has in hand: orders, their ends, pauses, bounds. Time is a number."""

import pytest
from hearthfs.master.repair_plan import BlockFacts, Copy, Plan, WorkerFacts
from hearthfs.master.repairs import COPY_S, FIRST_PAUSE_S, PAUSE_MAX_S, SLOW_BYTES_PER_S, WAITING_PAUSE_S, Repairs


def facts(block, length=100, generation=1):
    return BlockFacts(block, generation, length, 5, ("a",), 2)


def order(repairs, block, target="b", now_s=0.0, **fields):
    repairs.add(block)
    repairs.adopt(Plan(copies=[Copy(facts(block, **fields), ("a",), target)]), now_s)


@pytest.fixture
def repairs():
    return Repairs()


def test_a_block_under_way_is_not_due(repairs):
    order(repairs, 1)
    repairs.add(2)
    assert repairs.due(0.0, 10) == [2]
    assert [each.copy.facts.block for each in repairs.orders("b", 0.0)] == [1]
    assert repairs.orders("a", 0.0) == []
    assert (len(repairs), repairs.running, repairs.degraded) == (2, 1, 2)


def test_success_lets_it_be_looked_at_again(repairs):
    order(repairs, 1)
    repairs.end("b", 1, 1, succeeded=True, now_s=1.0)
    assert repairs.due(1.0, 10) == [1]
    repairs.adopt(Plan(settled=[1]), 1.0)
    assert len(repairs) == 0
    assert repairs.ended == {"ok": 1}


@pytest.mark.parametrize(("worker", "generation"), [("c", 1), ("b", 2)])
def test_the_word_of_others_does_not_count(repairs, worker, generation):
    order(repairs, 1)
    repairs.end(worker, 1, generation, succeeded=True, now_s=1.0)
    repairs.end("b", 7, 1, succeeded=True, now_s=1.0)
    assert repairs.running == 1


def test_failures_wait_longer_each_time_and_are_remembered(repairs):
    now_s = 0.0
    for pause_s in (FIRST_PAUSE_S, 2.0, 4.0, 8.0, 16.0, 32.0, PAUSE_MAX_S, PAUSE_MAX_S):
        order(repairs, 1, now_s=now_s)
        repairs.end("b", 1, 1, succeeded=False, now_s=now_s)
        assert repairs.task(facts(1)).failed == {"b"}
        assert repairs.due(now_s + pause_s - 0.1, 10) == []
        now_s += pause_s
        assert repairs.due(now_s, 10) == [1]
    order(repairs, 1, now_s=now_s)
    repairs.end("b", 1, 1, succeeded=True, now_s=now_s)
    assert repairs.task(facts(1)).failed == frozenset()


def test_a_deadline_ends_an_order(repairs):
    order(repairs, 1, length=SLOW_BYTES_PER_S)
    repairs.expire(COPY_S)
    assert repairs.running == 1
    assert repairs.orders("b", COPY_S + 1) == []
    repairs.expire(COPY_S + 1)
    assert repairs.running == 0
    assert repairs.ended == {"late": 1}


def test_orders_of_lost_workers_end(repairs):
    order(repairs, 1)
    order(repairs, 2, target="c")
    repairs.expire(0.5, {"b"})
    assert [each.copy.facts.block for each in repairs.orders("c", 0.5)] == [2]
    assert repairs.orders("b", 0.5) == []


def test_what_waits_goes_behind_what_can_be_helped(repairs):
    for block in (1, 2, 3):
        repairs.add(block)
    repairs.adopt(Plan(waiting=[1]), 0.0)
    assert repairs.due(0.0, 10) == [2, 3]
    assert repairs.due(WAITING_PAUSE_S, 10) == [2, 3, 1]
    assert repairs.due(WAITING_PAUSE_S, 1) == [2]
    repairs.adopt(Plan(waiting=[1]), WAITING_PAUSE_S)
    assert 1 not in repairs.due(2 * WAITING_PAUSE_S, 10)
    assert 1 in repairs.due(3 * WAITING_PAUSE_S, 10)
    repairs.wake()
    assert 1 in repairs.due(WAITING_PAUSE_S, 10)
    repairs.adopt(Plan(waiting=[1]), WAITING_PAUSE_S)
    repairs.changed(1)
    assert 1 in repairs.due(WAITING_PAUSE_S, 10)


def test_the_load_counts_what_is_under_way(repairs):
    order(repairs, 1)
    order(repairs, 2)
    a, b = WorkerFacts("a", "a", "live"), WorkerFacts("b", "b", "live")
    repairs.load([a, b])
    assert (a.outgoing, b.incoming, b.incoming_bytes) == (2, 2, 200)


def test_the_bound():
    repairs = Repairs(needs_max=2)
    assert [repairs.add(block) for block in (1, 2, 3, 1)] == [True, True, False, True]
    assert repairs.room == 0
    repairs.forget(1)
    assert repairs.add(3)


def test_moves_are_not_degraded_and_can_be_called_off(repairs):
    repairs.add(1, ["a"], frozenset("b"))
    repairs.add(2)
    assert (repairs.degraded, repairs.moves) == (1, 1)
    assert repairs.task(facts(1))[1:3] == (frozenset("a"), frozenset("b"))
    repairs.release("a")
    assert repairs.task(facts(1))[1:3] == (frozenset(), None)
