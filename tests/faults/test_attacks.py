"""What an attacker tries, row by row of the attack list; each row is a test here, or stands in this table with its
place:

====  ===========================================  ==================================================================
row   attack                                       where
====  ===========================================  ==================================================================
1     calls without credentials; open addresses    test_no_method_answers_*, test_every_method_has_its_rights,
                                                   test_no_daemon_listens_to_the_network_by_itself
2     certificates of others, expired, wrong role  test_certificates_that_are_refused, test_a_role_*,
                                                   test_a_node_does_not_speak_for_another,
                                                   test_no_certificate_but_the_masters_is_taken_for_the_master
3     operators' calls by others                   test_calls_for_operators_*
4     block tokens missing, changed, expired       test_a_block_needs_its_token, tests/unit/common/test_block_tokens.py
5     guessed blocks                               test_nobody_learns_which_blocks_there_are
6     odd paths and names                          test_paths, tests/faults/test_abuse.py::test_bad_names
7     links and strangers in a block directory     test_links_in_a_block_directory, test_a_disk_of_somebody_else
8     symlinks to files of the host                test_a_symlink_leads_nowhere_outside; there is no second store, so
                                                   keys and listings of one do not exist
9     messages that are too big                    tests/faults/test_abuse.py::test_messages_that_are_too_big and
                                                   ::test_values_beyond_all_limits
10    many idle connections and streams            test_abuse.py::test_more_connections_than_a_worker_takes,
                                                   test_idle_connections_keep_nobody_out
11    garbage on every port                        tests/faults/test_abuse.py::test_garbage_on_the_ports and
                                                   ::test_tls_on_the_plain_ports, test_garbage_on_the_tls_ports
12    replays                                      test_a_replayed_change, test_a_session_is_its_owners
13    uid and gid in the request                   test_nobody_chooses_an_owner
14    permissions of users                         test_users_*, tests/unit/master/test_permissions.py; by mount:
                                                   test_a_mount_checks_what_users_may
15    the unix socket's place and peers            tests/system/worker/test_local_socket.py, the last part
16    files that others can read                   test_nothing_is_readable_by_others,
                                                   tests/unit/common/test_credentials.py::test_a_secret_that_others_*
17    secrets in logs and dumps                    test_no_secret_is_written_anywhere
18    metrics and debug endpoints                  test_the_telemetry_port_changes_nothing
19    CSI: volume ids, paths, mount options        does not exist: there is no CSI driver
20    CSI: rights of the node plugin               does not exist: there is no CSI driver
21    pickle, yaml, eval, shells                   test_no_remote_data_is_executed
22    KV of another tenant or model                tests/unit/connector/test_chunk_format.py, and with engines
                                                   tests/vllm/test_hybrid.py
23    dependencies with known holes                does not exist: needs a database of holes that tests cannot reach
24    rotation of certificates and keys            test_a_certificate_is_replaced_while_the_daemon_runs,
                                                   tests/unit/common/test_block_tokens.py,
                                                   tests/unit/common/test_credentials.py::test_a_token_is_changed_*
25    disks left behind                            documented: docs/security.md, "What is not protected"
====  ===========================================  ==================================================================

And: test_a_users_word_stops_no_master.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import functools
import os
import secrets
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from hearthfs.cli import authority
from hearthfs.client.client import Client
from hearthfs.common import block_tokens, credentials, data_stream
from hearthfs.common.credentials import Certificates
from hearthfs.common.errors import AccessDenied, NotFound, NotPermitted, Unauthenticated
from hearthfs.common.gate import RIGHTS
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2, master_pb2, worker_pb2
from hearthfs.proto.master_pb2_grpc import MasterStub
from hearthfs.proto.worker_pb2_grpc import WorkerStub
from hearthfs.tests.support.channels import channel_to
from hearthfs.tests.support.cluster import Cluster, free_port

from .conftest import check_logs, check_sound

Code = grpc.StatusCode
ROOT = Path(__file__).resolve().parents[2]
ANNA, BERT = "user 1000 100", "user 1001 101"
DATA = bytes(range(256)) * 8192
pytestmark = pytest.mark.leaks("the clusters are the module's")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With certificates."""
    with Cluster(tmp_path_factory.mktemp("attacks"), workers=2, tls=True, telemetry=True) as cluster:
        with cluster.client(1) as client:
            for path, uid, gid, mode in (
                ("/anna", 1000, 100, 0o755),
                ("/bert", 1001, 101, 0o755),
                ("/tmp", 0, 0, 0o1777),
            ):
                client.mkdir(path)
                client.chown(path, uid, gid)
                client.chmod(path, mode)
        yield cluster
        for name in ("master", "worker1", "worker2"):
            assert cluster.running(name), cluster.logs()
        check_sound(cluster)
        check_logs(cluster)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a token."""
    with Cluster(tmp_path_factory.mktemp("plain"), workers=1) as cluster:
        yield cluster


@pytest.fixture
def user(cluster: Cluster) -> Iterator[Callable[..., Client]]:
    """``user(name)``: an SDK client with that certificate, on no node."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(cluster.client(None, tls_directory=str(cluster.certificate(name))))


