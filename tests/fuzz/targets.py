"""What takes bytes from others: each target takes any bytes, and may raise nothing but errors of our family.

``tests/fuzz/test_targets.py`` drives them with hypothesis; ``python -m hearthfs.tests.fuzz.atheris_run TARGET`` with
coverage, for as long as one likes.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

from google.protobuf.message import DecodeError
from hearthfs.cli import mount_helper
from hearthfs.client import paths as client_paths
from hearthfs.common import block_tokens, credentials
from hearthfs.common.block_tokens import Secret
from hearthfs.common.errors import AccessDenied, HearthError
from hearthfs.common.settings import parse_bytes
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.settings import parse_fstab_options
from hearthfs.master import codec, commands, journal, lookups, machine, namespace
from hearthfs.master.tables import MemoryStore
from hearthfs.master.view import View
from hearthfs.proto import master_pb2, worker_pb2
from hearthfs.worker import access, disk, index
from hearthfs.worker.control import pace_of
from hearthfs.worker.settings import DiskSetting, Floor

SESSION, CLIENT = 70, 7


def _machine() -> MemoryStore:
    store = MemoryStore()
    begin = (
        commands.BeginEpoch("fuzz"),
        commands.RegisterSession(SESSION, CLIENT, "node", "sdk", "fuzz", False),
        commands.RegisterWorker("w1", "node", "127.0.0.1:1", 1, ("/disk",)),
        commands.Mkdir(1, b"d", 0o777, 0, 0),
        commands.Create(2, b"f", 0o644, 1000, 100, worker_id="w1"),
    )
    with store.batch() as batch:
        for number, command in enumerate(begin):
            machine.apply(batch, commands.Request(command, number))
    return store


def wire(data: bytes) -> None:
    """A mutation from a client, applied as nobody in particular and as a user; and a request to a worker."""
    with contextlib.suppress(DecodeError):
        request = master_pb2.MutateRequest.FromString(data)
        store = _machine()
        for number, user in enumerate((None, commands.User(1000, 100)), 1):
            with contextlib.suppress(HearthError):
                command = codec.command(request, lambda node, size, avoid, count: ["w1"] * count, ("w1",))
                with store.batch() as batch:
                    outcome = machine.apply(
                        batch,
                        commands.Request(command, 100 + number, CLIENT, number, session_id=SESSION, user=user),
                    )
                codec.mutate_reply(outcome.result.reply, lambda workers: []).SerializeToString()
    with contextlib.suppress(DecodeError, HearthError):
        control = worker_pb2.ControlRequest.FromString(data)
        pace_of(control, room_is_short=True)
        list(access.blocks_of(control))


def journal_record(data: bytes) -> None:
    """A journal record that a disk has changed, decoded and replayed."""
    with contextlib.suppress(HearthError):
        record = journal.decode(data)
        with MemoryStore().batch() as batch:
            machine.replay(batch, record)


def block_index(data: bytes) -> None:
    """A record of a worker's index, with the right checksum and with whatever stands there."""
    key = index._pack_key(BlockKey(5, 1))
    found = index._unseal(key, index._seal(key, data))
    if found is not None:
        assert index._unseal(key, index._seal(key, index._encoder.encode(found))) == found
    assert index._unseal(key, data) is None or len(data) >= 8


def names_and_paths(data: bytes) -> None:
    """Names and paths, from the SDK, the wire, and block directories; addresses and sizes from operators."""
    with contextlib.suppress(HearthError):
        path = client_paths.normalise(data)
        assert path.startswith(b"/")
        assert path == b"/" or not {b"", b"."} & set(path.split(b"/")[1:])
    with contextlib.suppress(HearthError):
        namespace.check_name(data)
        assert 0 < len(data) <= 255
        assert not set(b"/\0") & set(data)
    with MemoryStore().snapshot() as reader, contextlib.suppress(HearthError):
        lookups.resolve(View(reader), data, False, lookups.Walk())
    text = data.decode("latin-1")
    key = disk.parse_name(text)
    assert key is None or disk.file_name(key) == text or text.rpartition(".")[2].startswith("0")
    assert key is None or "/" not in disk.file_name(key)
    for parse in (DiskSetting.parse, Floor.parse, parse_bytes):
        with contextlib.suppress(ValueError, OverflowError):
            parse(text)
    with contextlib.suppress(ValueError):
        mount_helper.parse(text.split("\n"))
    with contextlib.suppress(HearthError):
        parse_fstab_options("m:1", "/mnt", text)


def tokens(data: bytes) -> None:
    """Block tokens and names of callers: nothing made up opens anything."""
    secret = Secret(1, b"k" * 32)
    with contextlib.suppress(AccessDenied):
        block_tokens.check(dict.fromkeys((0, 1), secret), data, BlockKey(1, 1), "r", 0, 0)
        raise AssertionError(f"{data!r} opened a block")
    block_tokens.expires_s(data)
    caller = credentials.parse_name(data.decode("latin-1"))
    assert caller is None or caller.role in ("admin", "master", "node", "user")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "wire": wire,
    "journal": journal_record,
    "block-index": block_index,
    "paths": names_and_paths,
    "tokens": tokens,
}


def seeds() -> dict[str, list[bytes]]:
    """Inputs that are good, for a fuzzer to change."""
    ops = [
        {"create": master_pb2.Create(parent=2, name=b"x", mode=0o644, allocate=True)},
        {"mkdir": master_pb2.Mkdir(parent=1, name=b"x", mode=0o755)},
        {"symlink": master_pb2.Symlink(parent=2, name=b"x", target=b"../y")},
        {"link": master_pb2.Link(inode=3, parent=2, name=b"g")},
        {"unlink": master_pb2.Unlink(parent=2, name=b"f")},
        {"rename": master_pb2.Rename(parent=2, name=b"f", new_parent=1, new_name=b"f")},
        {"setattr": master_pb2.Setattr(inode=3, mode=0o600, size_bytes=9)},
        {"set_xattr": master_pb2.SetXattr(inode=3, name=b"user.x", value=b"1")},
        {"publish": master_pb2.Publish(inode=3, block=1, generation=1, length_bytes=9, size_bytes=9, worker_id="w1")},
        {"allocate": master_pb2.Allocate(count=3)},
        {"put_many": master_pb2.PutMany(parent=2, blocks=[1], generations=[1], lengths_bytes=[1], digests=[1])},
        {"report_bad_replica": master_pb2.ReportBadReplica(block=1, generation=1, worker_id="w1")},
    ]
    record = journal.Record(number=1, request=commands.Request(commands.Mkdir(1, b"x", 0o755, 0, 0), 1, 7, 1))
    far = journal.Record(number=1, request=commands.Request(commands.Mkdir(-1, b"x", 0o755, 0, 0), 1, 7, 1))
    block = index.BlockRecord(length_bytes=9, checksums=b"c" * 8, digest=1, disk_bytes=4096, inode=1, ctime_ns=1)
    return {
        "wire": [master_pb2.MutateRequest(**op).SerializeToString() for op in ops],
        "journal": [journal._encoder.encode(each) for each in (record, far)],
        "block-index": [index._encoder.encode(block)],
        "paths": [b"/a/../b//c", b"00000000000000ff.1", b"/data:10GiB", b"m:1\n/mnt\n-o\nro,node_id=n1"],
        "tokens": [block_tokens.sign(Secret(1, b"q" * 32), BlockKey(1, 1), "r", 0, 1 << 31), b"user 1000 100",
                   struct.pack("<IIc", 1, 1 << 31, b"r") + bytes(16)],
    }  # fmt: skip
