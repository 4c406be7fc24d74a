from hearthfs.bench.rows import make
from hearthfs.bench.targets import Target, judge, verdicts

LOAD = Target("load vs raw, 8 MiB", "load", 0.6, "raw", mib=8)


def test_the_worst_row_decides() -> None:
    rows = [
        make("s", "load", "GB/s", {"hearthfs": [4.0], "raw": [5.0]}, mib=8, threads=1),
        make("s", "load", "GB/s", {"hearthfs": [2.5], "raw": [5.0]}, mib=8, threads=4),
        make("s", "load", "GB/s", {"hearthfs": [0.1], "raw": [5.0]}, mib=64, threads=4),
    ]
    verdict = judge(LOAD, rows)
    assert verdict is not None
    assert (verdict.measured, verdict.reached) == (0.5, False)


def test_just_reached_is_reached() -> None:
    verdict = judge(LOAD, [make("s", "load", "GB/s", {"hearthfs": [3.0], "raw": [5.0]}, mib=8)])
    assert verdict is not None
    assert verdict.reached


def test_times_must_be_small() -> None:
    target = Target("lookup", "lookup", 0.15, "raw", at_most=True)
    rows = [make("s", "lookup", "ms", {"hearthfs": [1.0], "raw": [10.0]})]
    verdict = judge(target, rows)
    assert verdict is not None
    assert (verdict.bound, verdict.measured, verdict.reached) == ("≤ 0.15", 0.1, True)


def test_a_figure_by_itself() -> None:
    target = Target("p99, ms", "publish", 20, at_most=True)
    verdict = judge(target, [make("s", "publish", "ms", {"hearthfs": [21.0]})])
    assert verdict is not None
    assert (verdict.measured, verdict.reached) == (21.0, False)


def test_without_the_rival_nothing_is_claimed() -> None:
    verdict = judge(LOAD, [make("s", "load", "GB/s", {"hearthfs": [3.0]}, mib=8)])
    assert verdict is not None
    assert (verdict.measured, verdict.reached) == (None, False)


def test_what_was_not_run_is_left_out() -> None:
    assert verdicts([]) == []