@pytest.fixture
def dial(cluster: Cluster) -> Iterator[Callable[..., grpc.Channel]]:
    """``dial(name, daemon)``: a channel with that certificate."""
    with contextlib.ExitStack() as stack:

        def dial(name: str, daemon: str = "master") -> grpc.Channel:
            kind = "master" if daemon == "master" else "worker"
            return stack.enter_context(Certificates(cluster.certificate(name)).channel(cluster.address(daemon), kind))

        yield dial


class Session:
    """Sends what it is told."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.stub = MasterStub(channel)
        self.client_id = secrets.randbits(63) + 1
        self.number = 0
        reply = self.stub.Register(
            master_pb2.RegisterRequest(client_id=self.client_id, kind="test", protocol=1), timeout=10
        )
        self.context = common_pb2.Context(session_id=reply.session_id, epoch=reply.epoch)

    def mutate(self, number: int = 0, **op: object) -> master_pb2.MutateReply:
        self.number = number or self.number + 1
        request = master_pb2.MutateRequest(
            context=self.context, client_id=self.client_id, request_id=self.number, acked_below=1, **op
        )
        return self.stub.Mutate(request, timeout=10)

    def resolve(self, path: bytes) -> common_pb2.Entry:
        return self.stub.Resolve(master_pb2.ResolveRequest(context=self.context, path=path), timeout=10)


def failure(do: Callable[[], object]) -> grpc.RpcError | None:
    try:
        reply = do()
        if not hasattr(reply, "DESCRIPTOR"):
            list(reply)  # type: ignore[call-overload]
    except grpc.RpcError as error:
        return error
    return None


def code(do: Callable[[], object]) -> Code:
    error = failure(do)
    return Code.OK if error is None else error.code()


# ------------------------------------------------------------------ 1: credentials


def methods() -> list[tuple[str, str, bool, bool]]:
    """(daemon, path, request streams, reply streams) of every method of every service."""
    found = [("worker1", data_stream.READ, False, True), ("worker1", data_stream.WRITE, True, False)]
    for daemon, module in (("master", master_pb2), ("worker1", worker_pb2)):
        for service in module.DESCRIPTOR.services_by_name.values():
            found += [
                (daemon, f"/{service.full_name}/{each.name}", each.client_streaming, each.server_streaming)
                for each in service.methods
            ]
    return found


METHODS = methods()


def call(channel: grpc.Channel, path: str, streams: bool, replies: bool, metadata: tuple = ()) -> object:
    """With an empty request: it is refused before anybody looks at it."""
    make = getattr(channel, f"{'stream' if streams else 'unary'}_{'stream' if replies else 'unary'}")
    request = iter([b""]) if streams else b""
    return make(path)(request, timeout=10, metadata=metadata)


def test_every_method_has_its_rights() -> None:
    assert sorted(path for _, path, _, _ in METHODS) == sorted(RIGHTS)


@pytest.mark.parametrize(("daemon", "path", "streams", "replies"), METHODS, ids=[each[1] for each in METHODS])
def test_no_method_answers_without_the_token(
    plain: Cluster, daemon: str, path: str, streams: bool, replies: bool
) -> None:
    other = credentials.Token(plain.directory / "other-token")
    if not other.path.exists():
        credentials.make_token_file(other.path)
    late = credentials.load(credentials.CredentialSettings())
    late = credentials.Token(late.path, lambda: time.time() - 3600)  # type: ignore[attr-defined]
    shown = [
        (),
        ((credentials.PROOF_KEY, "x"),),
        (("authorization", "Bearer x"),),
        other.metadata(path),
        late.metadata(path),
    ]
    with grpc.insecure_channel(plain.address(daemon)) as channel:
        for metadata in shown:
            assert code(functools.partial(call, channel, path, streams, replies, metadata)) is Code.UNAUTHENTICATED
    with channel_to(plain.address(daemon)) as channel:  # it is the credentials that were missing
        assert code(functools.partial(call, channel, path, streams, replies)) is not Code.UNAUTHENTICATED or (
            "session" in str(failure(functools.partial(call, channel, path, streams, replies)))
        )


@pytest.mark.parametrize(("daemon", "path", "streams", "replies"), METHODS, ids=[each[1] for each in METHODS])
def test_no_method_answers_without_a_certificate(
    cluster: Cluster, daemon: str, path: str, streams: bool, replies: bool
) -> None:
    ca = (cluster.certificate("admin") / "ca.pem").read_bytes()
    name = credentials.server_name("master" if daemon == "master" else "worker")
    options = [("grpc.ssl_target_name_override", name)]
    address = cluster.address(daemon)
    for channel in (
        grpc.insecure_channel(address),
        grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), options),
    ):
        with channel:
            error = failure(functools.partial(call, channel, path, streams, replies))
            assert error is not None
            assert error.code() is Code.UNAVAILABLE, error  # the connection itself is refused


def test_no_daemon_listens_to_the_network_by_itself(plain: Cluster, tmp_path: Path) -> None:
    master = plain.hearth("master", "--data", str(tmp_path / "m"), "--listen", "0.0.0.0:0")
    worker = plain.hearth("worker", "--disk", str(tmp_path / "d"), "--listen", f"0.0.0.0:{free_port()}")
    for done in (master, worker):
        assert done.returncode == 1
        assert "allow_insecure" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------ 2: certificates and roles


def test_certificates_that_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority.found(tmp_path / "other", "other", now)
    authority.issue(tmp_path / "other", tmp_path / "stranger", "admin", 1, now)
    shutil.copy(cluster.certificate("admin") / "ca.pem", tmp_path / "stranger" / "ca.pem")
    past = now - datetime.timedelta(days=30)
    authority.issue(cluster.directory / "authority", tmp_path / "expired", "admin", 1, past)
    for name in ("stranger", "expired"):
        for daemon in ("master", "worker1"):
            shown = Certificates(tmp_path / name)
            with shown.channel(cluster.address(daemon), "master" if daemon == "master" else "worker") as channel:
                path = "/hearthfs.v1.Master/Status" if daemon == "master" else "/hearthfs.v1.Worker/Stats"
                assert code(lambda: call(channel, path, False, False)) is Code.UNAVAILABLE  # noqa: B023
    # That a server is of another authority is said at once; that it refused us shows as a lost connection.
    shutil.copy(tmp_path / "other" / "ca.pem", tmp_path / "stranger" / "ca.pem")
    lost = Client(cluster.master_address, tls_directory=str(tmp_path / "stranger"), timeout_s=60)
    with lost, pytest.raises(Unauthenticated, match="CERTIFICATE_VERIFY_FAILED"):
        lost.listdir("/")


def test_no_certificate_but_the_masters_is_taken_for_the_master(cluster: Cluster) -> None:
    """A node that sits on the master's address gets nothing from the master's clients."""
    client = Client(cluster.address("worker1"), tls_directory=str(cluster.certificate("admin")), timeout_s=20)
    with client, pytest.raises(Unauthenticated):
        client.listdir("/")


def test_a_role_calls_only_what_is_its_own(dial) -> None:
    for name in (ANNA, "user 0 0"):
        stub = MasterStub(dial(name))
        refused = (
            lambda stub=stub: stub.RegisterWorker(
                master_pb2.RegisterWorkerRequest(worker_id="evil", node_id="evil"), timeout=10
            ),
            lambda stub=stub: stub.Heartbeat(master_pb2.HeartbeatRequest(worker_id="node1"), timeout=10),
            lambda stub=stub: stub.ReportBlocks(
                master_pb2.ReportBlocksRequest(worker_id="node1", start=True, end=True), timeout=10
            ),
            lambda stub=stub: stub.Watch(iter([master_pb2.WatchRequest()]), timeout=10),
            lambda stub=stub: stub.Register(
                master_pb2.RegisterRequest(client_id=5, protocol=1, holds_grants=True), timeout=10
            ),
        )
        assert [code(do) for do in refused] == [Code.PERMISSION_DENIED] * len(refused)
    assert (
        code(lambda: MasterStub(dial("master")).Status(master_pb2.StatusRequest(), timeout=10))
        is Code.PERMISSION_DENIED
    )


def test_a_node_does_not_speak_for_another(cluster: Cluster, dial) -> None:
    stub = MasterStub(dial("node node2"))
    status = MasterStub(dial("admin")).Status(master_pb2.StatusRequest(), timeout=10)
    context = common_pb2.Context(epoch=status.epoch)
    for do in (
        lambda: stub.RegisterWorker(
            master_pb2.RegisterWorkerRequest(context=context, worker_id="w", node_id="node1", protocol=1), timeout=10
        ),
        lambda: stub.Heartbeat(master_pb2.HeartbeatRequest(context=context, worker_id="node1"), timeout=10),
        lambda: stub.ReportBlocks(
            master_pb2.ReportBlocksRequest(context=context, worker_id="node1", start=True, end=True), timeout=10
        ),
    ):
        assert code(do) is Code.PERMISSION_DENIED


# ------------------------------------------------------------------ 3: operators' calls


@pytest.mark.parametrize("name", [ANNA, "user 0 0", "node node1"])
def test_calls_for_operators_are_refused_and_noted(cluster: Cluster, dial, name: str) -> None:
    master = MasterStub(dial(name))
    blocks = WorkerStub(dial(name, "worker1")).ListBlocks
    assert code(lambda: master.Dump(master_pb2.DumpRequest(), timeout=10)) is Code.PERMISSION_DENIED
    assert code(lambda: master.Backup(master_pb2.BackupRequest(), timeout=10)) is Code.PERMISSION_DENIED
    assert code(lambda: master.Journal(master_pb2.JournalRequest(), timeout=10)) is Code.PERMISSION_DENIED
    assert code(lambda: blocks(worker_pb2.ListBlocksRequest(), timeout=10)) is Code.PERMISSION_DENIED
    for log in ("master", "worker1"):
        assert any("call-refused" in line and name in line for line in cluster.log(log).read_text().splitlines())


def test_calls_for_operators_are_theirs(cluster: Cluster) -> None:
    assert cluster.fsck() == []


# ------------------------------------------------------------------ 4, 5: blocks


class Blocks:
    """A file of Anna's that only she may read, and what opens it."""

    def __init__(self, cluster: Cluster, dial, user) -> None:
        path = f"/anna/{secrets.token_hex(4)}"
        user(ANNA).write_bytes(path, DATA)
        user(ANNA).chmod(path, 0o600)
        entry = Session(dial(ANNA)).resolve(path.encode())
        (extent,) = entry.extents
        self.key, self.token = BlockKey(extent.block, extent.generation), extent.token
        self.worker = next(
            name for name in ("worker1", "worker2") if cluster.address(name) == entry.replicas[0].address
        )
        self._dial = dial

    def read(self, name: str, token: bytes, key: BlockKey | None = None) -> Code:
        return self._code(self._read(name, token, key or self.key))

    def _read(self, name: str, token: bytes, key: BlockKey) -> Callable[[], object]:
        request = worker_pb2.ReadRequest(block=key.block, generation=key.generation, token=token)
        return lambda: self._dial(name, self.worker).unary_stream(data_stream.READ)(
            request.SerializeToString(), timeout=10
        )

    def write(self, name: str, token: bytes, key: BlockKey | None = None) -> Code:
        key = key or self.key
        header = worker_pb2.WriteHeader(block=key.block, generation=key.generation, token=token)
        write = self._dial(name, self.worker).stream_unary(data_stream.WRITE)
        return self._code(lambda: write(iter([header.SerializeToString()]), timeout=10))

    def control(
        self, name: str, tokens: list[bytes], key: BlockKey | None = None, op: str = "open"
    ) -> grpc.RpcError | None:
        key = key or self.key
        wire = master_pb2.BlockKey(block=key.block, generation=key.generation)
        ops = {
            "open": {"open": worker_pb2.OpenBlocks(blocks=[wire])},
            "create": {"create": worker_pb2.CreateBlocks(blocks=[wire])},
            "copy": {"create": worker_pb2.CreateBlocks(blocks=[wire], copy_from=wire)},
            "commit": {"commit": worker_pb2.CommitBlocks(items=[worker_pb2.CommitItem(key=wire)])},
            "discard": {"discard": worker_pb2.DiscardBlocks(blocks=[wire])},
            "fetch": {"fetch": worker_pb2.FetchBlock(key=wire, sources=["127.0.0.1:1"])},
        }
        request = worker_pb2.ControlRequest(tokens=tokens, **ops[op])
        return failure(lambda: WorkerStub(self._dial(name, self.worker)).Control(request, timeout=10))

    @staticmethod
    def _code(do: Callable[[], object]) -> Code:
        return code(do)


