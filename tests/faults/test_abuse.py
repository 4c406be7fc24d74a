"""Bad input at every door of real daemons: the right status, no trace back, and they serve on."""

from __future__ import annotations

import array
import errno
import os
import random
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hearthfs.common import data_stream
from hearthfs.proto import common_pb2, master_pb2, worker_pb2, worker_pb2_grpc
from hearthfs.proto.master_pb2_grpc import MasterStub
from hearthfs.tests.support.channels import channel_to
from hearthfs.tests.support.cluster import Cluster

from .conftest import check_logs, check_sound, wait_for

Code = grpc.StatusCode
DATA = random.Random(51).randbytes((2 << 20) + 5)
REFUSALS = {
    Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION, Code.OUT_OF_RANGE,
    Code.RESOURCE_EXHAUSTED, Code.PERMISSION_DENIED, Code.UNIMPLEMENTED, Code.ABORTED, Code.UNAUTHENTICATED,
}  # fmt: skip
BAD_NAMES = {
    b"": {Code.INVALID_ARGUMENT, Code.NOT_FOUND},
    b".": {Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION},
    b"..": {Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION},
    b"a/b": {Code.INVALID_ARGUMENT},
    b"/": {Code.INVALID_ARGUMENT},
    b"a\0b": {Code.INVALID_ARGUMENT},
    b"x" * 256: {Code.INVALID_ARGUMENT},
    b"x" * 100_000: {Code.INVALID_ARGUMENT},
}
MANY = (1 << 64) - 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("abuse"), workers=1, telemetry=True) as cluster:
        yield cluster
        check_sound(cluster)


pytestmark = pytest.mark.leaks("the cluster is the module's")


@pytest.fixture(autouse=True)
def unharmed(cluster: Cluster) -> Iterator[None]:
    """After each test the same processes live, serve, and have logged no trace back; what they held is given back."""
    pids = {name: cluster.pid(name) for name in ("master", "worker1")}
    client = cluster.client(1)
    client.write_bytes("/witness", DATA)
    before = {name: open_files(pid) for name, pid in pids.items()}
    yield
    for name, pid in pids.items():
        assert cluster.running(name), cluster.logs()
        assert cluster.pid(name) == pid
        wait_for("descriptors", lambda: open_files(pid) <= before[name] + 8, 30)  # noqa: B023
    assert client.read_bytes("/witness") == DATA
    assert cluster.client(None).read_bytes("/witness") == DATA
    client.write_bytes("/witness", b"again")
    client.close()
    check_logs(cluster)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture
def master(cluster: Cluster) -> Iterator[MasterStub]:
    with channel_to(cluster.master_address) as channel:
        yield MasterStub(channel)


@pytest.fixture
def worker_channel(cluster: Cluster) -> Iterator[grpc.Channel]:
    with channel_to(cluster.address("worker1")) as channel:
        yield channel


def code_of(call, request) -> Code:
    try:
        reply = call(request, timeout=10)
        if not hasattr(reply, "DESCRIPTOR"):
            list(reply)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


class Session:
    """A client that sends what it is told."""

    def __init__(self, master: MasterStub, *, holds_grants: bool = False) -> None:
        self._master = master
        self._number = 0
        self.client_id = secrets.randbits(60) + 1  # not of the seeded generator: ids are never used again
        reply = master.Register(
            master_pb2.RegisterRequest(client_id=self.client_id, kind="test", protocol=1, holds_grants=holds_grants),
            timeout=10,
        )
        self.context = common_pb2.Context(session_id=reply.session_id, epoch=reply.epoch)

    def mutate(self, **op) -> Code:
        self._number += 1
        request = master_pb2.MutateRequest(
            context=self.context, client_id=self.client_id, request_id=self._number, acked_below=self._number, **op
        )
        return code_of(self._master.Mutate, request)


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name[:8]))
def test_bad_names(master: MasterStub, name: bytes) -> None:
    session, allowed = Session(master), BAD_NAMES[name]
    ok_name = b"fine"
    ops = [
        {"create": master_pb2.Create(parent=1, name=name, mode=0o644)},
        {"mkdir": master_pb2.Mkdir(parent=1, name=name, mode=0o755)},
        {"mknod": master_pb2.Mknod(parent=1, name=name, mode=0o10644)},
        {"symlink": master_pb2.Symlink(parent=1, name=name, target=b"x")},
        {"link": master_pb2.Link(inode=1, parent=1, name=name)},
        {"unlink": master_pb2.Unlink(parent=1, name=name)},
        {"rmdir": master_pb2.Rmdir(parent=1, name=name)},
        {"rename": master_pb2.Rename(parent=1, name=b"witness", new_parent=1, new_name=name)},
        {"rename": master_pb2.Rename(parent=1, name=name, new_parent=1, new_name=ok_name)},
    ]
    for op in ops:
        code = session.mutate(**op)
        assert code in allowed | {Code.NOT_FOUND, Code.PERMISSION_DENIED, Code.FAILED_PRECONDITION}, (op, code)
    if name not in (b".", b".."):
        lookup = master_pb2.LookupRequest(context=session.context, parent=1, name=name)
        assert code_of(master.Lookup, lookup) in (Code.INVALID_ARGUMENT, Code.NOT_FOUND)


