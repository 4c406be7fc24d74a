from pathlib import Path

from hearthfs.bench.memory_limit import Hierarchy, find

V1 = "36 35 0:30 / {place} rw,relatime - cgroup cgroup rw,memory"
V2 = "37 35 0:31 / {place} rw,relatime - cgroup2 cgroup2 rw"


def test_version_2_is_taken_where_it_has_the_memory_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    assert find(V2.format(place=tmp_path)) == Hierarchy(tmp_path, "memory.max")


def test_version_1_is_taken_where_version_2_is_mounted_without_it(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("")
    text = "\n".join([V2.format(place=tmp_path), V1.format(place="/sys/fs/cgroup/memory")])
    assert find(text) == Hierarchy(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")


def test_none_without_a_memory_controller() -> None:
    assert find("30 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu") is None
