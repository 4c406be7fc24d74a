import pytest
from hearthfs.common.errors import SettingsError
from hearthfs.fuse_client.settings import MountSettings, parse_fstab_options


def test_options_of_fstab() -> None:
    flags = parse_fstab_options(
        "h:7070", "/mnt/kv", "rw,_netdev,x-systemd.automount,worker-socket=/run/w.sock,timeout_s=3"
    )
    settings = MountSettings.load(flags, {}, None)
    assert settings.master == "h:7070"
    assert str(settings.mountpoint) == "/mnt/kv"
    assert settings.worker_socket == "/run/w.sock"
    assert settings.timeout_s == 3


def test_read_only_and_allow_other() -> None:
    flags = parse_fstab_options("h:1", "/m", "ro,allow_other,noauto")
    assert flags == {"master": "h:1", "mountpoint": "/m", "read_only": True, "allow_other": True}


def test_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="worker_socket"):
        parse_fstab_options("h:1", "/m", "rw,wroker_socket=/x")
