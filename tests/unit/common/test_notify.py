import socket

import pytest
from hearthfs.common.notify import notify


@pytest.fixture(params=["path", "abstract"])
def listener(request, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.settimeout(5)
        if request.param == "path":
            address = str(tmp_path / "notify")
            made.bind(address)
        else:
            address = f"@hearth-test-{id(made)}"
            made.bind("\0" + address[1:])
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield made


def test_the_state_is_one_datagram(listener):
    notify("READY=1")
    notify("STOPPING=1")
    assert [listener.recv(100), listener.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_nobody_asked(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")


def test_whoever_asked_is_gone(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
