"""The master's volume is served from elsewhere: nothing is lost, and the one that was replaced serves nobody."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hearthfs.cli.supervisor import Daemon, hearth_command
from hearthfs.common.errors import HearthError, StaleEpoch, Unavailable, from_rpc_error
from hearthfs.proto import common_pb2, master_pb2, master_pb2_grpc
from hearthfs.tests.support.channels import channel_to
from hearthfs.tests.support.cluster import Cluster, free_port

from .conftest import check_sound, outcome, wait_for

DATA = random.Random(21).randbytes(300_000)


def ask(address: str, epoch: int) -> None:
    """A call of a client that knows ``epoch``. Raises: HearthError."""
    with channel_to(address) as channel:
        request = master_pb2.StatfsRequest(context=common_pb2.Context(epoch=epoch))
        try:
            master_pb2_grpc.MasterStub(channel).Statfs(request, timeout=5)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"master at {address}") from None


def epoch_of(address: str) -> int:
    with channel_to(address) as channel:
        request = master_pb2.RegisterRequest(client_id=1, kind="test", protocol=1)
        return master_pb2_grpc.MasterStub(channel).Register(request, timeout=5).epoch


@pytest.mark.mount
def test_the_volume_serves_under_another_address(make_cluster) -> None:
    cluster: Cluster = make_cluster(workers=1, mounts=1)
    place = cluster.mountpoint(1) / "d"
    place.mkdir()
    for number in range(50):
        (place / f"f{number}").write_bytes(DATA[number:])
    old_address, old_epoch = cluster.master_address, epoch_of(cluster.master_address)
    cluster.kill("master")
    cluster.move_master()
    cluster.start("master")
    assert cluster.master_address != old_address
    cluster.restart("worker1")
    cluster.restart("mount1")
    for number in range(50):
        assert (place / f"f{number}").read_bytes() == DATA[number:]
    (place / "new").write_bytes(DATA)
    client = cluster.client(None)
    assert client.read_bytes("/d/new") == DATA
    assert epoch_of(cluster.master_address) > old_epoch
    with pytest.raises(StaleEpoch):
        ask(cluster.master_address, old_epoch)
    check_sound(cluster)


def test_a_second_master_on_the_volume_is_refused(make_cluster) -> None:
    cluster: Cluster = make_cluster(workers=1)
    client = cluster.client(1)
    client.write_bytes("/f", DATA)
    with pytest.raises(Unavailable, match=str(cluster.pid("master"))), master_on(cluster.data(), cluster.directory):
        pass
    assert client.read_bytes("/f") == DATA
    check_sound(cluster)


def test_a_master_that_was_replaced_stops(make_cluster, tmp_path: Path) -> None:
    """An old copy of the volume starts while the cluster lives on the newer one."""
    cluster: Cluster = make_cluster(workers=1)
    client = cluster.client(1)
    client.write_bytes("/before", DATA)
    cluster.term("master")
    shutil.copytree(cluster.data(), tmp_path / "copy")
    for _ in range(2):
        cluster.restart("master")
    client.write_bytes("/after", DATA)
    with master_on(tmp_path / "copy", tmp_path) as (old, address):
        assert epoch_of(address) < epoch_of(cluster.master_address)
        # Whoever has seen the new master tells the old one that it is not the master any more.
        with pytest.raises(HearthError):
            ask(address, epoch_of(cluster.master_address))
        assert old.wait(10)
        assert old.exit_status == 1
    wait_for("the worker", lambda: outcome(lambda: client.read_bytes("/before")) == "ok")
    assert client.read_bytes("/after") == DATA
    check_sound(cluster)


@contextmanager
def master_on(data: Path, directory: Path) -> Iterator[tuple[Daemon, str]]:
    address = f"127.0.0.1:{free_port()}"
    command = hearth_command("master", "--data", str(data), "--listen", address)
    daemon = Daemon("other", command, log=directory / "other.log", environment={"HEARTH_CONFIG": "/dev/null"})
    try:
        daemon.start()
        yield daemon, address
    finally:
        daemon.close()