def test_things_that_do_not_exist(master: MasterStub) -> None:
    session = Session(master)
    for inode in (0, 999_999, MANY):
        for call, request in (
            (master.Getattr, master_pb2.GetattrRequest(context=session.context, inode=inode)),
            (master.Readdir, master_pb2.ReaddirRequest(context=session.context, inode=inode)),
            (master.GetXattrs, master_pb2.GetXattrsRequest(context=session.context, inode=inode)),
            (master.Lookup, master_pb2.LookupRequest(context=session.context, parent=inode, name=b"x")),
        ):
            assert code_of(call, request) in REFUSALS
        for op in (
            {"create": master_pb2.Create(parent=inode, name=b"x")},
            {"setattr": master_pb2.Setattr(inode=inode, size_bytes=1)},
            {"publish": master_pb2.Publish(inode=inode, block=5, generation=1, length_bytes=1, size_bytes=1)},
            {"set_xattr": master_pb2.SetXattr(inode=inode, name=b"user.x", value=b"1")},
        ):
            assert session.mutate(**op) in REFUSALS


def test_epochs_and_sessions_that_never_were(master: MasterStub) -> None:
    real = Session(master).context
    for context in (
        common_pb2.Context(session_id=real.session_id, epoch=MANY),
        common_pb2.Context(session_id=MANY, epoch=real.epoch),
        common_pb2.Context(),
    ):
        request = master_pb2.GetattrRequest(context=context, inode=1)
        assert code_of(master.Getattr, request) in REFUSALS, context
    assert code_of(master.Getattr, master_pb2.GetattrRequest(context=real, inode=1)) == Code.OK


def test_values_beyond_all_limits(master: MasterStub) -> None:
    session = Session(master)
    assert session.mutate(create=master_pb2.Create(parent=1, name=b"limits", mode=0o644)) == Code.OK
    entry = master.Lookup(master_pb2.LookupRequest(context=session.context, parent=1, name=b"limits"), timeout=10)
    inode = entry.attributes.inode
    for op in (
        {"setattr": master_pb2.Setattr(inode=inode, size_bytes=MANY)},
        {"setattr": master_pb2.Setattr(inode=inode, size_bytes=1 << 63)},
        {"publish": master_pb2.Publish(inode=inode, size_bytes=MANY)},
        {"publish": master_pb2.Publish(inode=inode, block=MANY, generation=1, length_bytes=9, size_bytes=9)},
        {"publish": master_pb2.Publish(inode=inode, length_bytes=10, size_bytes=9)},
        {"set_xattr": master_pb2.SetXattr(inode=inode, name=b"n" * 300, value=b"1")},
        {"set_xattr": master_pb2.SetXattr(inode=inode, name=b"user.big", value=bytes(1 << 20))},
        {"symlink": master_pb2.Symlink(parent=1, name=b"long", target=b"t" * 5000)},
        {"allocate": master_pb2.Allocate(count=4_000_000_000)},
        {"put_many": master_pb2.PutMany(parent=1, names=common_pb2.PackedNames(width=7, packed=b"12345"))},
        {"put_many": master_pb2.PutMany(parent=1, names=common_pb2.PackedNames(names=[b"a", b"b"]), blocks=[1])},
        {"create_many": master_pb2.CreateMany(parent=1, names=common_pb2.PackedNames(width=4_000_000_000))},
        {},
    ):
        assert session.mutate(**op) in REFUSALS, op
    readdir = master_pb2.ReaddirRequest(context=session.context, inode=1, after_cookie=MANY, limit=4_000_000_000)
    assert code_of(master.Readdir, readdir) in {Code.OK, *REFUSALS}
    for path in (b"", b"relative", b"/\0", b"/" + b"x" * 5000, b"/a" * 3000):
        resolve = master_pb2.ResolveRequest(context=session.context, path=path)
        assert code_of(master.Resolve, resolve) in REFUSALS, path[:20]
    assert session.mutate(unlink=master_pb2.Unlink(parent=1, name=b"limits")) == Code.OK


