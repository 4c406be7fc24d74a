import sys
from pathlib import Path

import pytest
from hearthfs.cli import background, mount_helper
from hearthfs.cli.mount_helper import parse
from hearthfs.common.errors import Unavailable


def test_options_of_several_o_are_one_list():
    call = parse(["m:7070", "/mnt", "-o", "rw,node_id=n1", "-o", "_netdev"])
    assert call.options == ["rw", "node_id=n1", "_netdev"]
    assert (call.master, call.mountpoint, call.fake) == ("m:7070", "/mnt", False)


@pytest.mark.parametrize("flags", [["-n"], ["-sv"], ["-t", "fuse.hearthfs"], ["-N", "/proc/1/ns/mnt"], ["-w"]])
def test_flags_of_mount_do_not_disturb(flags):
    assert parse([*flags, "m:7070", "/mnt"]).options == []


def test_r_is_read_only():
    assert parse(["m:7070", "/mnt", "-r"]).options == ["ro"]


@pytest.mark.parametrize(
    "arguments", [[], ["m:7070"], ["m", "/a", "/b"], ["m", "/a", "-o"], ["m", "/a", "-x"], ["m", "-"]]
)
def test_what_is_no_call_of_mount_is_wrong_usage(arguments, monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"need"):
        parse(arguments)
    monkeypatch.setattr(sys, "argv", ["mount.fuse.hearthfs", *arguments])
    with pytest.raises(SystemExit) as caught:
        mount_helper.main()
    assert caught.value.code == 1
    assert "usage: mount.fuse.hearthfs" in capsys.readouterr().err


@pytest.fixture
def mounted(monkeypatch):
    calls = []
    monkeypatch.setattr(background, "mount_in_background", lambda *arguments: calls.append(arguments) or "")
    return calls


def call_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mount.fuse.hearthfs", *arguments])
    mount_helper.main()


def test_it_mounts_with_the_options_as_settings(mounted, monkeypatch):
    options = "rw,_netdev,node-id=n1,ro,config=/etc/h.toml,log_file=/var/log/h.log"
    call_main(monkeypatch, "m:7070", "/mnt", "-o", options)
    flags = {"master": "m:7070", "mountpoint": "/mnt", "node_id": "n1", "read_only": True}
    assert mounted == [(flags, Path("/etc/h.toml"), Path("/var/log/h.log"))]


def test_fake_does_nothing(mounted, monkeypatch):
    call_main(monkeypatch, "m:7070", "/mnt", "-f")
    assert mounted == []


def test_an_unknown_option_fails_like_a_mount(mounted, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        call_main(monkeypatch, "m:7070", "/mnt", "-o", "nodeid=1")
    assert caught.value.code == 32
    assert "'nodeid=1' is unknown" in capsys.readouterr().err
    assert mounted == []


def test_a_daemon_that_does_not_start_is_exit_code_32(monkeypatch, capsys):
    def refuse(*_):
        raise Unavailable("mount: the master at m:7070 does not answer")

    monkeypatch.setattr(background, "mount_in_background", refuse)
    with pytest.raises(SystemExit) as caught:
        call_main(monkeypatch, "m:7070", "/mnt")
    assert caught.value.code == 32
    assert capsys.readouterr().err == "mount.fuse.hearthfs: mount: the master at m:7070 does not answer\n"