@pytest.fixture
def blocks(cluster: Cluster, dial, user) -> Blocks:
    return Blocks(cluster, dial, user)


def test_a_block_needs_its_token(blocks: Blocks) -> None:
    assert len(blocks.token) == block_tokens.LENGTH
    assert blocks.read(ANNA, blocks.token) is Code.OK
    assert blocks.control(ANNA, [blocks.token]) is None
    changed = bytes([blocks.token[0] ^ 1]) + blocks.token[1:]
    for token in (b"", changed, blocks.token[:-1] + b"\0", b"\0" * block_tokens.LENGTH, blocks.token + b"\0"):
        assert blocks.read(ANNA, token) is Code.PERMISSION_DENIED
    assert blocks.read(BERT, blocks.token) is Code.PERMISSION_DENIED, "it is Anna's"
    assert blocks.read(ANNA, blocks.token, BlockKey(blocks.key.block + 1, 1)) is Code.PERMISSION_DENIED
    assert blocks.write(ANNA, blocks.token) is Code.PERMISSION_DENIED, "it is for reading"
    for op in ("create", "copy", "commit", "discard"):
        for tokens in ([], [blocks.token], [blocks.token] * 2):
            error = blocks.control(ANNA, tokens, op=op)
            assert error is not None
            assert error.code() is Code.PERMISSION_DENIED
    for tokens in ([], [b""], [blocks.token] * 2):
        error = blocks.control(ANNA, tokens)
        assert error is not None
        assert error.code() is Code.PERMISSION_DENIED
    error = blocks.control(BERT, [blocks.token], op="fetch")
    assert error is not None
    assert error.code() is Code.PERMISSION_DENIED


