import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hearthfs.cli.supervisor import Daemon, Supervisor, stop_with_parent
from hearthfs.common.errors import DeadlineExceeded, Unavailable

PROGRAM = """
import os, signal, socket, sys
def ready():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.sendto(b"READY=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
    s.close()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[object]:
    with contextlib.ExitStack() as stack:

        def make(body: str, name: str = "worker1", **options: object) -> Daemon:
            made = Daemon(
                name,
                [sys.executable, "-S", "-c", PROGRAM + body],
                log=tmp_path / f"{name}.log",
                **options,  # type: ignore[arg-type]
            )
            stack.callback(made.close, 1.0)
            return made

        yield make


def test_it_is_started_when_it_says_that_it_is_ready(daemon):
    it = daemon("print('hello', flush=True); ready(); signal.pause()")
    it.start()
    assert it.running
    assert it.exit_status is None
    assert it.log.read_text() == "hello\n"


def test_its_last_word_is_the_error_when_it_ends_before(daemon):
    it = daemon("print('hearth: 127.0.0.1:1 is in use', 'Traceback', sep='\\n'); sys.exit(1)")
    with pytest.raises(Unavailable, match=r"^worker1: 127\.0\.0\.1:1 is in use$"):
        it.start()
    assert not it.running


def test_without_a_last_word_the_error_names_exit_status_and_log(daemon):
    it = daemon("sys.exit(7)")
    with pytest.raises(Unavailable, match=r"exit status 7\): no output; its log is .*worker1\.log"):
        it.start()


def test_the_last_word_of_an_earlier_start_is_not_repeated(daemon, tmp_path):
    it = daemon(f"""
try: os.mkdir({str(tmp_path / "flag")!r})
except FileExistsError: sys.exit(3)
sys.exit("hearth: first")
""")
    with pytest.raises(Unavailable, match="first"):
        it.start()
    with pytest.raises(Unavailable, match="no output"):
        it.start()


def test_one_that_is_never_ready_is_killed(daemon):
    it = daemon("signal.pause()")
    with pytest.raises(DeadlineExceeded, match=r"not ready after 0\.2 s"):
        it.start(ready_s=0.2)
    assert not it.running


def test_stop_is_graceful_and_tells_when_it_was_not(daemon):
    polite = daemon("ready(); signal.pause()", "polite")
    polite.start()
    assert polite.stop(5.0)
    assert polite.exit_status == -signal.SIGTERM
    stubborn = daemon("signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()", "stubborn")
    stubborn.start()
    assert not stubborn.stop(0.1)
    assert stubborn.exit_status == -signal.SIGKILL


def test_a_stopped_process_is_stopped_gracefully_too(daemon):
    it = daemon("ready(); signal.pause()")
    it.start()
    it.signal(signal.SIGSTOP)
    assert it.stop(5.0)


def test_close_ends_the_children_too_and_a_second_close_does_nothing(daemon, tmp_path):
    it = daemon(f"""
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: signal.pause()
open({str(tmp_path / "child")!r}, "w").write(str(pid))
ready(); signal.pause()
""")
    it.start()
    child = os.pidfd_open(int((tmp_path / "child").read_text()))
    it.close()
    assert select.select([child], [], [], 5)[0], "the child outlived its daemon"
    os.close(child)
    it.close()


def test_it_can_start_again_after_its_end(daemon):
    it = daemon("ready(); signal.pause()")
    it.start()
    first = it.pid
    with pytest.raises(Unavailable, match="runs already"):
        it.start()
    it.kill()
    it.start()
    assert it.running
    assert it.pid != first


def test_a_tied_daemon_ends_when_its_parent_was_killed(tmp_path):
    parent_program = f"""
import sys, time
from pathlib import Path
from hearthfs.cli.supervisor import Daemon
child = '''
import sys, signal
from hearthfs.cli.supervisor import stop_with_parent
from hearthfs.common.notify import notify
stop_with_parent()
notify("READY=1")
while True: signal.pause()
'''
daemon = Daemon("child", [sys.executable, "-P", "-c", child], log=Path({str(tmp_path / "log")!r}))
daemon.start()
print(daemon.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-P", "-c", parent_program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert select.select([child], [], [], 10)[0], "the daemon outlived its parent"
    os.close(child)
    parent.stdout.close()


def test_a_process_that_nobody_tied_keeps_its_standard_input():
    assert "HEARTH_STOP_WITH_PARENT" not in os.environ
    stop_with_parent()


def test_a_supervisor_stops_all_in_reverse_when_one_cannot_start(daemon, tmp_path):
    trail = tmp_path / "trail"

    def body(name: str) -> str:
        return f"""
def bye(*_):
    with open({str(trail)!r}, "a") as file: file.write("{name} ")
    os._exit(0)
signal.signal(signal.SIGTERM, bye); ready()
while True: signal.pause()
"""

    bad = daemon("sys.exit('hearth: no')", "bad")
    with pytest.raises(Unavailable, match=r"^bad: no$"):
        with Supervisor([daemon(body("one"), "one"), daemon(body("two"), "two"), bad]) as supervisor:
            list(supervisor.start())
    assert trail.read_text() == "two one "


def test_a_supervisor_notices_which_daemon_ended(daemon):
    one, two = daemon("ready(); signal.pause()", "one"), daemon("ready(); signal.pause()", "two")
    with Supervisor([one, two]) as supervisor:
        assert [each.name for each in supervisor.start()] == ["one", "two"]
        two.kill()
        assert supervisor.wait_any() is two
    assert not one.running


def test_a_supervisor_says_what_it_is_about_to_start(daemon):
    trail = []
    with Supervisor([daemon("ready(); signal.pause()", "one")]) as supervisor:
        started = supervisor.start(before=lambda name: trail.append(f"before {name}"))
        trail.extend(f"ready {each.name}" for each in started)
    assert trail == ["before one", "ready one"]
