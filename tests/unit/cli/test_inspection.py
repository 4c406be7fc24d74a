import errno
import stat

import pytest
from hearthfs.cli import inspection
from hearthfs.common import checksums
from hearthfs.common.errors import Unavailable
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import worker_pb2

PACKED = checksums.pack([7])
EXTENT = common.Extent(
    block=0xB10C, generation=2, length_bytes=100, valid_bytes=90, digest=checksums.digest(PACKED, 100), sealed=True
)


def entry(*extents):
    attributes = common.Attributes(inode=5, mode=stat.S_IFREG | 0o640, nlink=1, size_bytes=90, version=3)
    worker = common.WorkerAddress(worker_id="w1", node_id="n1", address="10.0.0.1:7071")
    return common.Entry(attributes=attributes, extents=extents, replicas=[worker] if extents else [])


def says(**changes):
    values = {"length_bytes": 100, "checksums": PACKED, **changes}
    return lambda address, key: worker_pb2.ControlReply(errnos=[0], blocks=[worker_pb2.BlockFile(**values)])


def test_a_good_replica():
    record = inspection.describe("/f", entry(EXTENT), says())
    assert record["block"]["key"] == "000000000000b10c.2"
    assert record["block"]["sealed"] is True
    assert record["replicas"][0]["state"] == "ok"
    assert record["replicas"][0]["checksums"] == ["0000000000000007"]
    text = "\n".join(inspection.lines(record))
    for part in (
        "/f: file, 90 bytes, version 3",
        "mode 0640",
        "90 of 100 bytes valid, sealed",
        "replica on w1",
        "MiB 0",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("ask", "state"),
    [
        (says(length_bytes=99), "has 99 bytes, not 100"),
        (says(checksums=checksums.pack([8])), "not those of this version"),
        (lambda *_: worker_pb2.ControlReply(errnos=[errno.EIO], message="no such block"), "no such block"),
        (lambda *_: worker_pb2.ControlReply(errnos=[errno.EIO]), "EIO"),
        (lambda *_: worker_pb2.ControlReply(), "EPROTO"),
    ],
)
def test_a_replica_that_is_not_what_it_should_be(ask, state):
    assert state in inspection.describe("/f", entry(EXTENT), ask)["replicas"][0]["state"]


def test_a_worker_that_does_not_answer():
    def ask(*_):
        raise Unavailable("connection refused")

    assert (
        inspection.describe("/f", entry(EXTENT), ask)["replicas"][0]["state"] == "does not answer: connection refused"
    )


def test_a_file_without_replica_says_so():
    lost = entry(EXTENT)
    del lost.replicas[:]
    assert "cannot be read" in "\n".join(inspection.lines(inspection.describe("/f", lost, says())))


def test_an_empty_file_and_a_symlink():
    assert inspection.describe("/f", entry(), says())["block"] is None
    link = common.Entry(attributes=common.Attributes(mode=stat.S_IFLNK | 0o777), symlink_target=b"a/b")
    assert "points to a/b" in "\n".join(inspection.lines(inspection.describe("/l", link, says())))