def test_whom_the_master_gives_tokens(blocks: Blocks, dial) -> None:
    bert = Session(dial(BERT))
    request = master_pb2.SignBlocksRequest(
        context=bert.context, blocks=[master_pb2.BlockKey(block=blocks.key.block, generation=blocks.key.generation)]
    )
    assert list(bert.stub.SignBlocks(request, timeout=10).tokens) == [b""]
    anna = Session(dial(ANNA))
    request.context.CopyFrom(anna.context)
    (token,) = anna.stub.SignBlocks(request, timeout=10).tokens
    assert blocks.read(ANNA, token) is Code.OK
    own = anna.mutate(allocate=master_pb2.Allocate(count=1)).blocks[0]
    request.blocks[0].block, request.blocks[0].generation = own.block, own.generation
    assert list(anna.stub.SignBlocks(request, timeout=10).tokens) != [b""]
    request.context.CopyFrom(bert.context)
    assert list(bert.stub.SignBlocks(request, timeout=10).tokens) == [b""], "a working block is its client's"


def test_a_lease_goes_on_after_the_token(blocks: Blocks, dial) -> None:
    """Who has a file open reads on; the lease's number is known to nobody else."""
    wire = master_pb2.BlockKey(block=blocks.key.block, generation=blocks.key.generation)
    request = worker_pb2.ControlRequest(tokens=[blocks.token], open=worker_pb2.OpenBlocks(blocks=[wire]))
    lease_id = WorkerStub(dial(ANNA, blocks.worker)).Control(request, timeout=10).lease_id

    def read(lease_id: int) -> Code:
        request = worker_pb2.ReadRequest(block=blocks.key.block, generation=blocks.key.generation, lease_id=lease_id)
        return code(
            lambda: dial(ANNA, blocks.worker).unary_stream(data_stream.READ)(request.SerializeToString(), timeout=10)
        )

    assert read(lease_id) is Code.OK
    assert read(lease_id + 1) is Code.PERMISSION_DENIED


