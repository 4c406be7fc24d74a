import struct

import pytest
from hearthfs.fuse_client.relay import wire


def request(flags: int) -> bytes:
    return struct.pack("<IIQQIIII", 56, wire.INIT, 1, 0, 0, 0, 0, 0) + struct.pack("<IIII", 7, 45, 131072, flags)


def reply(flags: int) -> bytes:
    body = struct.pack("<IIIIHHIIHHI", 7, 38, 131072, flags, 0, 0, 1 << 20, 1, 256, 0, 0) + bytes(28)
    return struct.pack("<IiQ", 16 + len(body), 0, 1) + body


def test_reply_says_what_libfuse_cannot() -> None:
    offered = wire.AUTO_INVAL_DATA | wire.PARALLEL_DIROPS | wire.EXPLICIT_INVAL_DATA | 1
    given = reply(wire.AUTO_INVAL_DATA | wire.HANDLE_KILLPRIV | 1)
    out = wire.edit_init(request(offered), given, 64)
    assert len(out) == len(given)
    (flags,) = struct.unpack_from("<I", out, 28)
    assert flags == wire.PARALLEL_DIROPS | wire.EXPLICIT_INVAL_DATA | 1
    assert struct.unpack_from("<HH", out, 32) == (64, 48)
    assert out[:28] + out[36:] == given[:28] + given[36:]


def test_nothing_is_claimed_that_the_kernel_did_not_offer() -> None:
    out = wire.edit_init(request(0), reply(wire.AUTO_INVAL_DATA), 64)
    assert struct.unpack_from("<I", out, 28)[0] == wire.AUTO_INVAL_DATA


@pytest.mark.parametrize("nodeid", [1, 77, (1 << 63) + (1 << 31) + 5])
def test_a_statfs_request_says_its_inode_where_pyfuse3_hands_it_on(nodeid: int) -> None:
    message = bytearray(struct.pack("=IIQQIIIHH", 40, wire.STATFS, 9, nodeid, 1000, 1001, 4242, 0, 0))
    wire.say_inode(memoryview(message))
    *head, uid, gid, pid, _, _ = struct.unpack("=IIQQIIIHH", message)
    assert head == [40, wire.STATFS, 9, nodeid]
    assert wire.inode_asked(uid, gid, pid) == nodeid


def test_and_without_a_relay_it_does_not() -> None:
    assert wire.inode_asked(1000, 1001, 4242) == 0