def test_messages_that_are_too_big(master: MasterStub, cluster: Cluster, worker_channel: grpc.Channel) -> None:
    session = Session(master)
    huge = master_pb2.LookupRequest(context=session.context, parent=1, name=bytes(5 << 20))
    options = [("grpc.max_send_message_length", -1)]
    for address, method in (
        (cluster.master_address, "/hearthfs.v1.Master/Lookup"),
        (cluster.address("worker1"), "/hearthfs.v1.Worker/Control"),
    ):
        with channel_to(address, options) as channel:
            call = channel.unary_unary(method)
            assert code_of_raw(call, huge.SerializeToString()) == Code.RESOURCE_EXHAUSTED


def code_of_raw(call, data: bytes) -> Code:
    try:
        call(data, timeout=10)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


METHODS = [
    *(f"/hearthfs.v1.Master/{name}" for name in (
        "Register", "Lookup", "Resolve", "Getattr", "Readdir", "GetXattrs", "Statfs", "LookupMany", "Mutate",
        "RegisterWorker", "Heartbeat", "ReportBlocks", "Status")),
    "/hearthfs.v1.Worker/Control",
    "/hearthfs.v1.Worker/Stats",
    "/hearthfs.v1.Data/Read",
    "/hearthfs.v1.Data/Write",
    "/hearthfs.v1.Nobody/Nothing",
]  # fmt: skip


def test_bytes_that_are_no_message(cluster: Cluster, seed: int) -> None:
    """Every method: what does not parse is refused, not answered with a trace."""
    chance = random.Random(seed)
    addresses = {"Master": cluster.master_address, "Worker": cluster.address("worker1")}
    for method in METHODS:
        address = addresses["Master" if "Master" in method else "Worker"]
        with channel_to(address, ()) as channel:
            for _ in range(5):
                data = chance.randbytes(chance.randrange(1, 200))
                code = stream_code(channel, method, data)
                assert code in {Code.OK, Code.INTERNAL, Code.UNKNOWN, *REFUSALS}, (method, data, code)


def stream_code(channel: grpc.Channel, method: str, data: bytes) -> Code:
    """Works for every kind of method."""
    try:
        list(channel.stream_stream(method)(iter([data]), timeout=10))
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


def test_blocks_that_a_worker_does_not_have(worker_channel: grpc.Channel) -> None:
    stub = worker_pb2_grpc.WorkerStub(worker_channel)
    key = master_pb2.BlockKey(block=0xDEAD, generation=1)
    reply = stub.Control(worker_pb2.ControlRequest(open=worker_pb2.OpenBlocks(blocks=[key])), timeout=10)
    assert list(reply.errnos) == [errno.ENOENT]
    item = worker_pb2.CommitItem(key=key, length_bytes=MANY)
    reply = stub.Control(worker_pb2.ControlRequest(commit=worker_pb2.CommitBlocks(items=[item])), timeout=10)
    assert reply.errnos[0] != 0
    many = worker_pb2.ControlRequest(open=worker_pb2.OpenBlocks(blocks=[key] * 65))
    assert code_of(stub.Control, many) == Code.RESOURCE_EXHAUSTED
    assert code_of(stub.Control, worker_pb2.ControlRequest()) == Code.INVALID_ARGUMENT
    renew = worker_pb2.ControlRequest(renew=worker_pb2.Renew(lease_id=77))
    assert code_of(stub.Control, renew) in REFUSALS
    fetch = worker_pb2.FetchBlock(key=key, length_bytes=5, digest=1, sources=["127.0.0.1:1", "nonsense", ""])
    reply = stub.Control(worker_pb2.ControlRequest(fetch=fetch), timeout=30)
    assert reply.errnos[0] != 0


def test_offsets_beyond_a_block(cluster: Cluster, worker_channel: grpc.Channel) -> None:
    extent = cluster.client(None).entry("/witness").extents[0]
    read = worker_channel.unary_stream(data_stream.READ, worker_pb2.ReadRequest.SerializeToString)
    for offset, length in ((1, 0), (1 << 40, 0), (MANY, 0), (0, MANY), (MANY, MANY), (1 << 20, 7), (5 << 20, 1)):
        request = worker_pb2.ReadRequest(
            block=extent.block, generation=extent.generation, offset_bytes=offset, length_bytes=length
        )
        assert code_of(read, request) in REFUSALS, (offset, length)
    for block, generation in ((extent.block, extent.generation + 1), (0, 0), (MANY, 4_000_000_000)):
        request = worker_pb2.ReadRequest(block=block, generation=generation)
        assert code_of(read, request) in (Code.NOT_FOUND, Code.INVALID_ARGUMENT)