def test_nobody_learns_which_blocks_there_are(blocks: Blocks) -> None:
    errors = set()
    for number in (blocks.key.block, blocks.key.block + 1000, 0, 1, (1 << 64) - 1):
        error = blocks.control(BERT, [b""], BlockKey(number, blocks.key.generation))
        assert error is not None
        errors.add((error.code(), error.details()))
        read = failure(blocks._read(BERT, b"", BlockKey(number, blocks.key.generation)))
        assert read is not None
        errors.add((read.code(), read.details()))
    assert errors == {(Code.PERMISSION_DENIED, block_tokens.DENIED)}


# ------------------------------------------------------------------ 6, 8, 12, 13, 14: users and paths


@pytest.mark.parametrize(
    "path",
    [b"/../../etc/passwd", b"/anna/../../../etc/passwd", b"etc/passwd", b"", b"/anna/\0", b"/" + b"x" * 5000,
     b"/anna/" + b"x" * 256, b"/\xff\xfe/\x1b[31m", b"/anna/\n2026 forged line", b"//..//../."],
)  # fmt: skip
def test_paths(cluster: Cluster, dial, path: bytes) -> None:
    session = Session(dial(ANNA))
    found = code(lambda: session.resolve(path))
    inside = path == b"//..//../."
    assert found is Code.OK if inside else found in (Code.NOT_FOUND, Code.INVALID_ARGUMENT), found
    for name in ("master", "worker1"):
        for line in cluster.log(name).read_bytes().splitlines():
            assert not line.startswith(b"2026 forged")
            assert b"\x1b" not in line


def test_a_symlink_leads_nowhere_outside(user) -> None:
    anna = user(ANNA)
    anna.symlink("/etc/passwd", "/anna/passwd")
    anna.symlink("../../../../etc/passwd", "/anna/up")
    for path in ("/anna/passwd", "/anna/up"):
        with pytest.raises(NotFound):
            anna.read_bytes(path)


def test_nobody_chooses_an_owner(dial) -> None:
    anna = Session(dial(ANNA))
    directory = anna.resolve(b"/anna").attributes.inode
    made = anna.mutate(
        create=master_pb2.Create(parent=directory, name=b"roots", mode=0o4755, uid=0, gid=0)
    ).entry.attributes
    assert (made.uid, made.gid) == (1000, 100)
    assert code(lambda: anna.mutate(setattr=master_pb2.Setattr(inode=made.inode, uid=0))) is Code.PERMISSION_DENIED
    put = master_pb2.PutMany(parent=directory, names=common_pb2.PackedNames(names=[b"put"]), mode=0o644, uid=0, gid=0,
                             blocks=[0], generations=[0], lengths_bytes=[0], digests=[0])  # fmt: skip
    assert list(anna.mutate(put_many=put).errnos) == [0]
    assert anna.resolve(b"/anna/put").attributes.uid == 1000


def test_users_are_held_to_modes(user) -> None:
    anna, bert = user(ANNA), user(BERT)
    anna.write_bytes("/anna/open", DATA)
    assert bert.read_bytes("/anna/open") == DATA
    for do in (
        lambda: bert.write_bytes("/anna/open", b"x"),
        lambda: bert.write_bytes("/anna/new", b"x"),
        lambda: bert.remove("/anna/open"),
        lambda: bert.rename("/anna/open", "/bert/mine"),
        lambda: bert.chmod("/anna/open", 0o777),
        lambda: bert.mkdir("/anna/d"),
        lambda: bert.open("/anna/open", "r+b").close(),
        lambda: anna.mkdir("/new-in-root"),
    ):
        with pytest.raises((AccessDenied, NotPermitted)):
            do()
    anna.chmod("/anna/open", 0o640)
    with pytest.raises(AccessDenied):
        bert.read_bytes("/anna/open")
    anna.makedirs("/anna/private/deep")
    anna.write_bytes("/anna/private/deep/f", b"x")
    anna.chmod("/anna/private", 0o700)
    for path in ("/anna/private/deep/f", "/anna/private/nothing"):
        with pytest.raises(AccessDenied):
            bert.stat(path)
    assert anna.read_bytes("/anna/private/deep/f") == b"x"


def test_users_share_a_sticky_directory(user) -> None:
    anna, bert = user(ANNA), user(BERT)
    anna.write_bytes("/tmp/a", DATA)
    bert.write_bytes("/tmp/b", DATA)
    with pytest.raises(NotPermitted):
        bert.remove("/tmp/a")
    with pytest.raises(NotPermitted):
        bert.rename("/tmp/b", "/tmp/a")
    bert.remove("/tmp/b")
    anna.remove("/tmp/a")


