import contextlib
import json
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hearthfs.common import checksums, data_stream
from hearthfs.common.errors import (
    BlockCorrupt,
    Conflict,
    NewerFormat,
    SettingsError,
    Unavailable,
    WrongCluster,
)
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2, master_pb2, worker_pb2, worker_pb2_grpc
from hearthfs.tests.support.channels import channel_to
from hearthfs.tests.support.cluster import free_port
from hearthfs.tests.unit.worker.parts import SocketClient, key_message, pattern, sums
from prometheus_client.utils import floatToGoString

KEY = BlockKey(0x1234, 1)
DATA = pattern(3 << 20)


def put(worker, key=KEY, data=DATA, sync=False):
    client = SocketClient(worker.settings.socket_path)
    reply, (fd,) = client.call(create=worker_pb2.CreateBlocks(blocks=[key_message(key)]))
    os.pwrite(fd, data, 0)
    os.close(fd)
    item = worker_pb2.CommitItem(key=key_message(key), length_bytes=len(data), checksums=sums(data))
    reply, _ = client.call(commit=worker_pb2.CommitBlocks(items=[item], sync=sync))
    client.close()
    assert list(reply.errnos) == [0], reply.message


def read(worker, key=KEY, data=DATA):
    into = memoryview(bytearray(len(data)))
    digest = checksums.digest(sums(data), len(data))
    with channel_to(worker.address) as channel:
        data_stream.read_into(channel, key, 0, into, block_length=len(data), digest=digest, timeout_s=20, what="test")
    return bytes(into)


def snapshot(path):
    return sorted((str(p.relative_to(path)), p.read_bytes() if p.is_file() else b"") for p in path.rglob("*"))


def test_a_block_written_by_descriptor_is_read_by_grpc_and_known_to_the_master(make_worker, master):
    worker = make_worker()
    put(worker, sync=True)
    master.wait(lambda: KEY in master.known)
    assert read(worker) == DATA


def copy_order(*sources, key=KEY, data=DATA):
    return master_pb2.CopyOrder(
        block=key.block,
        generation=key.generation,
        length_bytes=len(data),
        digest=checksums.digest(sums(data), len(data)),
        sources=sources,
        deadline_ms=20_000,
    )


def test_the_master_orders_copies_and_hears_how_they_end(make_worker, master):
    source, target = make_worker("w1"), make_worker("w2")
    put(source)
    have = common_pb2.WorkerAddress(worker_id="w1", address=source.address)
    lack = common_pb2.WorkerAddress(worker_id="w2", address=target.address)
    master.copy["w2"] = [copy_order(lack, have), copy_order(lack, key=BlockKey(7, 1))]
    master.wait(lambda: len(master.copied) == 2)
    good, bad = sorted(master.copied, key=lambda result: result.error_number)
    assert (good.block, good.error_number, list(good.bad_sources)) == (KEY.block, 0, ["w2"])
    assert (bad.block, bad.error_number != 0, list(bad.bad_sources)) == (7, True, ["w2"])
    assert read(target) == DATA
    master.wait(lambda: sum(report.block == KEY.block for each in master.heartbeats for report in each.added) >= 2)


def test_a_nudge_brings_a_heartbeat(make_worker, master):
    master.heartbeat_ms = 60_000
    make_worker()
    master.wait(lambda: master.full_reports)
    seen = len(master.heartbeats)
    master.nudge.set()
    master.wait(lambda: len(master.heartbeats) > seen, 20)


def test_a_doubted_block_is_looked_at(make_worker, master):
    worker = make_worker()
    put(worker)
    master.wait(lambda: KEY in master.known)
    del master.known[KEY]
    master.verify = [KEY, BlockKey(7, 1)]
    master.wait(lambda: KEY in master.known)
    master.wait(lambda: any(key.block == 7 for each in master.heartbeats for key in each.removed))


def test_a_block_goes_from_worker_to_worker(make_worker, master):
    first, second = make_worker("w1"), make_worker("w2")
    put(first)
    client = SocketClient(second.settings.socket_path)
    fetch = worker_pb2.FetchBlock(
        key=key_message(KEY),
        length_bytes=len(DATA),
        digest=checksums.digest(sums(DATA), len(DATA)),
        sources=[first.address],
    )
    for fresh in (True, False):
        reply, (fd,) = client.call(fetch=fetch)
        assert list(reply.errnos) == [0], reply.message
        assert (reply.blocks[0].checksums, reply.blocks[0].verified) == (sums(DATA), fresh)
        assert os.pread(fd, len(DATA) + 1, 0) == DATA
        os.close(fd)
    client.close()
    assert read(second) == DATA
    master.wait(lambda: any(h.worker_id == "w2" and h.added for h in master.heartbeats))


def test_blocks_outlive_a_restart(make_worker, master):
    worker = make_worker()
    put(worker)
    worker.stop()
    count = len(master.full_reports)
    again = make_worker()
    master.wait(lambda: len(master.full_reports) > count)
    assert KEY in master.full_reports[-1]
    assert read(again) == DATA


