import pytest
from hearthfs.common.errors import NoSpace
from hearthfs.master.placement import Candidate, choose

WORKERS = [Candidate("a", "n1", 100), Candidate("b", "n2", 200), Candidate("c", "n3", 300)]


def pick(prefer_node="", size_bytes=0, avoid=(), candidates=WORKERS):
    return choose(candidates, prefer_node=prefer_node, size_bytes=size_bytes, avoid=avoid)[0]


def test_the_own_node_comes_first():
    assert pick("n1") == "a"
    assert pick("n1", 100) == "a"


def test_the_emptiest_is_next():
    assert pick() == "c"
    assert pick("n1", 101) == "c"
    assert pick("elsewhere") == "c"


def test_avoided_workers_are_the_last_resort():
    assert pick("n1", avoid=("a",)) == "c"
    assert pick("n1", avoid=("a", "c")) == "b"
    assert pick("n1", avoid=("a", "b", "c")) == "a"
    assert pick("n1", 250, avoid=("c",)) == "c"


def test_full_workers_get_nothing():
    full = [Candidate("a", "n1", 0), Candidate("b", "n2", 1)]
    assert pick("n1", candidates=full) == "b"
    with pytest.raises(NoSpace, match="no worker has 2 bytes free for block 1 of 1; of 2 the emptiest has 1"):
        pick("n1", 2, candidates=full)
    with pytest.raises(NoSpace, match="no worker is alive"):
        pick(candidates=[])


def test_equals_are_chosen_alike():
    same = [Candidate(name, "n", 5) for name in "abc"]
    assert pick(candidates=same) == pick(candidates=same[::-1])


def test_many_blocks_fill_the_own_node_then_the_others():
    chosen = choose(WORKERS, 6, prefer_node="n1", size_bytes=100)
    assert chosen == ["a", "c", "b", "c", "b", "c"]
    with pytest.raises(NoSpace, match="for block 7 of 7"):
        choose(WORKERS, 7, prefer_node="n1", size_bytes=100)


def test_many_blocks_of_unknown_size_spread():
    equal = [Candidate(name, name, 1 << 40) for name in "abc"]
    chosen = choose(equal, 300, prefer_node="", size_bytes=0)
    assert {chosen.count(name) for name in "abc"} == {100}
    assert choose(equal, 300, prefer_node="b", size_bytes=0) == ["b"] * 300


def test_blocks_of_a_known_size_take_no_more_than_that():
    assert choose([Candidate("a", "n", 63 << 20)], 63, prefer_node="n", size_bytes=1 << 20) == ["a"] * 63
