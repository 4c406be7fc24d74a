import pytest
from hearthfs.common.clock import FakeClock, SystemClock


def test_a_fake_clock_stands_still_until_it_is_told():
    clock = FakeClock(wall_ns=5_000_000_000)
    assert (clock.monotonic_s(), clock.wall_ns()) == (0.0, 5_000_000_000)
    clock.advance(1.5)
    assert (clock.monotonic_s(), clock.wall_ns()) == (1.5, 6_500_000_000)


def test_a_jump_of_the_wall_clock_does_not_move_the_monotonic_one():
    clock = FakeClock(wall_ns=0)
    clock.advance(1)
    clock.jump_wall(-3600)
    assert clock.monotonic_s() == 1
    assert clock.wall_ns() == -3599 * 10**9


def test_the_systems_clock_goes_on():
    clock = SystemClock()
    first = clock.monotonic_s()
    assert clock.monotonic_s() >= first
    assert clock.wall_ns() > 1_700_000_000 * 10**9


@pytest.mark.parametrize("name", ["monotonic_s", "wall_ns"])
def test_both_clocks_have_the_same_methods(name):
    assert callable(getattr(SystemClock(), name))
    assert callable(getattr(FakeClock(), name))
