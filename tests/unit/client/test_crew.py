import threading
from collections.abc import Iterator

import pytest
from hearthfs.client.crew import Crew


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew(4)
    yield crew
    crew.close()


def test_each_index_once(crew: Crew) -> None:
    seen: list[int] = []
    crew.for_each(100, seen.append)
    assert sorted(seen) == list(range(100))
    crew.for_each(0, seen.append)
    assert len(seen) == 100


def test_it_really_is_several_threads(crew: Crew) -> None:
    barrier = threading.Barrier(4, timeout=10)
    crew.for_each(4, lambda index: barrier.wait() and None)


def test_never_more_threads_than_said(crew: Crew) -> None:
    names = set()
    crew.for_each(200, lambda index: names.add(threading.get_ident()))
    assert len(names) <= 4


def test_one_failure_is_raised_when_all_are_done(crew: Crew) -> None:
    running = []

    def act(index: int) -> None:
        running.append(index)
        if index == 3:
            raise ValueError(index)

    with pytest.raises(ValueError, match="3"):
        crew.for_each(50, act)
    done = len(running)
    crew.for_each(1, lambda index: None)
    assert len(running) == done


def test_work_inside_work(crew: Crew) -> None:
    seen: list[int] = []
    crew.for_each(8, lambda outer: crew.for_each(8, lambda inner: seen.append(outer * 8 + inner)))
    assert sorted(seen) == list(range(64))


def test_a_crew_of_one_or_closed_is_the_caller() -> None:
    for crew in (Crew(1), Crew(4)):
        crew.close()
        names: set[int] = set()
        crew.for_each(10, lambda index, names=names: names.add(threading.get_ident()))
        assert names == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_work_inside_of_work(threads: int) -> None:
    crew = Crew(threads)
    seen: list[tuple[int, int]] = []
    crew.for_each(6, lambda outer: crew.for_each(7, lambda inner: seen.append((outer, inner))))
    assert sorted(seen) == [(outer, inner) for outer in range(6) for inner in range(7)]
    crew.close()
