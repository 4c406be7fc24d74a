import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hearthfs.common.block_tokens import DENIED, Secret, sign
from hearthfs.common.clock import SystemClock
from hearthfs.common.credentials import Caller
from hearthfs.common.errors import Conflict, SettingsError
from hearthfs.common.types import BlockKey
from hearthfs.proto import worker_pb2
from hearthfs.tests.unit.worker.parts import SocketClient, block_path, key_message, pattern, sums
from hearthfs.worker.access import Access
from hearthfs.worker.control import Control
from hearthfs.worker.fetch import Fetcher
from hearthfs.worker.leases import Leases
from hearthfs.worker.local_socket import MAX_REQUEST_BYTES, LocalSocket, caller_of, may_connect
from hearthfs.worker.metrics import Metrics

KEYS = [BlockKey(block, 1) for block in range(1, 65)]
DATA = pattern(10_000)


@pytest.fixture
def control(store):
    clock = SystemClock()
    leases = Leases(10, 10, lambda: 1)
    yield Control(store, leases, Fetcher(store, clock, 5), clock, Metrics(), "w1", "c1", lambda: None)
    leases.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def server(path, control):
    made = LocalSocket(path, max_connections=3)
    made.start(control)
    yield made
    made.stop()


@pytest.fixture
def client(server):
    made = SocketClient(server.path)
    yield made
    made.close()


def create(client, keys):
    reply, fds = client.call(create=worker_pb2.CreateBlocks(blocks=map(key_message, keys)))
    assert not any(reply.errnos), reply.message
    return fds


def commit(client, key, data, packed=None, sync=False):
    item = worker_pb2.CommitItem(
        key=key_message(key), length_bytes=len(data), checksums=sums(data) if packed is None else packed
    )
    return client.call(commit=worker_pb2.CommitBlocks(items=[item], sync=sync))[0]


def put(client, key, data):
    (fd,) = create(client, [key])
    os.pwrite(fd, data, 0)
    os.close(fd)
    reply = commit(client, key, data)
    assert list(reply.errnos) == [0], reply.message


def open_blocks(client, keys):
    return client.call(open=worker_pb2.OpenBlocks(blocks=map(key_message, keys)))


def test_hello_names_worker_and_cluster(client):
    reply, _ = client.call(hello=worker_pb2.Hello())
    assert (reply.request_id, reply.worker_id, reply.cluster_id) == (7, "w1", "c1")


def test_descriptors_arrive_in_order_for_the_most_blocks_of_one_request(client):
    fds = create(client, KEYS)
    assert len(fds) == 64
    for key, fd in zip(KEYS, fds, strict=True):
        os.pwrite(fd, pattern(100, key.block), 0)
        os.close(fd)
        commit(client, key, pattern(100, key.block))
    reply, fds = open_blocks(client, KEYS)
    assert list(reply.fd_indexes) == list(range(1, 65))
    for key, fd in zip(KEYS, fds, strict=True):
        assert os.pread(fd, 200, 0) == pattern(100, key.block)
        os.close(fd)


def test_a_reader_gets_read_only_descriptors_and_all_it_needs_to_verify(client):
    put(client, KEYS[0], DATA)
    reply, (fd,) = open_blocks(client, KEYS[:1])
    with pytest.raises(OSError):
        os.pwrite(fd, b"x", 0)
    os.close(fd)
    assert reply.blocks[0].length_bytes == len(DATA)
    assert reply.blocks[0].checksums == sums(DATA)


def test_a_passed_descriptor_outlives_the_block(client, store):
    put(client, KEYS[0], DATA)
    _, (fd,) = open_blocks(client, KEYS[:1])
    store.delete(KEYS[0])
    assert os.pread(fd, len(DATA), 0) == DATA
    os.close(fd)
    reply, fds = open_blocks(client, KEYS[:1])
    assert (list(reply.errnos), fds) == ([errno.ENOENT], [])


