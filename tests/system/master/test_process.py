"""A master in a process of its own: signals, and what is left of it after kill -9."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading

import grpc
from hearthfs.proto import common_pb2, master_pb2, master_pb2_grpc
from hearthfs.tests.support.channels import channel_to

SERVE = (
    "import sys, pathlib\n"
    "from hearthfs.master.main import serve\n"
    "from hearthfs.master.settings import MasterSettings\n"
    "serve(MasterSettings(data=pathlib.Path(sys.argv[1]), listen='127.0.0.1:' + sys.argv[2]))\n"
)


@contextlib.contextmanager
def process(tmp_path, port=0):
    """A master in a process of its own, ready to serve; and the socket that it tells its states to."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as states, contextlib.suppress(FileNotFoundError):
        states.bind(address)
        states.settimeout(60)
        environment = os.environ | {"NOTIFY_SOCKET": address}
        command = [sys.executable, "-c", SERVE, str(tmp_path / "data"), str(port)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as master:
            try:
                assert states.recv(100) == b"READY=1"
                yield master, states
            finally:
                master.kill()
                os.unlink(address)


def test_the_process_serves_and_stops_on_a_signal(tmp_path):
    with process(tmp_path) as (master, states):
        master.send_signal(signal.SIGTERM)
        assert states.recv(100) == b"STOPPING=1"
        _, log = master.communicate(timeout=20)
    assert master.returncode == 0, log
    assert "serving" in log
    assert "Traceback" not in log


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    """Creates until the master is killed in the middle; whatever got its reply is there after the next start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    acknowledged = []
    for client_id in (1, 2):
        with process(tmp_path, port) as (master, _), channel_to(f"127.0.0.1:{port}") as channel:
            stub = master_pb2_grpc.MasterStub(channel)
            register = master_pb2.RegisterRequest(client_id=client_id, protocol=1)
            session = stub.Register(register, timeout=30, wait_for_ready=True)
            context = common_pb2.Context(session_id=session.session_id, epoch=session.epoch)
            listing = stub.Readdir(master_pb2.ReaddirRequest(context=context, inode=1), timeout=30)
            names = [entry.name for entry in listing.entries]
            assert set(names) >= set(acknowledged)
            assert len(names) <= len(acknowledged) + 1
            dump = list(stub.Dump(master_pb2.DumpRequest(), timeout=30))
            assert list(dump[-1].end.problems) == []
            killer = threading.Timer(0.2, master.kill)
            killer.start()
            with contextlib.suppress(grpc.RpcError):
                for number in itertools.count(1):
                    name = b"%d-%d" % (client_id, number)
                    create = master_pb2.Create(parent=1, name=name, mode=0o644)
                    mutation = master_pb2.MutateRequest(
                        context=context, client_id=client_id, request_id=number, create=create
                    )
                    stub.Mutate(mutation, timeout=30)
                    acknowledged.append(name)
            killer.join()
        assert any(name.startswith(b"%d-" % client_id) for name in acknowledged)
