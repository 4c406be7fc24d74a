"""What repair decides, without tables, clock or network."""

import pytest
from hearthfs.master.repair_plan import (
    BlockFacts,
    Drop,
    Limits,
    Task,
    WorkerFacts,
    needs_work,
    plan,
    standing,
    uneven,
)
from hypothesis import given
from hypothesis import strategies as st

GiB = 1 << 30
LIMITS = Limits(copies=4, window_bytes=1000)


def worker(name, state="live", **fields):
    values = {"node_id": f"node-{name}", "capacity_bytes": 10 * GiB, "used_bytes": GiB, "available_bytes": 9 * GiB}
    return WorkerFacts(name, state=state, **(values | fields))


def cluster(**states):
    """``cluster(a="live", b="draining")``"""
    return {
        name: worker(name, "live" if state == "draining" else state, draining=state == "draining")
        for name, state in states.items()
    }


def block(*workers, wanted=2, number=1, length=100, ordered=()):
    return BlockFacts(number, 1, length, 5, workers, wanted, ordered)


def planned(facts, workers, **task):
    return plan([Task(facts, **task)], workers, LIMITS)


def test_a_block_with_all_its_replicas_is_settled():
    result = planned(block("a", "b"), cluster(a="live", b="live"))
    assert (result.copies, result.drops, result.settled) == ([], [], [1])


@pytest.mark.parametrize("state", ["lost", None])
def test_a_lost_replica_is_made_again(state):
    workers = cluster(a="live", b="live", c="lost")
    if state is None:
        del workers["c"]
    (copy,) = planned(block("a", "c"), workers).copies
    assert (copy.sources, copy.target) == (("a",), "b")


def test_a_suspect_replica_counts_and_is_not_read_if_there_is_a_live_one():
    workers = cluster(a="live", b="suspect", c="live", d="live")
    assert planned(block("a", "b"), workers).settled == [1]
    (copy,) = planned(block("a", "b", wanted=3), workers).copies
    assert copy.sources == ("a",)
    (copy,) = planned(block("b", wanted=2), workers).copies
    assert copy.sources == ("b",)


def test_nobody_gets_what_they_have_or_were_told_to_delete():
    workers = cluster(a="live", b="live", c="live")
    (copy,) = planned(block("a", ordered=("b",)), workers).copies
    assert copy.target == "c"
    assert planned(block("a", ordered=("b", "c")), workers).waiting == [1]


def test_without_a_source_there_is_nothing_to_do():
    workers = cluster(a="lost", b="live")
    assert planned(block("a"), workers).settled == [1]
    assert not needs_work(block("a"), workers)


def test_no_more_replicas_than_workers_that_take_blocks():
    result = planned(block("a", wanted=3), cluster(a="live", b="lost", c="draining"))
    assert (result.copies, result.waiting) == ([], [1])  # it stays on the list of those that have too few
    assert standing(block("a", wanted=3), cluster(a="live", b="live")).short == 1


def test_the_target_is_on_another_node_then_the_emptiest():
    workers = cluster(a="live", b="live", c="live", d="live")
    workers["d"].node_id = "node-a"
    workers["d"].available_bytes = 10 * GiB
    workers["c"].available_bytes = 8 * GiB
    assert planned(block("a"), workers).copies[0].target == "b"
    assert planned(block("a"), workers, failed=frozenset("b")).copies[0].target == "c"
    assert planned(block("a"), workers, failed=frozenset("bc"), targets=frozenset("bc")).copies[0].target == "b"


def test_the_last_room_is_for_writers():
    workers = cluster(a="live", b="live")
    workers["b"].available_bytes = int(0.02 * 10 * GiB) + 99
    assert planned(block("a"), workers).waiting == [1]
    workers["b"].available_bytes += 1
    assert len(planned(block("a"), workers).copies) == 1


def test_limits_hold_for_targets_and_sources():
    workers = cluster(a="live", b="live")
    tasks = [Task(block("a", number=number, length=10)) for number in range(1, 20)]
    result = plan(tasks, workers, LIMITS)
    assert len(result.copies) == LIMITS.copies
    assert len(result.waiting) == 15
    workers = cluster(a="live", b="live")
    result = plan([Task(block("a", number=number, length=600)) for number in range(1, 5)], workers, LIMITS)
    assert len(result.copies) == 1
    (copy,) = plan([Task(block("a", length=5000))], cluster(a="live", b="live"), LIMITS).copies
    assert copy.facts.length_bytes == 5000
    workers = cluster(a="live", b="live", c="live", d="live")
    tasks = [Task(block("a", number=number, length=10)) for number in range(1, 20)]
    assert len(plan(tasks, workers, LIMITS).copies) == 2 * LIMITS.copies


