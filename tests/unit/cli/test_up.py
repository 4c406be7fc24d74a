import os
import signal
import sys
import threading
from pathlib import Path

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