def test_users_use_batches(user) -> None:
    anna, bert = user(ANNA), user(BERT)
    anna.makedirs("/anna/batch")
    names = [f"k{number}" for number in range(50)]
    data = [DATA[: 1000 + number] for number in range(50)]
    assert anna.put_many(names, data, directory="/anna/batch") == [None] * 50
    assert anna.stat("/anna/batch/k3").st_uid == 1000
    anna.chmod("/anna/batch/k7", 0o600)
    found = bert.lookup_many("/anna/batch", names, want_layout=True).found
    assert [name for name, there in zip(names, found, strict=True) if not there] == ["k7"], (
        "what is not Bert's is a miss"
    )
    buffers = [bytearray(len(each)) for each in data]
    results = bert.get_many(names, buffers, directory="/anna/batch")
    assert [name for name, result in zip(names, results, strict=True) if result] == ["k7"]
    assert [bytes(each) for each in buffers if any(each)] == [each for each in data if len(each) != 1007]
    assert not any(buffers[7]), "not a byte of it"
    refused = bert.put_many(["new"], [b"x"], directory="/anna/batch")
    assert isinstance(refused[0], AccessDenied)


def test_a_replayed_change(dial) -> None:
    anna = Session(dial(ANNA))
    directory = anna.resolve(b"/anna").attributes.inode
    name = secrets.token_hex(4).encode()
    first = anna.mutate(number=5, mkdir=master_pb2.Mkdir(parent=directory, name=name, mode=0o755))
    again = anna.mutate(number=5, mkdir=master_pb2.Mkdir(parent=directory, name=name, mode=0o755))
    assert again.entry.attributes.inode == first.entry.attributes.inode
    other = failure(lambda: anna.mutate(number=5, rmdir=master_pb2.Rmdir(parent=directory, name=name)))
    assert other is not None
    assert other.code() is Code.INVALID_ARGUMENT


def test_a_session_is_its_owners(dial) -> None:
    anna = Session(dial(ANNA))
    stolen = Session(dial(BERT))
    stolen.context, stolen.client_id = anna.context, anna.client_id
    assert code(lambda: stolen.resolve(b"/")) is Code.UNAUTHENTICATED
    assert code(lambda: stolen.mutate(mkdir=master_pb2.Mkdir(parent=1, name=b"x"))) is Code.UNAUTHENTICATED
    register = master_pb2.RegisterRequest(client_id=anna.client_id, kind="test", protocol=1)
    assert code(lambda: stolen.stub.Register(register, timeout=10)) is Code.PERMISSION_DENIED
    assert anna.resolve(b"/").attributes.inode == 1
    status = stolen.stub.Status(master_pb2.StatusRequest(), timeout=10)
    assert list(status.sessions) == [], "users see nobody's sessions"


def test_a_users_word_stops_no_master(cluster: Cluster, dial) -> None:
    anna = Session(dial(ANNA))
    newer = common_pb2.Context(session_id=anna.context.session_id, epoch=anna.context.epoch + 1)
    request = master_pb2.GetattrRequest(context=newer, inode=1)
    assert code(lambda: anna.stub.Getattr(request, timeout=10)) is Code.FAILED_PRECONDITION
    assert anna.resolve(b"/").attributes.inode == 1
    assert cluster.running("master")


