from hearthfs.common.types import BlockKey
from hearthfs.worker.orders import Unknown
from hypothesis import given
from hypothesis import strategies as st

A, B = BlockKey(1, 1), BlockKey(2, 1)


def test_a_working_block_goes_at_once_and_a_committed_one_waits():
    unknown = Unknown(60)
    assert unknown.replace({A: True, B: False}, 100.0) == [A]
    assert unknown.due(159.9) == []
    assert unknown.due(160.0) == [B]
    assert unknown.due(1000.0) == []


def test_a_block_that_the_master_knows_again_stays():
    unknown = Unknown(60)
    unknown.replace({A: False}, 0.0)
    unknown.replace({}, 30.0)
    assert unknown.due(100.0) == []


def test_a_second_report_does_not_start_the_delay_again():
    unknown = Unknown(60)
    unknown.replace({A: False}, 0.0)
    unknown.replace({A: False, B: False}, 50.0)
    assert unknown.due(60.0) == [A]
    assert len(unknown) == 1


@given(st.lists(st.tuples(st.floats(0, 50), st.dictionaries(st.integers(1, 4), st.booleans()))))
def test_no_committed_block_goes_before_it_was_unknown_for_the_whole_delay(steps):
    unknown = Unknown(60)
    now = 0.0
    since: dict[int, float] = {}
    for step, named in steps:
        now += step
        for key in unknown.due(now):
            assert now - since.pop(key.block) >= 60
        unknown.replace({BlockKey(block, 1): working for block, working in named.items()}, now)
        since = {block: since.get(block, now) for block, working in named.items() if not working}
