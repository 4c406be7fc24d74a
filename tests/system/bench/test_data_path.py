from pathlib import Path

from hearthfs.bench import data_path

KEYS = {
    "name", "mib", "threads", "unit", "hearthfs", "raw", "juicefs", "seaweedfs", "mooncake", "vllm_fs", "min", "max",
}  # fmt: skip


def test_a_small_run_measures_every_row_and_leaves_nothing(tmp_path: Path) -> None:
    rows = data_path.rows(tmp_path / "work", rounds=2, files=4, mib=1, threads=2)
    assert len({row["name"] for row in rows}) == len(rows) == 5
    for row in rows:
        assert set(row) == KEYS
        assert row["min"] <= row["hearthfs"] <= row["max"]
        assert row["raw"] > 0
    assert not (tmp_path / "work").exists()