@pytest.mark.mount
def test_a_mount_checks_what_users_may(make_cluster) -> None:
    """The kernel does, by the modes that it is told: a mount is never without."""
    cluster = make_cluster(workers=1, mounts=1, tls=True)
    root = cluster.mountpoint(1)
    os.chmod(root, 0o755)
    for parent in root.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    for name, uid, mode in (("anna", 1000, 0o700), ("tmp", 0, 0o1777)):
        (root / name).mkdir()
        os.chown(root / name, uid, uid)
        os.chmod(root / name, mode)
    (root / "anna" / "f").write_bytes(b"x")
    (root / "tmp" / "a").write_bytes(b"x")
    os.chown(root / "tmp" / "a", 1000, 1000)
    (root / "tmp" / "program").write_bytes(b"x")
    os.chmod(root / "tmp" / "program", 0o4777)
    script = """if 1:
        import errno, os, sys
        os.setgroups([]); os.setresgid(1001, 1001, 1001); os.setresuid(1001, 1001, 1001)
        root = sys.argv[1]
        assert sorted(os.listdir(root)) == ["anna", "tmp"]
        def refused(do):
            try:
                do()
            except OSError as error:
                assert error.errno in (errno.EACCES, errno.EPERM), error
                return
            raise AssertionError(do)
        refused(lambda: open(f"{root}/anna/f"))
        refused(lambda: os.listdir(f"{root}/anna"))
        refused(lambda: os.mkdir(f"{root}/d"))
        refused(lambda: os.unlink(f"{root}/tmp/a"))
        refused(lambda: os.chown(f"{root}/tmp/a", 1001, 1001))
        refused(lambda: os.chmod(f"{root}/tmp/a", 0o777))
        open(f"{root}/tmp/mine", "w").write("x")
        assert os.stat(f"{root}/tmp/mine").st_uid == 1001
        with open(f"{root}/tmp/program", "r+") as file:
            file.write("y")
        assert not os.stat(f"{root}/tmp/program").st_mode & 0o4000
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(root)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    options = next(line for line in Path("/proc/mounts").read_text().splitlines() if str(root) in line).split()[3]
    assert {"default_permissions", "nosuid", "nodev"} <= set(options.split(","))


# ------------------------------------------------------------------ 7, 16: what lies on disks


def test_links_in_a_block_directory(make_cluster, tmp_path: Path) -> None:
    cluster = make_cluster(workers=1)
    client = cluster.client(1)
    client.write_bytes("/a", DATA)
    client.write_bytes("/b", DATA[::-1])
    outside = tmp_path / "outside"
    outside.write_bytes(DATA)
    cluster.term("worker1")
    files = sorted((cluster.disk(1) / "blocks").glob("??/*"))
    files[0].unlink()
    files[0].symlink_to(outside)  # a file outside, even one with the right bytes
    shard = files[1].parent
    if shard == files[0].parent:
        shard = None
    else:
        moved = tmp_path / "moved"
        shutil.move(shard, moved)
        shard.symlink_to(moved)
    (cluster.disk(1) / "working" / "00000000000000ff.1").symlink_to(outside)
    cluster.start("worker1")
    fresh = cluster.client(1)
    for path in ("/a", "/b") if shard else ("/a",):
        with pytest.raises(OSError, match=r".") as error:
            fresh.read_bytes(path)
        assert not isinstance(error.value, NotFound)
    assert outside.read_bytes() == DATA
    check_logs(cluster)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_a_disk_of_somebody_else(plain: Cluster, tmp_path: Path) -> None:
    for uid, mode in ((1000, 0o755), (0, 0o777)):
        disk = tmp_path / f"disk{uid}"
        disk.mkdir()
        os.chown(disk, uid, 0)
        os.chmod(disk, mode)
        done = plain.hearth("worker", "--master", plain.master_address, "--disk", str(disk), "--listen",
                            f"127.0.0.1:{free_port()}", "--socket", str(tmp_path / "s"))  # fmt: skip
        assert done.returncode == 1
        assert "could be changed by others" in done.stderr
        assert os.listdir(disk) == []


def test_nothing_is_readable_by_others(plain: Cluster) -> None:
    with plain.client(1) as client:
        client.write_bytes("/readable", DATA)
    open_to_others = []
    for place in (plain.directory / "master", plain.disk(1)):
        for folder, directories, files in os.walk(place):
            closed = {name for name in directories if not (os.lstat(f"{folder}/{name}").st_mode & 0o077)}
            directories[:] = [name for name in directories if name not in closed]  # nobody gets below
            for name in [*files, *directories]:
                mode = os.lstat(f"{folder}/{name}").st_mode
                if mode & 0o077 and not stat.S_ISSOCK(mode):
                    open_to_others.append(f"{folder}/{name}")
    assert open_to_others == []


# ------------------------------------------------------------------ 10, 11: connections


def test_idle_connections_keep_nobody_out(cluster: Cluster, user) -> None:
    connections = []
    try:
        for daemon in ("master", "worker1"):
            host, port = cluster.address(daemon).split(":")
            connections += [socket.create_connection((host, int(port)), timeout=5) for _ in range(200)]
        assert user(ANNA).stat("/anna").st_uid == 1000
    finally:
        for connection in connections:
            connection.close()


GARBAGE = {
    "zeros": b"\0" * 100_000,
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "hello": b"\x16\x03\x01\xff\xff" + b"x" * 999,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "none": b"",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_tls_ports(cluster: Cluster, user, data: bytes) -> None:
    for daemon in ("master", "worker1"):
        host, port = cluster.address(daemon).split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.settimeout(0.2)
                with contextlib.suppress(OSError):
                    connection.sendall(data)
                    while connection.recv(4096):
                        pass
    assert user(ANNA).stat("/anna").st_uid == 1000


# ------------------------------------------------------------------ 17, 18, 21, 24


def test_no_secret_is_written_anywhere(make_cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that are easy to find are planted; then everything is done that writes something, errors too."""
    token = "canary" + "7f3a" * 16
    credentials.write_secret(tmp_path / "token", token.encode() + b"\n")
    written = []
    for tls in (False, True):
        monkeypatch.setenv(credentials.TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
        cluster = make_cluster(workers=2, tls=tls, telemetry=True, environment={"GRPC_VERBOSITY": "DEBUG"},
                               settings={name: {"log_level": "debug"} for name in ("master", "worker")})  # fmt: skip
        planted = [token.encode()]
        names = ("admin", ANNA, "master", "node node1") if tls else ()
        for name in names:
            body = (cluster.certificate(name) / "key.pem").read_bytes().splitlines()[1:-1]
            planted += body
        client = cluster.client(1)
        client.write_bytes("/f", DATA)
        client.makedirs("/anna")
        client.chown("/anna", 1000, 100)
        if tls:
            anna = cluster.client(None, tls_directory=str(cluster.certificate(ANNA)))
            anna.write_bytes("/anna/f", DATA)
            assert anna.read_bytes("/anna/f") == DATA
            with Certificates(cluster.certificate(ANNA)).channel(cluster.master_address, "master") as channel:
                found = Session(channel).resolve(b"/anna/f").extents[0].token
            assert found
            planted += [found, found.hex().encode()]
            with Certificates(cluster.certificate("admin")).channel(cluster.master_address, "master") as channel:
                reply = MasterStub(channel).RegisterWorker(
                    master_pb2.RegisterWorkerRequest(
                        worker_id="spy", node_id="spy", address="127.0.0.1:1", incarnation=1, protocol=1
                    ),
                    timeout=10,
                )
            for each in reply.block_secrets:
                planted += [each.secret, each.secret.hex().encode(), repr(each.secret).encode()]
        else:
            proof = credentials.load(credentials.CredentialSettings()).metadata("/hearthfs.v1.Master/Dump")  # type: ignore[attr-defined]
            planted.append(proof[0][1].encode())
            with grpc.insecure_channel(cluster.master_address) as channel:
                assert (
                    code(lambda: call(channel, "/hearthfs.v1.Master/Dump", False, True, (("x", token),)))
                    is Code.UNAUTHENTICATED
                )
        texts = []
        for command in ("status --json", "status", "fsck --json", "doctor", "stat /f", "df"):
            done = cluster.hearth(*command.split())
            texts += [done.stdout, done.stderr]
        for name in ("master", "worker1", "worker2"):
            with urllib.request.urlopen(f"{cluster.telemetry_url(name)}/metrics") as reply:
                texts.append(reply.read().decode())
            texts.append(Path(f"/proc/{cluster.pid(name)}/cmdline").read_text())
            texts.append(Path(f"/proc/{cluster.pid(name)}/environ").read_text())
            cluster.kill(name)
        content = [text.encode() for text in texts]
        content += [cluster.log(name).read_bytes() for name in ("master", "worker1", "worker2")]
        for path in cluster.directory.rglob("*"):
            if path.is_file() and not {"certificates", "authority"} & set(path.parts):
                content.append(path.read_bytes())
        written += [(secret[:12], text[:60]) for text in content for secret in planted if secret in text]
    assert written == []


def test_the_telemetry_port_changes_nothing(cluster: Cluster) -> None:
    url = cluster.telemetry_url("master")
    for method, path in (("POST", "/metrics"), ("DELETE", "/healthz"), ("PUT", "/"), ("GET", "/../../etc/passwd"),
                         ("GET", "/debug/pprof"), ("GET", "/metrics/../x")):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=10)
        assert error.value.code in (404, 501)
        error.value.close()
    with Certificates(cluster.certificate("admin")).channel(cluster.master_address, "master") as channel:
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        assert code(lambda: call(channel, reflection, True, True)) is Code.UNIMPLEMENTED


