import json
from pathlib import Path

import pytest
from hearthfs.bench import charts, names_of_rows
from hearthfs.bench.report import Report, line
from hearthfs.bench.rows import make

MACHINE = {
    "cores": 2,
    "processor": "a processor",
    "memory_gib": 24,
    "kernel": "6.18",
    "filesystem": "ext4",
    "python": "3.11",
    "hearthfs": "0.1",
    "rounds": 5,
}
ROWS = [
    make(
        "mounts",
        names_of_rows.FIRST,
        "GB/s",
        {"raw": [5.0, 6.0], "hearthfs": [4.0, 4.5], "juicefs best": [0.5]},
        calls_s={"hearthfs": [0.001, 0.002]},
        mib=8,
        threads=4,
    ),
    make("memory", "memory: master", "MiB", {"hearthfs": [38.0]}, note="after work"),
]


def report() -> Report:
    return Report(MACHINE, list(ROWS), {"raw": "a plain directory"}, {"mooncake": "not installed"})


def test_the_page_says_how_who_and_what() -> None:
    page = report().as_markdown()
    assert "5 rounds" in page
    assert "a processor" in page
    assert "- **raw**: a plain directory" in page
    assert "- **mooncake**: took no part: not installed" in page
    assert "4.25 (4.00 to 4.50)" in page
    assert "1.00 / 2.00" in page
    assert "MiB (less is better)" in page
    assert "- after work" in page
    assert "| mount, first load vs raw, 8 MiB" in page


def test_a_section_that_failed_is_not_hidden() -> None:
    failed = report()
    failed.failures["disk"] = "OSError: no space"
    assert "**Section disk failed**: OSError: no space" in failed.as_markdown()
    assert json.loads(failed.as_json())["failures"] == {"disk": "OSError: no space"}


def test_json_can_be_read_back() -> None:
    found = json.loads(report().as_json())
    assert found["machine"]["rounds"] == 5
    assert found["rows"][0]["hearthfs"] == 4.25
    assert found["rows"][0]["figures"]["juicefs best"]["median"] == 0.5
    assert found["rows"][1]["raw"] is None


def test_what_was_written_can_be_read_and_measured_again_in_part() -> None:
    earlier = Report.read(report().as_json())
    assert earlier.rows == ROWS
    earlier.forget(["mounts"])
    later = Report(MACHINE, [ROWS[0]], {"hearthfs": "default settings"})
    later.take_over(earlier)
    assert [row.section for row in later.rows] == ["memory", "mounts"]
    assert later.settings == {"raw": "a plain directory", "hearthfs": "default settings"}


@pytest.mark.parametrize("drawn", [True, False])
def test_files_are_written_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: bool) -> None:
    monkeypatch.setattr(charts, "draw", lambda rows, file: drawn)
    report().write(tmp_path / "build", "bench")
    assert json.loads((tmp_path / "build/bench.json").read_text())["rows"]
    page = (tmp_path / "build/bench.md").read_text()
    assert ("(bench.png)" in page) == drawn


def test_a_row_on_the_terminal() -> None:
    assert (
        line(ROWS[0]) == f"{names_of_rows.FIRST}, 8 MiB, 4 threads [GB/s]: raw 5.50  hearthfs 4.25  juicefs best 0.500"
    )
    assert line(make("s", "load", "GB/s", {}, note="skipped: no cgroup")).endswith("skipped: no cgroup")


def test_a_panel_for_each_row_that_has_figures() -> None:
    assert [[row.name for row in panel] for panel in charts.panels(ROWS)] == [[names_of_rows.FIRST]]
    assert charts.colour("juicefs")[0] == charts.colour("juicefs best")[0]
    assert charts.colour("juicefs") != charts.colour("juicefs best")
