from pathlib import Path

import pytest
from hearthfs.common.errors import Unavailable
from hearthfs.connector.backend import hearth_mount_of, open_store
from hearthfs.connector.plain import PlainStore
from hearthfs.connector.settings import ConnectorSettings

TABLE = """\
20 1 8:1 / / rw,relatime - ext4 /dev/vda rw
31 20 0:50 / /mnt/kvcache rw,nosuid shared:5 - fuse.hearthfs hearthfs rw,user_id=0
32 20 0:51 / /mnt/other rw - fuse.sshfs host: rw
33 31 0:52 / /mnt/kvcache/scratch rw - tmpfs tmpfs rw
34 20 0:53 / /mnt/with\\040space rw - fuse.hearthfs hearthfs rw
"""


@pytest.mark.parametrize(
    ("path", "mountpoint"),
    [
        ("/mnt/kvcache", "/mnt/kvcache"),
        ("/mnt/kvcache/kv/", "/mnt/kvcache"),
        ("/mnt/kvcache2/kv", None),
        ("/mnt/kvcache/scratch/kv", None),
        ("/mnt/kvcache/../other/kv", None),
        ("/mnt/other/kv", None),
        ("/home", None),
        ("/mnt/with space/kv", "/mnt/with space"),
    ],
)
def test_nearest_mount_decides(path: str, mountpoint: str | None) -> None:
    assert hearth_mount_of(path, TABLE) == mountpoint


def test_something_mounted_over_it_hides_it() -> None:
    table = TABLE + "40 20 0:60 / /mnt/kvcache rw - tmpfs tmpfs rw\n"
    assert hearth_mount_of("/mnt/kvcache/kv", table) is None


def test_a_root_without_mount_is_unreachable_and_stays_untouched(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    with pytest.raises(Unavailable, match="not below a HearthFS mount"):
        open_store(ConnectorSettings(root=str(root)))
    assert list(tmp_path.iterdir()) == []


def test_plain_is_opened_by_its_name(tmp_path: Path) -> None:
    assert isinstance(open_store(ConnectorSettings(root=str(tmp_path), backend="plain")), PlainStore)
