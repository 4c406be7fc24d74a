import pytest
from hearthfs.client.retry import RetryPolicy, attempt_timeout_s
from hearthfs.common.errors import Busy, NoSpace, NotFound, StaleEpoch, StaleSession, Unavailable
from hypothesis import given
from hypothesis import strategies as st

POLICY = RetryPolicy(first_delay_s=0.1, max_delay_s=2.0, max_attempts=50)


@pytest.mark.parametrize("kind", [NotFound, NoSpace])
def test_final_errors_are_not_tried_again(kind: type) -> None:
    assert POLICY.delay_s(1, 0.0, 30.0, kind("no"), 0.5) is None


@pytest.mark.parametrize("kind", [StaleSession, StaleEpoch])
def test_a_stale_session_goes_again_at_once_but_only_the_first_time(kind: type) -> None:
    assert POLICY.delay_s(1, 0.0, 30.0, kind("no"), 0.5) == 0.0
    assert POLICY.delay_s(2, 0.0, 30.0, kind("no"), 0.5) == pytest.approx(0.15)


def test_the_last_attempt_is_the_last() -> None:
    assert POLICY.delay_s(49, 0.0, 1e9, Busy("full"), 0.0) is not None
    assert POLICY.delay_s(50, 0.0, 1e9, Busy("full"), 0.0) is None


@given(st.integers(1, 49), st.floats(0, 40), st.floats(0, 1, exclude_max=True))
def test_delays_are_bounded_by_policy_and_deadline(attempt: int, elapsed: float, random: float) -> None:
    delay = POLICY.delay_s(attempt, elapsed, 30.0, Unavailable("gone"), random)
    if delay is None:
        assert elapsed + 2.0 >= 30.0
    else:
        assert 0.05 <= delay <= 2.0
        assert elapsed + delay < 30.0


def test_jitter_spreads_over_half_the_delay() -> None:
    low = POLICY.delay_s(3, 0.0, 30.0, Unavailable("gone"), 0.0)
    high = POLICY.delay_s(3, 0.0, 30.0, Unavailable("gone"), 0.999)
    assert low == pytest.approx(0.2)
    assert high == pytest.approx(0.4, rel=0.01)


def test_an_attempt_gets_what_is_left_up_to_its_limit() -> None:
    assert attempt_timeout_s(0.0, 30.0, 10.0) == 10.0
    assert attempt_timeout_s(25.0, 30.0, 10.0) == 5.0
    assert attempt_timeout_s(31.0, 30.0, 10.0) == 0.0
