import os
from pathlib import Path

import pytest
from hearthfs.cli import up
from hearthfs.cli.supervisor import Daemon


@pytest.fixture
def plan(tmp_path):
    return up.Plan(tmp_path / "data", None, "127.0.0.1:7070", "127.0.0.1:7071")


def arguments(daemon: Daemon) -> list[str]:
    return daemon.command[daemon.command.index("hearthfs.cli.main") + 1 :]


def test_master_worker_and_mount_find_each_other(plan):
    plan = plan._replace(mountpoint=plan.data / "mnt", capacity="1GiB", config=Path("/etc/h.toml"))
    master, worker, mount = up.daemons(plan)
    assert arguments(master)[:3] == ["master", "--data", str(plan.data / "master")]
    assert arguments(worker)[:3] == ["worker", "--disk", f"{plan.data}/disk:1GiB"]
    assert arguments(mount)[:3] == ["mount", f"{plan.data}/mnt", "--foreground"]
    for daemon in (worker, mount):
        assert arguments(daemon)[arguments(daemon).index("--master") + 1] == "127.0.0.1:7070"
        assert str(plan.socket) in arguments(daemon)
    assert all(arguments(daemon)[-2:] == ["--config", "/etc/h.toml"] for daemon in (master, worker, mount))


def test_everything_is_below_one_directory(plan):
    plan = plan._replace(mountpoint=plan.data / "mnt")
    for daemon in up.daemons(plan):
        assert daemon.log.is_relative_to(plan.data)


def test_without_a_mount_there_are_two_daemons(plan):
    assert [daemon.name for daemon in up.daemons(plan)] == ["master", "worker"]


def test_root_has_var_lib_and_users_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert up.default_data() == Path("/var/lib/hearthfs")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert up.default_data() == tmp_path / "hearthfs"
