import os
from pathlib import Path

import pytest
from hearthfs.cli import background
from hearthfs.fuse_client.settings import MountSettings


def test_the_log_has_the_mount_points_name(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert background.default_log(Path("/mnt/kv")) == Path("/var/log/hearthfs/mount-mnt-kv.log")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert background.default_log(Path("/")) == tmp_path / "hearthfs/mount-root.log"


@pytest.mark.parametrize("allow_other", [True, False])
def test_flags_reach_the_daemon_as_they_were(allow_other):
    flags = {"mountpoint": "/mnt", "master": "m:1", "node_id": "n1", "allow_other": allow_other, "timeout_s": 3.5}
    variables = background.as_variables(flags)
    got = MountSettings.load({"mountpoint": "/mnt"}, variables | {"HEARTH_CONFIG": os.devnull})
    assert got == MountSettings.load(flags, {"HEARTH_CONFIG": os.devnull})
