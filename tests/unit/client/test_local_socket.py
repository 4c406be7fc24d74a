import array
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hearthfs.client.local_socket import LocalWorker, decode
from hearthfs.common.errors import BlockCorrupt, Busy, DeadlineExceeded, NotFound, TooBig, Unavailable, WrongCluster
from hearthfs.proto import worker_pb2 as pb
from hearthfs.proto.master_pb2 import BlockKey

Answer = Callable[[pb.ControlRequest], tuple[pb.ControlReply, list[int]] | None]


def fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


class FakeWorker:
    """Answers each message with what ``answer`` says; None: says nothing, and an exception closes the connection."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.answer = answer
        self.path = str(path)
        self.connections: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.threads: list[threading.Thread] = []
        self.start(self.accept)

    def start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self.start(lambda connection=connection: self.serve(connection))

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 20):
                request = pb.ControlRequest.FromString(data)
                if request.WhichOneof("op") == "hello":
                    answer = (pb.ControlReply(worker_id="w1", cluster_id="c1"), [])
                else:
                    try:
                        answer = self.answer(request)
                    except ConnectionError:
                        return
                if answer is None:
                    continue
                reply, fds = answer
                reply.request_id = reply.request_id or request.request_id
                socket.send_fds(connection, [reply.SerializeToString()], fds)

    def drop_connections(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.drop_connections()
        for thread in self.threads:
            thread.join(5)


@pytest.fixture
def block(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "block"
    path.write_bytes(b"hello")
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[FakeWorker, LocalWorker]]]:
    made: list[FakeWorker | LocalWorker] = []

    def build(answer: Answer, **options: object) -> tuple[FakeWorker, LocalWorker]:
        fake = FakeWorker(tmp_path / f"worker-{len(made)}.sock", answer)
        local = LocalWorker(fake.path, **options)  # type: ignore[arg-type]
        made.extend((local, fake))
        return fake, local

    yield build
    for each in made:
        each.close()


def open_request(count: int = 1) -> pb.ControlRequest:
    return pb.ControlRequest(open=pb.OpenBlocks(blocks=[BlockKey() for _ in range(count)]))


def test_descriptors_arrive_match_their_block_and_are_closed(make: Callable, block: int) -> None:
    def answer(request: pb.ControlRequest) -> tuple[pb.ControlReply, list[int]]:
        return pb.ControlReply(errnos=[0, 2, 0], message="no such block", fd_indexes=[2, 0, 1]), [block, block]

    _, local = make(answer)
    with local.call(open_request(3), 5.0) as reply:
        assert reply.error(0) is None
        assert isinstance(reply.error(1), NotFound)
        assert os.pread(reply.descriptor(0), 10, 0) == b"hello"
        assert not os.get_inheritable(reply.descriptor(0))
        kept = reply.take(2)
        lost = reply.descriptor(0)
    assert os.pread(kept, 10, 0) == b"hello"
    os.close(kept)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(lost)


def test_a_hundred_calls_leave_descriptors_flat(make: Callable, block: int) -> None:
    _, local = make(lambda request: (pb.ControlReply(errnos=[0], fd_indexes=[1]), [block]))
    local.call(open_request(), 5.0).close()
    before = fd_count()
    for _ in range(100):
        local.call(open_request(), 5.0).close()
    assert fd_count() == before


def test_absent_worker_is_none_not_an_error(tmp_path: Path) -> None:
    local = LocalWorker(str(tmp_path / "nobody.sock"))
    assert local.identify(1.0) is None
    with pytest.raises(Unavailable, match=r"nobody\.sock"):
        local.call(open_request(), 1.0)


def test_identify_asks_once(make: Callable) -> None:
    fake, local = make(lambda request: None)
    assert local.identify(5.0) == "w1"
    assert local.identify(5.0) == "w1"
    assert len(fake.connections) == 1


def test_a_restarted_worker_is_reached_again(make: Callable) -> None:
    fake, local = make(lambda request: (pb.ControlReply(errnos=[0]), []))
    local.call(open_request(), 5.0).close()
    fake.drop_connections()
    local.call(open_request(), 5.0).close()


def test_a_worker_that_dies_in_a_call_is_unavailable(make: Callable) -> None:
    def die(request: pb.ControlRequest) -> None:
        raise ConnectionError

    _, local = make(die)
    before = fd_count()
    with pytest.raises(Unavailable):
        local.call(open_request(), 5.0)
    assert fd_count() <= before + 1


def test_a_silent_worker_costs_the_deadline_and_its_connection(make: Callable, block: int) -> None:
    silent = True

    def answer(request: pb.ControlRequest) -> tuple[pb.ControlReply, list[int]] | None:
        return None if silent else (pb.ControlReply(errnos=[0], fd_indexes=[1]), [block])

    _, local = make(answer)
    with pytest.raises(DeadlineExceeded):
        local.call(open_request(), 0.05)
    silent = False
    with local.call(open_request(), 5.0) as reply:
        assert os.pread(reply.descriptor(0), 5, 0) == b"hello"


def test_busy_connections_are_waited_for_only_so_long(make: Callable) -> None:
    entered, leave = threading.Event(), threading.Event()

    def answer(request: pb.ControlRequest) -> tuple[pb.ControlReply, list[int]]:
        entered.set()
        leave.wait(10)
        return pb.ControlReply(errnos=[0]), []

    _, local = make(answer, connections=1)
    thread = threading.Thread(target=lambda: local.call(open_request(), 10.0).close())
    thread.start()
    entered.wait(10)
    with pytest.raises(Busy):
        local.call(open_request(), 0.01)
    leave.set()
    thread.join()


def test_another_clusters_worker_is_refused(make: Callable) -> None:
    _, local = make(lambda request: None, cluster_id=lambda: "c2")
    with pytest.raises(WrongCluster, match="'c1'"):
        local.call(open_request(), 5.0)
    assert local.identify(5.0) is None


def received(count: int, fd: int) -> tuple[list[tuple[int, int, bytes]], list[int]]:
    fds = [os.dup(fd) for _ in range(count)]
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())], fds


@pytest.mark.parametrize(
    ("data", "flags", "kind"),
    [
        (b"", 0, Unavailable),
        (b"\xff\xff\xff", 0, BlockCorrupt),
        (pb.ControlReply().SerializeToString(), socket.MSG_TRUNC, TooBig),
        (pb.ControlReply(errnos=[0]).SerializeToString(), socket.MSG_CTRUNC, Busy),
    ],
)
def test_a_message_of_no_use_closes_what_came_with_it(data: bytes, flags: int, kind: type, block: int) -> None:
    ancillary, fds = received(3, block)
    with pytest.raises(kind):
        decode(data, ancillary, flags)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