def test_what_has_fewest_replicas_comes_first():
    workers = cluster(a="live", b="live", c="live")
    tasks = [Task(block("a", "b", wanted=3, number=1)), Task(block("a", wanted=3, number=2))]
    assert plan(tasks, workers, Limits(1, 10_000)).copies[0].facts.block == 2


def test_draining_copies_away_and_then_gives_up():
    workers = cluster(a="draining", b="live", c="live")
    (copy,) = planned(block("a", wanted=1), workers).copies
    assert copy.sources == ("a",)
    assert planned(block("a", "b", wanted=1), workers).drops == [Drop(1, 1, "a", 1)]
    assert planned(block("a", "b", wanted=2), workers).copies[0].target == "c"
    assert planned(block("a", "b", "c", wanted=2), workers).drops == [Drop(1, 1, "a", 2)]
    assert planned(block("a", "b", wanted=2), cluster(a="draining", b="live")).drops == [Drop(1, 1, "a", 1)]


def test_a_replica_is_not_given_up_for_one_that_may_be_gone():
    result = planned(block("a", "b", wanted=1), cluster(a="draining", b="suspect", c="live"))
    assert (result.drops, result.copies, result.waiting) == ([], [], [1])


def test_the_only_worker_keeps_what_it_has():
    assert planned(block("a", wanted=1), cluster(a="draining")).waiting == [1]


def test_a_move_goes_only_where_it_may():
    workers = cluster(a="live", b="live", c="live")
    workers["b"].available_bytes = 10 * GiB
    task = {"leaving": frozenset("a"), "targets": frozenset("c")}
    assert planned(block("a", wanted=1), workers, **task).copies[0].target == "c"
    assert planned(block("a", "c", wanted=1), workers, **task).drops == [Drop(1, 1, "a", 1)]


def test_uneven():
    def filled(**used):
        return [worker(name, used_bytes=share * GiB) for name, share in used.items()]

    assert uneven(filled(a=5, b=5, c=5), 5) == []
    (relief,) = uneven(filled(a=9, b=3, c=3), 10)
    assert (relief.worker_id, sorted(relief.targets)) == ("a", ["b", "c"])
    assert relief.excess_bytes == pytest.approx(3 * GiB, abs=1)
    assert [each.worker_id for each in uneven(filled(a=8, b=9, c=0, d=0), 10)] == ["b", "a"]
    assert uneven([worker("a", "lost", used_bytes=10 * GiB), worker("b")], 10) == []
    assert uneven([], 10) == []


STATES = st.sampled_from(["live", "suspect", "lost", "draining"])


@given(st.fixed_dictionaries(dict.fromkeys("abcd", STATES)), st.sets(st.sampled_from("abcd")), st.integers(1, 4))
def test_repair_ends_and_loses_nothing(states, holders, wanted):
    """However it begins: order by order it comes to rest, and never has fewer live replicas than the least that is
    wanted, or than it had."""
    holders = tuple(sorted(holders))
    before = [each for each in holders if states[each] in ("live", "draining")]
    for _ in range(12):
        result = planned(block(*holders, wanted=wanted), cluster(**states))
        for copy in result.copies:
            assert copy.target not in holders
            assert states[copy.target] == "live"
            assert set(copy.sources) <= set(holders)
            holders = (*holders, copy.target)
        for drop in result.drops:
            assert states[drop.worker_id] == "draining"
            holders = tuple(each for each in holders if each != drop.worker_id)
            live = [each for each in holders if states[each] == "live"]
            assert len(live) >= drop.others >= min(wanted, sum(state == "live" for state in states.values()), 1)
        if not result.copies and not result.drops:
            break
    else:
        raise AssertionError("it goes on for ever")
    after = [each for each in holders if states[each] in ("live", "draining")]
    assert bool(after) == bool(before) or any(states[each] == "suspect" for each in holders)
