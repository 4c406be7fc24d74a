import threading

from hearthfs.client.keeper import Keeper
from hearthfs.common.clock import FakeClock, SystemClock
from hearthfs.common.errors import Unavailable


def test_what_is_kept_is_renewed_until_its_last_release() -> None:
    keeper = Keeper(SystemClock())
    thrice = threading.Event()
    calls = []

    def act() -> None:
        calls.append(1)
        if len(calls) == 3:
            thrice.set()

    keeper.keep("a", 0.001, act)
    keeper.keep("a", 0.001, act)
    keeper.release("a")
    assert thrice.wait(10)
    keeper.release("a")
    keeper.release("a")  # one too many does no harm
    keeper.close()
    count = len(calls)
    assert len(calls) == count


def test_a_failed_renewal_is_tried_again() -> None:
    keeper = Keeper(SystemClock())
    again = threading.Event()
    calls = []

    def act() -> None:
        calls.append(1)
        if len(calls) > 1:
            again.set()
        raise Unavailable("down")

    keeper.keep("a", 0.001, act)
    assert again.wait(10)
    keeper.close()


def test_nothing_runs_before_it_is_due() -> None:
    keeper = Keeper(FakeClock())
    keeper.keep("a", 10.0, lambda: (_ for _ in ()).throw(AssertionError))
    keeper.close()


def test_nothing_kept_is_no_thread() -> None:
    before = threading.active_count()
    keeper = Keeper()
    assert threading.active_count() == before
    keeper.close()
