"""The policy by its laws, and what it is worth on a day of chats."""

import random

import pytest
from hearthfs.master.eviction import COLD_END, Candidate, S3Fifo


def policy(*blocks: Candidate, held_max: int = 1000) -> S3Fifo:
    made = S3Fifo(held_max)
    for block in blocks:
        made.add(block, block.key)
    return made


def blocks(*keys: int, size: int = 10, depth: int = 0, minute: int = 0) -> list[Candidate]:
    return [Candidate(key, size, depth, minute) for key in keys]


def test_the_oldest_goes_first_and_no_more_than_is_needed():
    ours = policy(*(Candidate(key, 10, 0, key) for key in range(1, 6)))
    assert ours.choose(15, 9) == [1, 2]
    assert ours.leaving_bytes == 20
    ours.evicted(1, 1)
    ours.evicted(2, 2)
    assert ours.leaving_bytes == 0
    assert len(ours) == 3
    assert ours.choose(1000, 9) == [3, 4, 5]
    assert ours.choose(1000, 9) == []


def test_of_equally_old_ones_the_deepest_goes_first():
    first = [Candidate(key, 10, depth, 0) for key, depth in ((1, 0), (2, 1), (3, 2))]
    second = [Candidate(key, 10, depth, 0) for key, depth in ((4, 1), (5, 0))]
    later = [Candidate(6, 10, 9, 1)]
    assert policy(*first, *second, *later).choose(60, 1) == [3, 2, 4, 1, 5, 6]


def test_what_was_read_outlives_what_was_not():
    ours = policy(*blocks(1, 2, 3, 4))
    assert ours.read(1)
    assert not ours.read(99)
    assert ours.choose(30, 1) == [2, 3, 4]
    assert ours.choose(10, 2) == [1]  # it went to main, and was not read there


def test_main_gives_a_round_for_each_read():
    ours = policy(*blocks(1, 2, 3))
    for key in (1, 2, 3):
        ours.read(key)
    assert ours.choose(10, 1) == [1]  # all came to main, unread there
    ours.spared(1, 1)
    ours.read(2)
    assert ours.choose(20, 2) == [3, 1]  # 2 has gone round, 1 too: it was in use
    assert ours.choose(10, 3) == [2]


def test_a_file_that_comes_back_soon_goes_to_main():
    ours = policy(*blocks(1, 2))
    assert ours.choose(10, 0) == [1]
    ours.evicted(1, identity=777)
    ours.add(Candidate(10, 10, 0, 1), identity=777)
    ours.add(Candidate(11, 10, 0, 1), identity=778)
    assert ours.choose(20, 2) == [2, 11]


def test_held_and_spared_ones_stay():
    ours = policy(*blocks(1, 2, 3))
    assert ours.choose(30, 0, is_held=lambda key: key == 2) == [1, 3]
    ours.spared(1, 0)
    ours.evicted(3, 3)
    assert len(ours) == 2
    ours.spared(1, 0)  # not leaving any more: nothing happens
    assert ours.leaving_bytes == 0
    assert ours.choose(20, 0, is_held=lambda _: True) == []  # and it ends


def test_what_left_by_another_way_is_passed_over():
    ours = policy(*blocks(1, 2, 3))
    ours.remove(1)
    ours.remove(1)
    ours.add(Candidate(2, 10, 0, 0), 2)  # known already
    assert ours.choose(30, 0) == [2, 3]
    ours.remove(2)
    assert ours.leaving_bytes == 10


def test_files_that_come_and_go_leave_nothing_behind():
    ours = policy()
    for key in range(1, 20_000):
        ours.add(Candidate(key, 10, 0, key // 100), key)
        ours.remove(key)
    assert len(ours) == 0
    assert sum(queue.listed for queue in ours._queues.values()) <= 1001


def test_the_oldest_become_cold_when_too_many_are_held():
    ours = policy(*(Candidate(key, 10, 0, key) for key in range(1, 13)), held_max=10)
    assert len(ours) == 10
    assert 1 not in ours
    assert ours.cold_from == 0  # nobody has looked at those that are cold yet
    ours.add_cold([], COLD_END)
    ours.add(Candidate(20, 10, 0, 20), 20)
    assert ours.cold_from == 3


def test_cold_ones_are_older_than_all_others():
    ours = policy(*blocks(50, 51, minute=90))
    assert ours.wants_cold
    ours.add_cold([*blocks(3, minute=2), *blocks(1, 2, minute=1), *blocks(50)], cold_from=4)
    assert not ours.wants_cold  # those first
    assert ours.read(2)
    ours.add_read(Candidate(7, 10, 0, 3))
    assert ours.choose(30, 90) == [1, 3, 50]
    assert ours.wants_cold
    ours.add_cold([], COLD_END)
    assert not ours.wants_cold


def test_a_choice_looks_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hearthfs.master.eviction.STEPS_MAX", 10)
    ours = policy(*blocks(*range(1, 21)))
    for key in range(1, 21):
        ours.read(key)
    assert (ours.choose(10, 0), ours.looked_at_all) == ([], False)
    assert ours.choose(10, 0) == [1]
    assert ours.looked_at_all


def test_nothing_is_lost_or_chosen_twice():
    """Random events, against a plain set of what there is."""
    chance = random.Random(5)
    ours, there = S3Fifo(10_000), set()
    for key in range(1, 3000):
        ours.add(Candidate(key, chance.randrange(1, 100), chance.randrange(50), key // 50), key % 700)
        there.add(key)
        for _ in range(3):
            ours.read(chance.randrange(1, key + 1))
        if chance.random() < 0.1:
            gone = chance.choice(sorted(there))
            ours.remove(gone)
            there.discard(gone)
        if chance.random() < 0.3:
            for chosen in ours.choose(chance.randrange(200), key // 50, lambda k: k % 7 == 0):
                assert chosen in there
                assert chosen % 7
                if chance.random() < 0.2:
                    ours.spared(chosen, key // 50)
                else:
                    ours.evicted(chosen, chosen % 700)
                    there.discard(chosen)
        assert len(ours) == len(there)
    everything = ours.choose(1 << 60, 99)
    assert sorted(everything) == sorted(there)
