"""The facts of this machine can be gathered; what they are depends on it."""

import socket

import pytest
from hearthfs.cli import facts
from hearthfs.cli.diagnosis import check_clock, check_fuse


def test_a_directory_to_write_to(tmp_path):
    found = facts.disk(str(tmp_path))
    assert found.exists
    assert found.writable
    assert found.kind
    assert 0 < found.free_bytes <= found.total_bytes
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"


def test_a_directory_that_is_missing(tmp_path):
    assert facts.disk(str(tmp_path / "missing")).exists is False


def test_a_filesystem_that_is_read_only():
    assert facts.disk("/proc/self").writable is False


def test_fuse_and_clock_are_judged():
    assert check_fuse(facts.fuse())
    assert check_clock(facts.clock())


def test_a_port_that_nobody_has():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    found = facts.port("master", address)
    assert (found.local, found.listening, found.hearth) == (True, False, False)


def test_a_port_that_somebody_else_has(monkeypatch):
    monkeypatch.setattr(facts, "CONNECT_S", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        found = facts.port("worker", f"127.0.0.1:{other.getsockname()[1]}")
    assert (found.listening, found.hearth) == (True, False)


@pytest.mark.parametrize("package", facts.PACKAGES)
def test_installed_packages_have_versions(package):
    assert facts.versions("127.0.0.1:1").packages[package]
