import threading

from hearthfs.common.types import BlockKey
from hearthfs.worker.key_locks import KeyLocks

A, B = BlockKey(1, 1), BlockKey(2, 1)


def test_one_at_a_time_for_a_key_and_nothing_is_left():
    locks = KeyLocks()
    inside = []
    most = []

    def work():
        for _ in range(200):
            with locks.holding(A):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(locks) == 0


def test_another_key_does_not_wait():
    locks = KeyLocks()
    with locks.holding(A), locks.holding(B):
        assert len(locks) == 2


def test_an_error_inside_lets_go():
    locks = KeyLocks()
    try:
        with locks.holding(A):
            raise ValueError
    except ValueError:
        pass
    with locks.holding(A):
        pass