def test_writes_that_lie(cluster: Cluster, worker_channel: grpc.Channel) -> None:
    extent = cluster.client(None).entry("/witness").extents[0]
    write = worker_channel.stream_unary(data_stream.WRITE)
    for header, payload in (
        ({"offset_bytes": MANY, "payload_bytes": 4}, [b"1234"]),
        ({"offset_bytes": 1 << 62, "payload_bytes": 4}, [b"1234"]),
        ({"payload_bytes": MANY}, [b"1234"]),
        ({"payload_bytes": 10}, [b"1234"]),
        ({"payload_bytes": 4}, [b"1234", b"56"]),
        ({"payload_bytes": 4, "payload_xxh3": 1}, [b"1234"]),
        ({"payload_bytes": 4}, []),
    ):
        message = worker_pb2.WriteHeader(block=0xBEEF0000, generation=1, **header).SerializeToString()
        assert write_code(write, [message, *payload]) not in (Code.OK, Code.UNKNOWN, Code.DEADLINE_EXCEEDED), header
    # A block that is committed never changes.
    message = worker_pb2.WriteHeader(block=extent.block, generation=extent.generation, payload_bytes=1, payload_xxh3=1)
    assert write_code(write, [message.SerializeToString(), b"!"]) == Code.ALREADY_EXISTS
    assert write_code(write, []) not in (Code.OK, Code.UNKNOWN)
    stub = worker_pb2_grpc.WorkerStub(worker_channel)
    key = master_pb2.BlockKey(block=0xBEEF0000, generation=1)
    stub.Control(worker_pb2.ControlRequest(discard=worker_pb2.DiscardBlocks(blocks=[key])), timeout=10)


def write_code(write, messages: list[bytes]) -> Code:
    try:
        write(iter(messages), timeout=10)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


GARBAGE = {
    "zeros": bytes(1000),
    "random": random.Random(61).randbytes(5000),
    "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "preface and rubbish": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
    "nothing": b"",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_ports(cluster: Cluster, data: bytes) -> None:
    telemetry = [cluster.telemetry_url(name).removeprefix("http://") for name in ("master", "worker1")]
    for address in (cluster.master_address, cluster.address("worker1"), *telemetry):
        host, port = address.split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(data)
                connection.settimeout(0.2)
                read_some(connection)


def read_some(connection: socket.socket) -> None:
    try:
        while connection.recv(4096):
            pass
    except OSError:
        return  # silence or a reset: both are fine


def test_tls_on_the_plain_ports(cluster: Cluster) -> None:
    context = ssl.create_default_context()
    for address in (cluster.master_address, cluster.address("worker1")):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            with pytest.raises(OSError):
                context.wrap_socket(connection, server_hostname="localhost").close()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def test_garbage_on_the_unix_socket(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    path = cluster.socket(1)
    assert path is not None
    with connect(path) as connection:
        for _ in range(50):
            connection.send(chance.randbytes(chance.randrange(1, 2000)))
            reply = worker_pb2.ControlReply.FromString(connection.recv(1 << 20))
            assert reply.errnos or reply.message or reply.request_id >= 0
        hello = worker_pb2.ControlRequest(request_id=7, hello=worker_pb2.Hello())
        connection.send(hello.SerializeToString())
        reply = worker_pb2.ControlReply.FromString(connection.recv(1 << 20))
        assert (reply.request_id, reply.worker_id) == (7, "node1")
        # Descriptors that nobody asked for are not kept.
        fds = array.array("i", [0, 1, 2])
        connection.sendmsg([hello.SerializeToString()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        assert worker_pb2.ControlReply.FromString(connection.recv(1 << 20)).worker_id == "node1"
        many = worker_pb2.ControlRequest(
            open=worker_pb2.OpenBlocks(blocks=[master_pb2.BlockKey(block=n, generation=1) for n in range(65)])
        )
        connection.send(many.SerializeToString())
        reply = worker_pb2.ControlReply.FromString(connection.recv(1 << 20))
        assert reply.errnos == [errno.E2BIG]


def test_more_connections_than_a_worker_takes(cluster: Cluster) -> None:
    path = cluster.socket(1)
    assert path is not None
    connections = []
    try:
        for _ in range(400):
            try:
                connections.append(connect(path))
            except OSError:
                break
        assert len(connections) > 100
    finally:
        for connection in connections:
            connection.close()
    deadline = time.monotonic() + 20
    while True:  # it comes back by itself
        try:
            with connect(path) as connection:
                connection.send(worker_pb2.ControlRequest(hello=worker_pb2.Hello()).SerializeToString())
                if connection.recv(1 << 20):
                    return
        except OSError:
            pass
        assert time.monotonic() < deadline
