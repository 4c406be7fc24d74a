"""The master restarts, hangs or is not there yet while the SDK works."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hearthfs.client.client import Client
from hearthfs.common.errors import HearthError
from hearthfs.tests.support.cluster import Cluster

from .conftest import check_sound


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(workers=1)


def test_every_mutation_once_through_kills_of_the_master(cluster: Cluster) -> None:
    """Exclusive creates and unlinks of own names: a second application would be Exists or NotFound."""
    client = cluster.client(1, timeout_s=60)
    client.mkdir("/d")
    problems: list[BaseException] = []
    stop = threading.Event()
    done = [0, 0]

    def work(number: int) -> None:
        try:
            while not stop.is_set():
                path = f"/d/{number}-{done[number]}"
                client.open(path, "xb").close()
                assert client.put_many([path], [path.encode()]) == [None]
                assert client.read_bytes(path) == path.encode()
                if done[number] % 2:
                    client.remove(path)
                done[number] += 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.4)
        cluster.kill("master")
        cluster.start("master")
    before = list(done)
    end = time.monotonic() + 30
    while min(now - then for now, then in zip(done, before, strict=True)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    expected = {f"{number}-{step}" for number in range(2) for step in range(0, done[number], 2)}
    assert set(client.listdir("/d")) == expected
    check_sound(cluster)


def test_a_file_being_written_outlives_master_and_worker(cluster: Cluster) -> None:
    client = cluster.client(1, timeout_s=60)
    with client.open("/f", "wb", buffering=0) as file:
        file.write(b"one")
        cluster.kill("master")
        cluster.kill("worker1")
        file.write(b"two")
        cluster.start("master")
        cluster.start("worker1")
        file.write(b"three")
    assert client.read_bytes("/f") == b"onetwothree"


def test_a_hanging_master_costs_its_pause(cluster: Cluster) -> None:
    client = cluster.client(1)
    client.write_bytes("/f", b"x")
    cluster.stop("master")
    timer = threading.Timer(1.5, lambda: cluster.cont("master"))
    timer.start()
    start = time.monotonic()
    assert client.stat("/f").st_size == 1
    assert time.monotonic() - start < 8
    timer.join()


def test_calls_end_by_their_deadline_while_the_master_hangs(cluster: Cluster) -> None:
    client = cluster.client(1)
    client.write_bytes("/f", b"x")
    cluster.stop("master")
    try:
        start = time.monotonic()
        with pytest.raises(HearthError):
            client.lookup_many("/", ["f"], timeout_s=1.0)
        (error,) = client.get_many(["/f"], [bytearray(1)], timeout_s=1.0)
        assert error is not None
        (error,) = client.put_many(["/g"], [b"x"], timeout_s=1.0)
        assert error is not None
        assert time.monotonic() - start < 6
    finally:
        cluster.cont("master")
    assert client.read_bytes("/f") == b"x"


@contextlib.contextmanager
def black_hole(port: int) -> Iterator[None]:
    """A port on which connection attempts get no answer: the queue of a listener that accepts nothing is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield


def test_connecting_into_silence_ends_and_starts_afresh(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=1, start=False)
    port = int(cluster.master_address.rpartition(":")[2])
    with Client(cluster.master_address) as client:
        with black_hole(port):
            start = time.monotonic()
            with pytest.raises(HearthError):
                client.core.metadata.statfs(client.core.deadline(2.0))
            assert time.monotonic() - start < 4
        cluster.start("master")
        start = time.monotonic()
        client.statvfs()
        assert time.monotonic() - start < 6


def test_a_new_master_elsewhere_in_time_is_one_session_more(cluster: Cluster) -> None:
    client = cluster.client(1)
    client.mkdir("/d")
    generation = client.core.session.ticket().generation
    cluster.restart("master")
    threads = [threading.Thread(target=client.stat, args=("/d",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.core.session.ticket().generation == generation + 1
