import os
from pathlib import Path

import pytest
from hearthfs.bench import directories, kv_files
from hearthfs.bench.kv_files import WrongBytesError
from hearthfs.bench.report import Report
from hearthfs.bench.run import SECTIONS, Options, run
from hearthfs.common.errors import InvalidArgument


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_files, "sizes", lambda quick: [(1 / 64, 3)])
    monkeypatch.setattr(kv_files, "thread_counts", lambda quick: (1,))
    monkeypatch.setattr(os, "sync", lambda: None)


def test_directories_are_measured_side_by_side_and_left_as_they_were(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        (place / "mine").write_text("kept")
    said: list[str] = []
    run(Options(places, rounds=2, output=tmp_path / "out", say=said.append))
    report = Report.read((tmp_path / "out/directories.json").read_text())
    assert [row.name for row in report.rows] == [
        "store",
        "first load",
        "second load",
        "lookup, there",
        "lookup, not there",
    ]
    for row in report.rows:
        assert list(row.figures) == [str(place) for place in places]
        assert {figure.rounds for figure in row.figures.values()} == {2}
    assert len(said) == 5
    assert [os.listdir(place) for place in places] == [["mine"], ["mine"]]


def test_nothing_is_left_behind_when_bytes_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(files: kv_files.KvFiles, *, directory: str | None = None) -> None:
        raise WrongBytesError("file 0 has other bytes")

    monkeypatch.setattr(kv_files.KvFiles, "verify", lie)
    with pytest.raises(WrongBytesError):
        list(directories.rows([tmp_path], 1, quick=True))
    assert os.listdir(tmp_path) == []


def test_a_wrong_section_names_the_right_ones() -> None:
    with pytest.raises(InvalidArgument, match="mounts, disk"):
        Options(sections=["mount"]).chosen()
    assert Options().chosen() == list(SECTIONS)
