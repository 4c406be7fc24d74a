from pathlib import Path

import pytest
from hearthfs.common.errors import InvalidArgument
from hearthfs.fuse_client import kernel_mount


def test_missing_mount_point(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="mkdir -p"):
        kernel_mount.check_mountpoint(str(tmp_path / "none"))


def test_mount_point_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(InvalidArgument, match="not a directory"):
        kernel_mount.check_mountpoint(str(tmp_path / "f"))


@pytest.mark.parametrize("kind", ["fuse.hearthfs"])
def test_mounted_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place = tmp_path / "mnt point"
    place.mkdir()
    table = tmp_path / "mountinfo"
    escaped = str(place).replace(" ", "\\040")
    table.write_text(f"36 35 0:48 / {escaped} rw,nosuid shared:1 - {kind} 127.0.0.1:7070 rw\n")
    monkeypatch.setattr(kernel_mount, "MOUNTINFO", table)
    with pytest.raises(InvalidArgument, match="hearth umount"):
        kernel_mount.check_mountpoint(str(place))


def test_fuse_conf() -> None:
    assert kernel_mount.allow_other_permitted("mount_max = 10\n  user_allow_other\n")
    assert not kernel_mount.allow_other_permitted("#user_allow_other\n")
    assert not kernel_mount.allow_other_permitted("")
