from hearthfs.common.clock import FakeClock
from hearthfs.fuse_client.lease import MAX_UNANSWERED, Lease


def started(lease_s: float = 5.0) -> tuple[Lease, FakeClock]:
    clock = FakeClock()
    lease = Lease(clock)
    lease.start(lease_s)
    return lease, clock


def test_nothing_is_valid_before_the_first_answered_ping() -> None:
    lease, _ = started()
    lease.ping()
    assert lease.remaining_s() == 0


def test_valid_from_the_time_the_ping_was_sent_not_from_its_answer() -> None:
    lease, clock = started()
    number = lease.ping()
    clock.advance(2)
    lease.pong(number)
    assert lease.remaining_s() == 3
    clock.advance(3)
    assert lease.remaining_s() == 0


def test_late_answer_never_shortens_the_lease() -> None:
    lease, clock = started()
    first = lease.ping()
    clock.advance(1)
    second = lease.ping()
    lease.pong(second)
    lease.pong(first)
    assert lease.remaining_s() == 5


def test_answers_of_the_session_before_do_not_count() -> None:
    lease, _ = started()
    old = lease.ping()
    lease.start(5)
    lease.pong(old)
    assert lease.remaining_s() == 0


def test_end_takes_everything_at_once() -> None:
    lease, _ = started()
    lease.pong(lease.ping())
    lease.end()
    assert lease.remaining_s() == 0


def test_unanswered_pings_are_bounded() -> None:
    lease, _ = started()
    first = lease.ping()
    for _ in range(MAX_UNANSWERED):
        lease.ping()
    lease.pong(first)
    assert lease.remaining_s() == 0


def test_five_pings_fit_into_a_lease() -> None:
    assert started(5)[0].ping_interval_s == 1