def test_errors_are_per_block_and_the_good_ones_go_on(client, store):
    put(client, KEYS[0], DATA)
    put(client, KEYS[2], DATA)
    block_path(store, KEYS[2]).unlink()
    reply, (fd,) = open_blocks(client, [KEYS[1], KEYS[0], KEYS[2]])
    os.close(fd)
    assert list(reply.errnos) == [errno.ENOENT, 0, errno.EIO]
    assert list(reply.fd_indexes) == [0, 1, 0]
    assert "not on this worker" in reply.message


def test_a_commit_without_checksums_or_with_sync_is_answered_too(client):
    for key, packed, sync in ((KEYS[0], b"", False), (KEYS[1], None, True)):
        (fd,) = create(client, [key])
        os.pwrite(fd, DATA, 0)
        os.close(fd)
        reply = commit(client, key, DATA, packed, sync)
        assert list(reply.errnos) == [0]
        assert reply.blocks[0].checksums == sums(DATA)


def test_a_copy_is_filled(client):
    put(client, KEYS[0], DATA)
    reply, (fd,) = client.call(
        create=worker_pb2.CreateBlocks(blocks=[key_message(KEYS[1])], copy_from=key_message(KEYS[0]), copy_bytes=100)
    )
    assert reply.blocks[0].length_bytes == 100
    assert os.pread(fd, 200, 0) == DATA[:100]
    os.close(fd)


def test_discard_is_answered(client):
    os.close(create(client, KEYS[:1])[0])
    reply, _ = client.call(discard=worker_pb2.DiscardBlocks(blocks=[key_message(key) for key in KEYS[:2]]))
    assert list(reply.errnos) == [0, 0]


@pytest.mark.parametrize(
    ("op", "number"),
    [
        ({"open": worker_pb2.OpenBlocks(blocks=[key_message(BlockKey(1, 1))] * 65)}, errno.E2BIG),
        ({"create": worker_pb2.CreateBlocks(blocks=[key_message(BlockKey(1, 1))] * 65)}, errno.E2BIG),
        ({"commit": worker_pb2.CommitBlocks(items=[worker_pb2.CommitItem()] * 65)}, errno.E2BIG),
        (
            {
                "create": worker_pb2.CreateBlocks(
                    blocks=[key_message(key) for key in KEYS[:2]], copy_from=key_message(KEYS[3])
                )
            },
            errno.EINVAL,
        ),
        ({"fetch": worker_pb2.FetchBlock(key=key_message(KEYS[0]), length_bytes=1)}, errno.EINVAL),
        (
            {"fetch": worker_pb2.FetchBlock(key=key_message(KEYS[0]), length_bytes=1 << 63, sources=["x:1"])},
            errno.EINVAL,
        ),
        ({"renew": worker_pb2.Renew(lease_id=5)}, errno.ENOENT),
        ({}, errno.EINVAL),
    ],
)
def test_a_request_that_makes_no_sense_gets_an_error_and_the_next_one_an_answer(client, op, number):
    reply, fds = client.call(**op)
    assert (reply.request_id, list(reply.errnos), fds) == (7, [number], [])
    assert reply.message
    assert client.call(hello=worker_pb2.Hello())[0].worker_id == "w1"


