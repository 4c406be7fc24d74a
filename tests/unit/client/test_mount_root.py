import json
from pathlib import Path

import pytest
from hearthfs.client import mount_root
from hearthfs.client.mount_root import MountPoint, mount_of
from hearthfs.common.errors import Unavailable

TABLE = b"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:40 / /mnt/kvcache rw,nosuid shared:9 - fuse.hearthfs hearth rw
41 40 0:41 / /mnt/kvcache/inner rw - tmpfs tmpfs rw
42 22 0:40 /models /data/with\\040space rw - fuse.hearthfs hearth rw
43 22 0:43 / /mnt/other rw - fuse.sshfs x rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/mnt/kvcache", MountPoint(b"/mnt/kvcache", b"/")),
        (b"/mnt/kvcache/a/b", MountPoint(b"/mnt/kvcache", b"/")),
        (b"/mnt/kvcache2/a", None),
        (b"/mnt/kvcache/inner/a", None),
        (b"/data/with space/x", MountPoint(b"/data/with space", b"/models")),
        (b"/mnt/other/a", None),
        (b"/home", None),
    ],
)
def test_the_innermost_mount_decides(path: bytes, expected: MountPoint | None) -> None:
    assert mount_of(path, TABLE) == expected


def test_what_is_mounted_on_top_covers() -> None:
    covered = TABLE + b"50 40 0:50 / /mnt/kvcache rw - tmpfs tmpfs rw\n"
    assert mount_of(b"/mnt/kvcache/a", covered) is None


def table_for(directory: Path) -> Path:
    table = directory / "mountinfo"
    table.write_text(f"40 22 0:40 / {directory}/mnt rw - fuse.hearthfs hearth rw\n")
    return table


def test_found_upwards(tmp_path: Path) -> None:
    deep = tmp_path / "mnt" / "a" / "b"
    deep.mkdir(parents=True)
    about = {"cluster_id": "c", "master": "h:1", "node_id": "n", "worker_sockets": ["/absent", str(tmp_path)]}
    (tmp_path / "mnt" / ".hearth").mkdir()
    (tmp_path / "mnt" / ".hearth" / "cluster.json").write_text(json.dumps(about))
    found = mount_root.find(deep, str(table_for(tmp_path)))
    assert found == mount_root.MountRoot("c", "h:1", "n", str(tmp_path), "/a/b")


def test_a_plain_directory_is_refused_though_it_looks_right(tmp_path: Path) -> None:
    (tmp_path / ".hearth").mkdir()
    (tmp_path / ".hearth" / "cluster.json").write_text("{}")
    with pytest.raises(Unavailable, match="not below a HearthFS mount"):
        mount_root.find(tmp_path)


def test_a_mount_that_says_nothing_of_use(tmp_path: Path) -> None:
    (tmp_path / "mnt" / ".hearth").mkdir(parents=True)
    table = str(table_for(tmp_path))
    for content in ("{}", "[]", '{"cluster_id": "c", "master": "m", "node_id": "n", "worker_sockets": 3}', "{"):
        (tmp_path / "mnt" / ".hearth" / "cluster.json").write_text(content)
        with pytest.raises(Unavailable):
            mount_root.find(tmp_path / "mnt", table)


def test_a_mount_without_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    with pytest.raises(Unavailable, match="only a part"):
        mount_root.find(tmp_path / "mnt", str(table_for(tmp_path)))


def test_a_mount_that_hangs_costs_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    (tmp_path / "mnt" / ".hearth").mkdir(parents=True)
    fifo = tmp_path / "mnt" / ".hearth" / "cluster.json"
    os.mkfifo(fifo)
    monkeypatch.setattr(mount_root, "ANSWER_S", 0.05)
    with pytest.raises(Unavailable, match="no answer"):
        mount_root.find(tmp_path / "mnt", str(table_for(tmp_path)))
    os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))  # lets the reader go
