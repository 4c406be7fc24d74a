from collections.abc import Mapping

import pytest
from hearthfs.bench.rounds import Sample, Visit, interleave, order


class Diary:
    """Visits that note who came when and measure the number of the round."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def visit(self, who: str, fails_in: int | None = None) -> Visit:
        def visit(number: int) -> Mapping[str, Sample]:
            self.lines.append((number, who))
            if number == fails_in:
                raise OSError("no space")
            return {"load": Sample(float(number), [number / 10])}

        return visit


def test_everybody_is_in_every_round_once_and_first_in_turn() -> None:
    names = ["a", "b", "c", "d"]
    orders = [order(names, number) for number in range(8)]
    assert all(sorted(each) == names for each in orders)
    assert {each[0] for each in orders[:4]} == set(names)
    assert orders[0] != orders[1]


def test_who_follows_whom_changes() -> None:
    following = {
        (before, after)
        for number in range(6)
        for before, after in zip(order("abc", number), order("abc", number)[1:], strict=False)
    }
    assert len(following) == 6


def test_the_warm_up_does_not_count() -> None:
    diary = Diary()
    results = interleave({"hearthfs": diary.visit("hearthfs"), "raw": diary.visit("raw")}, 2, warm_up=1)
    assert [number for number, _ in diary.lines] == [-1, -1, 0, 0, 1, 1]
    row = results.row("s", "load", "GB/s")
    assert row.figures["raw"].rounds == 2
    assert row.figures["raw"].median == 0.5
    assert row.figures["raw"].p99_ms == 100


def test_a_rival_that_fails_is_left_out_wholly_with_its_reason() -> None:
    diary = Diary()
    results = interleave({"hearthfs": diary.visit("hearthfs"), "juicefs": diary.visit("juicefs", fails_in=1)}, 3)
    assert [number for number, who in diary.lines if who == "juicefs"] == [-1, 0, 1]
    assert list(results.row("s", "load", "GB/s").figures) == ["hearthfs"]
    assert results.reasons() == ["juicefs failed: OSError: no space"]


def test_what_hearthfs_raises_is_raised() -> None:
    diary = Diary()
    with pytest.raises(OSError, match="no space"):
        interleave({"hearthfs": diary.visit("hearthfs", fails_in=0)}, 3)


def test_a_step_that_nobody_did_is_an_empty_row() -> None:
    assert interleave({}, 3).row("s", "load", "GB/s").figures == {}
