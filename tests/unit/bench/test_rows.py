import pytest
from hearthfs.bench.rows import COLUMNS, Figure, make, percentile


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.99) == 99
    assert percentile(values, 0.5) == 50
    assert percentile(values, 1.0) == 100
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 0.5)


def test_a_figure_has_the_median_and_the_spread_of_rounds_and_percentiles_of_calls() -> None:
    figure = Figure.of([3.0, 1.0, 2.0, 10.0], [0.001, 0.002, 0.009])
    assert (figure.median, figure.min, figure.max, figure.rounds) == (2.5, 1.0, 10.0, 4)
    assert (figure.p50_ms, figure.p99_ms) == (2.0, pytest.approx(9.0))
    assert Figure.of([1.0]).p99_ms is None


def test_json_has_every_column_and_null_for_who_is_missing() -> None:
    row = make("s", "load", "GB/s", {"hearthfs": [1.0, 3.0], "raw": [4.0], "juicefs": []}, mib=8, threads=4)
    found = row.as_json()
    assert set(COLUMNS) | {"name", "mib", "threads", "unit", "min", "max"} <= found.keys()
    assert found["hearthfs"] == 2.0
    assert found["raw"] == 4.0
    assert found["juicefs"] is None
    assert found["mooncake"] is None
    assert (found["min"], found["max"]) == (1.0, 3.0)


def test_the_spread_is_null_where_hearthfs_took_no_part() -> None:
    found = make("s", "load", "GB/s", {"raw": [4.0]}).as_json()
    assert (found["hearthfs"], found["min"], found["max"]) == (None, None, None)


def test_no_ratio_to_what_was_not_measured() -> None:
    row = make("s", "load", "GB/s", {"hearthfs": [2.0], "raw": [4.0], "mooncake": [0.0]})
    assert row.ratio("raw") == 0.5
    assert row.ratio("juicefs") is None
    assert row.ratio("mooncake") is None
