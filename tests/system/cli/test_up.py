"""``hearth up`` with stand-ins for the daemons: how it ends, and that nobody outlives it."""

import os
import signal
import sys
import threading

import pytest
from hearthfs.cli import up
from hearthfs.cli.supervisor import Daemon
from hearthfs.common.errors import Unavailable

READY = """
import os, signal, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(b"READY=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
"""


@pytest.fixture
def plan(tmp_path):
    return up.Plan(tmp_path / "data", None, "127.0.0.1:7070", "127.0.0.1:7071")


@pytest.fixture(autouse=True)
def signals():
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def stand_ins(monkeypatch, plan, **bodies):
    made = [
        Daemon(name, [sys.executable, "-S", "-c", READY + body], log=plan.log(name)) for name, body in bodies.items()
    ]
    monkeypatch.setattr(up, "daemons", lambda _: made)
    return made


def test_ctrl_c_stops_all(monkeypatch, plan):
    made = stand_ins(monkeypatch, plan, master="signal.pause()", worker="signal.pause()")
    said = []

    def say(line):
        said.append(line)
        if "is up" in line:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()

    up.run(plan, say)
    assert [line.split()[0] for line in said] == ["master", "worker", "HearthFS", "stopped"]
    assert not any(daemon.running for daemon in made)


def test_a_daemon_that_ends_takes_the_others_with_it(monkeypatch, plan):
    made = stand_ins(monkeypatch, plan, master="signal.pause()", worker="sys.exit(5)")
    with pytest.raises(Unavailable, match=r"worker ended, exit status 5; its log is .*worker\.log"):
        up.run(plan, lambda _: None)
    assert not any(daemon.running for daemon in made)


def test_a_daemon_that_does_not_start_is_the_error(monkeypatch, plan):
    (good,) = stand_ins(monkeypatch, plan, master="signal.pause()")
    bad = Daemon("worker", [sys.executable, "-S", "-c", "import sys; sys.exit('hearth: no')"], log=plan.log("worker"))
    monkeypatch.setattr(up, "daemons", lambda _: [good, bad])
    with pytest.raises(Unavailable, match=r"^worker: no$"):
        up.run(plan, lambda _: None)
    assert not good.running