def test_a_damaged_file_found_after_a_restart_is_not_delivered_and_reported(make_worker, master, tmp_path):
    worker = make_worker()
    put(worker)
    worker.stop()
    file = tmp_path / "w1" / "blocks" / "34" / str(KEY)
    file.chmod(0o600)
    with file.open("r+b") as stream:
        stream.write(b"!")
    again = make_worker()
    with pytest.raises(BlockCorrupt):
        read(again)
    master.wait(lambda: any(k.block == KEY.block for h in master.heartbeats for k in h.removed))


def test_the_lease_by_grpc_survives_the_order_to_delete(make_worker, master):
    worker = make_worker()
    put(worker)
    with channel_to(worker.address) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        request = worker_pb2.ControlRequest(open=worker_pb2.OpenBlocks(blocks=[key_message(KEY)]))
        assert stub.Control(request, timeout=20).lease_id
    master.delete = [KEY]
    master.wait(lambda: any(k.block == KEY.block for h in master.heartbeats for k in h.removed))
    assert not list((Path(worker.settings.disks[0]) / "blocks" / "34").iterdir())
    assert read(worker) == DATA


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health(make_worker, master):
    port = free_port()
    worker = make_worker(telemetry_listen=f"127.0.0.1:{port}")
    put(worker)
    read(worker)
    master.wait(lambda: KEY in master.known)
    status, text = get(f"http://127.0.0.1:{port}/metrics")
    assert status == 200
    for line in (
        f'hearth_worker_read_bytes_total{{door="grpc"}} {floatToGoString(len(DATA))}',
        "hearth_worker_blocks 1.0",
        'hearth_worker_requests_total{door="socket",op="create"} 1.0',
    ):
        assert line in text
    assert f'hearth_worker_disk_used_bytes{{disk="{worker.settings.disks[0]}"}}' in text
    assert get(f"http://127.0.0.1:{port}/healthz") == (200, "ok\n")
    master.refusal = Unavailable("away")
    count = 0
    while get(f"http://127.0.0.1:{port}/healthz")[0] == 200 and count < 500:
        count += 1
    status, text = get(f"http://127.0.0.1:{port}/healthz")
    assert (status, "does not answer" in text) == (503, True)


# ---------------------------------------------------------------- starts that fail


@pytest.fixture
def used(make_worker, master, tmp_path):
    worker = make_worker()
    put(worker)
    worker.stop()
    return tmp_path / "w1"


def refused(make_worker, used, error, match, **settings):
    """The start fails for this reason with one line, and nothing on the disk changes."""
    before = snapshot(used)
    with pytest.raises(error, match=match) as raised:
        make_worker(**settings)
    assert "\n" not in str(raised.value)
    assert snapshot(used) == before


def test_a_wrong_master_address(make_worker, used):
    refused(make_worker, used, Unavailable, "name another --master", master="127.0.0.1:1")


def test_a_master_of_another_cluster(make_worker, used, master):
    master.cluster_id = "c2"
    refused(make_worker, used, WrongCluster, "c2")
    master.cluster_id = "c1"
    make_worker()


def test_a_port_in_use(make_worker, used):
    with taken_port() as port:
        refused(make_worker, used, Conflict, "is in use", listen=f"127.0.0.1:{port}")
        refused(make_worker, used, SettingsError, "telemetry_listen", telemetry_listen=f"127.0.0.1:{port}")


@contextlib.contextmanager
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_worker_id_that_is_in_use(make_worker, used, master):
    master.refusal = Conflict("worker id 'w1' is in use by 127.0.0.1:5")
    refused(make_worker, used, Conflict, "in use by 127.0.0.1:5")


def test_the_disk_of_another_worker(make_worker, used):
    refused(make_worker, used, Conflict, "belongs to worker 'w1', not 'w2'", worker_id="w2")


def test_the_disk_of_another_cluster(make_worker, used):
    refused(make_worker, used, WrongCluster, "belongs to cluster c1, not c3", cluster_id="c3")


def test_data_of_a_newer_version(make_worker, used):
    identity = used / "hearth-disk.json"
    identity.write_text(json.dumps(json.loads(identity.read_text()) | {"schema": 7}))
    refused(make_worker, used, NewerFormat, "schema 7")


def test_a_socket_that_cannot_be(make_worker, used, tmp_path):
    (tmp_path / "file").write_text("x")
    refused(make_worker, used, SettingsError, "something else stands there", socket=str(tmp_path / "file"))


def test_a_directory_that_is_not_writable(make_worker, used):
    refused(make_worker, used, SettingsError, "not writable", disks=("/proc/sys",))


def test_a_start_that_failed_can_be_repeated_with_better_settings(make_worker, used):
    refused(make_worker, used, Unavailable, "--master", master="127.0.0.1:1")
    assert read(make_worker()) == DATA


def test_disks_of_two_clusters(make_worker, used, tmp_path, master):
    master.cluster_id = "c2"
    make_worker("w1", disks=(str(tmp_path / "other"),)).stop()
    refused(make_worker, used, WrongCluster, "different clusters", disks=(str(used), str(tmp_path / "other")))