def test_no_remote_data_is_executed() -> None:
    """In production code: no module that turns bytes into code, no shell."""
    modules = {"pickle", "cPickle", "dill", "marshal", "shelve", "yaml", "cloudpickle"}
    names = {"eval", "exec", "compile", "__import__"}
    found = []
    for part in ("cli", "client", "common", "connector", "fuse_client", "master", "worker"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    bad = {alias.name.partition(".")[0] for alias in node.names} & modules
                elif isinstance(node, ast.ImportFrom):
                    bad = {(node.module or "").partition(".")[0]} & modules
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    bad = {node.func.id} & names
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    shell = any(word.arg == "shell" for word in node.keywords)
                    bad = {node.func.attr} & {"system", "popen"} | ({"shell"} if shell else set())
                else:
                    continue
                found += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in bad]
    assert found == []


def serial(cluster: Cluster, daemon: str) -> int:
    """Of the certificate that the daemon shows."""
    from cryptography import x509

    shown = cluster.certificate("admin")
    context = ssl.create_default_context(cafile=str(shown / "ca.pem"))
    context.load_cert_chain(shown / "cert.pem", shown / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, port = cluster.address(daemon).split(":")
    name = credentials.server_name("master" if daemon == "master" else "worker")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        with context.wrap_socket(connection, server_hostname=name) as secured:
            certificate = secured.getpeercert(binary_form=True)
    assert certificate
    return x509.load_der_x509_certificate(certificate).serial_number


@pytest.mark.parametrize(("daemon", "name"), [("master", "master"), ("worker1", "node node1")])
def test_a_certificate_is_replaced_while_the_daemon_runs(cluster: Cluster, user, daemon: str, name: str) -> None:
    before, anna = serial(cluster, daemon), user(ANNA)
    assert anna.stat("/anna")
    now = datetime.datetime.now(datetime.UTC)
    authority.issue(cluster.directory / "authority", cluster.certificate(name), name, 1, now)
    assert serial(cluster, daemon) != before
    assert anna.stat("/anna"), "who is connected stays"
    assert user(BERT).stat("/anna")


def test_half_a_renewal_keeps_the_old_certificate(cluster: Cluster) -> None:
    directory, before = cluster.certificate("master"), serial(cluster, "master")
    good = (directory / "key.pem").read_bytes()
    (directory / "key.pem").write_bytes(b"")
    try:
        assert serial(cluster, "master") == before
    finally:
        (directory / "key.pem").write_bytes(good)
    assert serial(cluster, "master") == before