@pytest.mark.parametrize("garbage", [b"\xff" * 50, os.urandom(1000), b"\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_is_answered_with_an_error(client, garbage):
    client.socket.send(garbage)
    reply, _ = client.receive()
    assert reply.errnos
    assert client.call(hello=worker_pb2.Hello())[0].worker_id == "w1"


def test_a_message_that_is_too_big_is_refused(client):
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    try:
        client.socket.send(bytes(MAX_REQUEST_BYTES + 1))
        refused = client.receive()[0].errnos[0]
    except OSError as error:
        refused = errno.E2BIG if error.errno == errno.EMSGSIZE else 0
    assert refused == errno.E2BIG
    assert client.call(hello=worker_pb2.Hello())[0].worker_id == "w1"


def test_descriptors_sent_to_us_are_not_kept(client):
    client.call(hello=worker_pb2.Hello())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        request = worker_pb2.ControlRequest(hello=worker_pb2.Hello()).SerializeToString()
        socket.send_fds(client.socket, [request], [0, 1, 2])
        client.receive()
    assert len(os.listdir("/proc/self/fd")) == before


def test_our_own_descriptors_are_closed_after_sending(client):
    put(client, KEYS[0], DATA)
    client.call(hello=worker_pb2.Hello())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        os.close(open_blocks(client, KEYS[:1])[1][0])
    client.call(hello=worker_pb2.Hello())  # by now the worker is done with the request before
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_slow_request_does_not_hold_up_a_quick_one(client, store, monkeypatch):
    entered, go_on = threading.Event(), threading.Event()
    real = store.commit

    def slow(*arguments, **more):
        entered.set()
        assert go_on.wait(20)
        return real(*arguments, **more)

    monkeypatch.setattr(store, "commit", slow)
    (fd,) = create(client, KEYS[:1])
    os.pwrite(fd, DATA, 0)
    os.close(fd)
    item = worker_pb2.CommitItem(key=key_message(KEYS[0]), length_bytes=len(DATA))
    request = worker_pb2.ControlRequest(request_id=99, commit=worker_pb2.CommitBlocks(items=[item], sync=True))
    client.socket.send(request.SerializeToString())
    assert entered.wait(20)
    assert client.call(hello=worker_pb2.Hello())[0].request_id == 7
    go_on.set()
    assert client.receive()[0].request_id == 99


def test_a_bug_is_answered_and_the_connection_lives(client, store, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(store, "open_read", broken)
    reply, _ = open_blocks(client, KEYS[:1])
    assert list(reply.errnos) == [errno.EIO]
    assert "ZeroDivisionError" in reply.message
    assert client.call(hello=worker_pb2.Hello())[0].worker_id == "w1"


def is_turned_away(client):
    try:
        client.socket.send(b"x")
        return client.socket.recv(100) == b""
    except (BrokenPipeError, ConnectionResetError):
        return True


def test_connections_are_bounded_and_come_free(server):
    clients = [SocketClient(server.path) for _ in range(3)]
    for made in clients:
        made.call(hello=worker_pb2.Hello())
    refused = SocketClient(server.path)
    assert is_turned_away(refused)
    refused.close()
    clients.pop().close()
    for _ in range(1000):
        if len(server._connections) < 3:
            break
        threading.Event().wait(0.005)
    clients.append(SocketClient(server.path))
    assert clients[-1].call(hello=worker_pb2.Hello())[0].worker_id == "w1"
    for made in clients:
        made.close()


@pytest.mark.parametrize(
    ("uid", "groups", "expected"),
    [(0, set(), True), (1000, set(), True), (1001, {5}, False), (1001, {5, 50}, True)],
)
def test_who_may_connect(uid, groups, expected):
    assert may_connect(uid, groups, 1000, 50) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_stranger_is_turned_away(server):
    server.path.chmod(0o666)
    for parent in server.path.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    script = (
        "import socket, sys\n"
        "peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "peer.connect(sys.argv[1])\n"
        "try:\n"
        "    peer.send(b'x')\n"
        "    sys.exit(len(peer.recv(100)))\n"
        "except (BrokenPipeError, ConnectionResetError):\n"
        "    pass\n"
    )
    command = [shutil.which("python3", path="/usr/bin:/bin") or sys.executable, "-I", "-c", script, str(server.path)]
    ended = subprocess.run(
        command, user=12345, group=12345, extra_groups=[], timeout=20, capture_output=True, cwd="/", check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_socket_file_is_for_owner_and_group_and_goes_with_the_worker(path, control):
    server = LocalSocket(path)
    server.start(control)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    server.stop()
    assert not path.exists()


def test_the_file_of_a_dead_worker_is_replaced(path, control):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    server = LocalSocket(path)
    server.start(control)
    client = SocketClient(path)
    client.call(hello=worker_pb2.Hello())
    client.close()
    server.stop()


def test_a_live_worker_keeps_its_socket(server):
    with pytest.raises(Conflict, match="alive"):
        LocalSocket(server.path)
    client = SocketClient(server.path)
    assert client.call(hello=worker_pb2.Hello())[0].worker_id == "w1"
    client.close()


def test_places_that_are_not_safe_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="107 bytes"):
        LocalSocket(tmp_path / ("x" * 120))
    with pytest.raises(SettingsError, match="make its directory"):
        LocalSocket(tmp_path / "none" / "s")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SettingsError, match="something else"):
        LocalSocket(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(SettingsError, match="something else"):
        LocalSocket(tmp_path / "link")
    assert (tmp_path / "file").read_text() == "precious"
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SettingsError, match="everybody"):
        LocalSocket(tmp_path / "open" / "s")


def test_stopping_lets_a_request_in_work_finish(path, control, store, monkeypatch):
    server = LocalSocket(path)
    server.start(control)
    client = SocketClient(path)
    entered, go_on = threading.Event(), threading.Event()
    real = store.commit

    def slow(*arguments, **more):
        entered.set()
        assert go_on.wait(20)
        return real(*arguments, **more)

    monkeypatch.setattr(store, "commit", slow)
    os.close(create(client, KEYS[:1])[0])
    item = worker_pb2.CommitItem(key=key_message(KEYS[0]), length_bytes=0)
    client.socket.send(
        worker_pb2.ControlRequest(commit=worker_pb2.CommitBlocks(items=[item], sync=True)).SerializeToString()
    )
    assert entered.wait(20)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    go_on.set()
    assert list(client.receive()[0].errnos) == [0]
    stopping.join(20)
    assert not stopping.is_alive()
    client.close()


def test_members_of_the_group_need_tokens(path, control, store):
    """Root and the worker's user do not: they could open the files themselves."""
    assert caller_of(0, 0, 500).trusted
    assert caller_of(500, 1, 500).trusted
    assert caller_of(1000, 100, 500) == Caller("user", "user 1000 100", 1000, 100)
    clock, secret = SystemClock(), Secret(1, b"s" * 32)
    access = Access(lambda: {1: secret}, Leases(10, 10, lambda: 1), clock)
    server = LocalSocket(path)
    server.start(control, access)
    client = SocketClient(path)
    (fd,) = create(client, [KEYS[0]])
    os.close(fd)
    for connection in server._connections:
        connection._caller = caller_of(1000, 100, 500)
    wanted = worker_pb2.CreateBlocks(blocks=[key_message(KEYS[0])])
    reply, fds = client.call(create=wanted)
    assert (list(reply.errnos), fds, reply.message) == ([errno.EACCES], [], DENIED)
    expires_s = int(clock.wall_ns() / 1e9) + 60
    reply, fds = client.call(create=wanted, tokens=[sign(secret, KEYS[0], "w", 1000, expires_s)])
    assert (list(reply.errnos), len(fds)) == ([0], 1)
    os.close(fds[0])
    both = worker_pb2.OpenBlocks(blocks=[key_message(key) for key in KEYS[:2]])
    reply, fds = client.call(open=both, tokens=[sign(secret, KEYS[0], "r", 1000, expires_s), b""])
    assert (list(reply.errnos), fds) == ([errno.EACCES] * 2, []), "one for each block"
    client.close()
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the socket to another group")
def test_the_group_can_be_chosen(path, control):
    server = LocalSocket(path, group="4321")
    server.start(control)
    status = path.stat()
    assert (status.st_gid, stat.S_IMODE(status.st_mode), server._group) == (4321, 0o660, 4321)
    server.stop()
    with pytest.raises(SettingsError, match="no group of this host"):
        LocalSocket(path, group="no-such-group")
