import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from hearthfs.client.client import Client
from hearthfs.client.settings import ClientSettings
from hearthfs.common.errors import HearthError, NotFound, SettingsError, Unavailable
from hearthfs.tests.support.cluster import Cluster, free_port


def test_fds_and_threads_stay_flat(small_cluster: Cluster, client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"x" * 1000)

    def once(node: int) -> None:
        socket = str(small_cluster.socket(node)) if node == 1 else ""
        with Client(small_cluster.master_address, node_id=f"node{node}", worker_socket=socket) as each:
            assert each.get_many([f"{root}/f"], [bytearray(1000)]) == [None]
            with each.open(f"{root}/f", "rb") as file:
                file.read()

    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    for _ in range(3):
        once(1), once(9)
    before = count()
    for _ in range(50):
        once(1), once(9)
    deadline = time.monotonic() + 5
    while (now := count()) > before and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert now[0] <= before[0]
    assert now[1] <= before[1]


SCRIPT = """
import sys, threading
from hearthfs.client.client import Client
client = Client(sys.argv[1], node_id="node1", worker_socket=sys.argv[2])
client.put_many(["/exit/a", "/exit/b"], [b"x" * 3000000] * 2)
reader = client.open("/exit/a", "rb")
writer = client.open("/exit/c", "wb")
writer.write(b"never closed" * 100000)
remote = Client(sys.argv[1])
other = remote.open("/exit/b", "rb")
other.read(5)
if len(sys.argv) > 3:
    threading.Thread(target=lambda: remote.get_many(["/exit/a"] * 500, [bytearray(3000000)] * 500), daemon=True).start()
print("done", flush=True)
"""


@pytest.mark.parametrize("busy", [[], ["busy"]], ids=["idle", "while a thread reads"])
def test_a_process_that_forgets_to_close_ends_at_once(small_cluster: Cluster, busy: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, small_cluster.master_address, str(small_cluster.socket(1)), *busy]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        start = time.monotonic()
        assert process.wait(20) == 0, process.stderr
        assert time.monotonic() - start < 5
    finally:
        process.kill()
        process.communicate()


def test_nobody_there_costs_the_timeout_and_says_where() -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}", timeout_s=0.3) as client:
        start = time.monotonic()
        with pytest.raises(HearthError, match=f"127.0.0.1:{port}"):
            client.stat("/")
        assert time.monotonic() - start < 3


def test_a_dead_local_socket_is_no_obstacle(
    on: Callable[..., Client], client: Client, root: str, tmp_path: object
) -> None:
    lame = on(1, worker_socket=f"{tmp_path}/absent.sock")
    assert lame.put_many([f"{root}/f"], [b"x"]) == [None]
    assert lame.read_bytes(f"{root}/f") == client.read_bytes(f"{root}/f") == b"x"


def test_after_close_every_call_says_so(on: Callable[..., Client], root: str) -> None:
    client = on(1)
    client.write_bytes(f"{root}/f", b"x")
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.stat(root)


def test_a_session_that_was_ended_is_replaced(client: Client, root: str) -> None:
    session = client.core.session
    ticket = session.ticket()
    object.__setattr__(session, "_ticket", type(ticket)(ticket.generation, 0xDEAD, ticket.epoch))
    assert client.listdir(root) == []
    assert session.ticket().generation == ticket.generation + 1
    object.__setattr__(session, "_ticket", type(ticket)(ticket.generation, 0xDEAD, ticket.epoch))
    client.mkdir(f"{root}/d")
    assert client.listdir(root) == ["d"]


def test_many_threads_one_client(client: Client, root: str) -> None:
    problems: list[object] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                path = f"{root}/{number}-{step}"
                client.put_many([path], [path.encode() * 500])
                with client.open(path, "rb") as file:
                    assert file.read() == path.encode() * 500
                with pytest.raises(NotFound):
                    client.stat(path + "x")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(client.listdir(root)) == 40


def test_settings_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_CLIENT_MASTER", "there:1")
    monkeypatch.setenv("HEARTH_CLIENT_TIMEOUT_S", "7")
    with Client() as client:
        assert (client.core.metadata.master, client.core.settings.timeout_s) == ("there:1", 7.0)
    with Client("here:2", timeout_s=3) as client:
        assert (client.core.metadata.master, client.core.settings.timeout_s) == ("here:2", 3.0)
    with Client(settings=ClientSettings(master="x:3", node_id="n"), node_id="m") as client:
        assert (client.core.settings.master, client.core.settings.node_id) == ("x:3", "m")
    monkeypatch.setenv("HEARTH_CLIENT_TIMEOUT", "7")
    with pytest.raises(SettingsError, match="timeout_s"):
        Client()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_and_the_parent_goes_on(small_cluster: Cluster) -> None:
    script = """
import os, sys
from hearthfs.client.client import Client
from hearthfs.common.errors import NotSupported
client = Client(sys.argv[1], node_id="node1", worker_socket=sys.argv[2])
client.write_bytes("/forked", b"x")
file = client.open("/forked", "rb")
child = os.fork()
if child == 0:
    try:
        client.stat("/")
    except NotSupported as error:
        pass
    else:
        os._exit(8)
    with Client(sys.argv[1]) as fresh:
        assert fresh.read_bytes("/forked") == b"x"
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert file.read() == b"x"
assert client.read_bytes("/forked") == b"x"
"""
    command = [sys.executable, "-c", script, small_cluster.master_address, str(small_cluster.socket(1))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
