from hearthfs.common.clock import FakeClock
from hearthfs.connector.breaker import MAX_REST, Breaker


def opened(limit: int = 3) -> tuple[Breaker, FakeClock]:
    clock = FakeClock()
    breaker = Breaker(limit, 5, clock)
    for _ in range(limit):
        breaker.failed("silent")
    return breaker, clock


def test_failures_in_a_row_open_it_and_only_those() -> None:
    breaker = Breaker(3, 5, FakeClock())
    for _ in range(10):
        assert not breaker.failed("x")
        assert not breaker.failed("x")
        breaker.succeeded()
    assert breaker.allows()
    assert [breaker.failed("x") for _ in range(3)] == [False, False, True]
    assert not breaker.allows()


def test_after_a_rest_one_caller_may_try() -> None:
    breaker, clock = opened()
    clock.advance(4.9)
    assert not breaker.allows()
    clock.advance(0.2)
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert all(breaker.allows() for _ in range(3))


def test_a_failed_probe_doubles_the_rest_up_to_four_times() -> None:
    breaker, clock = opened()
    rests = []
    for _ in range(6):
        waited = 0
        while not breaker.allows():
            clock.advance(1)
            waited += 1
        rests.append(waited)
        breaker.failed("still")
    assert rests == [5, 10, 20, 20, 20, 20]
    clock.advance(5 * MAX_REST)
    assert breaker.allows()
    breaker.succeeded()
    for _ in range(3):
        breaker.failed("again")
    clock.advance(5)
    assert breaker.allows(), "a success makes rests short again"


def test_late_failures_of_older_calls_do_not_prolong_the_rest() -> None:
    breaker, clock = opened()
    clock.advance(3)
    breaker.failed("older")
    clock.advance(2)
    assert breaker.allows()


def test_a_probe_that_never_ends_is_followed_by_another() -> None:
    breaker, clock = opened()
    clock.advance(5)
    assert breaker.allows()
    clock.advance(5)
    assert breaker.allows()


def test_failed_lately_forgets() -> None:
    breaker, clock = opened(limit=3)
    assert breaker.failed_lately
    clock.advance(5)
    assert not breaker.failed_lately
    breaker.failed("x")
    breaker.succeeded()
    assert not breaker.failed_lately
