import os

import grpc
from hearthfs.common import checksums, data_stream
from hearthfs.common.types import BlockKey
from hearthfs.proto import worker_pb2, worker_pb2_grpc
from hearthfs.tests.unit.worker.parts import SocketClient, key_message, pattern, sums

KEY = BlockKey(0x1234, 1)
DATA = pattern(3 << 20)


def test_a_block_written_by_descriptor_is_read_by_grpc(make_worker, master):
    worker = make_worker()
    client = SocketClient(worker.settings.socket_path)
    reply, fds = client.call(create=worker_pb2.CreateBlocks(blocks=[key_message(KEY)]))
    assert list(reply.errnos) == [0]
    assert list(reply.fd_indexes) == [1]
    os.pwrite(fds[0], DATA, 0)
    os.close(fds[0])
    item = worker_pb2.CommitItem(key=key_message(KEY), length_bytes=len(DATA), checksums=sums(DATA))
    reply, _ = client.call(commit=worker_pb2.CommitBlocks(items=[item], sync=True))
    assert list(reply.errnos) == [0], reply.message
    client.close()
    master.wait(lambda: KEY in master.known)
    into = memoryview(bytearray(len(DATA)))
    with grpc.insecure_channel(worker.address, options=data_stream.CHANNEL_OPTIONS) as channel:
        data_stream.read_into(
            channel,
            KEY,
            0,
            into,
            block_length=len(DATA),
            digest=checksums.digest(sums(DATA), len(DATA)),
            timeout_s=5,
            what="test",
        )
        stats = worker_pb2_grpc.WorkerStub(channel).Stats(worker_pb2.StatsRequest(), timeout=5)
    assert into == DATA
    assert stats.blocks == 1
