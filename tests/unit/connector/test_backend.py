from pathlib import Path

import pytest
from hearthfs.common.errors import Unavailable
from hearthfs.connector.backend import open_store
from hearthfs.connector.plain import PlainStore
from hearthfs.connector.settings import ConnectorSettings


def test_a_root_without_mount_is_unreachable_and_stays_untouched(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    with pytest.raises(Unavailable, match="not below a HearthFS mount"):
        open_store(ConnectorSettings(root=str(root)))
    assert list(tmp_path.iterdir()) == []


def test_plain_is_opened_by_its_name(tmp_path: Path) -> None:
    assert isinstance(open_store(ConnectorSettings(root=str(tmp_path), backend="plain")), PlainStore)
