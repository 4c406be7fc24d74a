"""The relay between an emulated kernel and an emulated daemon, both ends of socket pairs."""

import os
import queue
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hearthfs.fuse_client.relay import channel, wire
from hearthfs.fuse_client.relay.pump import Pump


class World:
    """``kernel`` is what the device is connected to; ioctls are answered here."""

    def __init__(self) -> None:
        self.kernel, self.device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end, self.daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self.kernel, self.daemon):
            each.settimeout(5)
        self.serving: queue.Queue[bool] = queue.Queue()
        self.ended = threading.Event()
        self.said: list[str] = []
        self.pump = Pump(
            self.device.fileno(),
            self.end,
            max_background=64,
            passthrough=True,
            on_serving=self.serving.put,
            on_end=self.ended.set,
            say=self.said.append,
        )
        self.backed: list[bytes] = []
        self.closed: list[int] = []
        self.pump._modes._register = self.register
        self.pump._modes._unregister = self.closed.append
        self.pump.start()

    def register(self, fd: int) -> int:
        self.backed.append(os.pread(fd, 100, 0))
        return 40 + len(self.backed)

    def ask(self, opcode: int, unique: int, nodeid: int, body: bytes) -> bytes:
        """What the daemon gets."""
        self.kernel.send(struct.pack("=IIQQIIIHH", 40 + len(body), opcode, unique, nodeid, 0, 0, 0, 0, 0) + body)
        return self.daemon.recv(1 << 20)

    def answer(self, unique: int, body: bytes, error: int = 0) -> bytes:
        """What the kernel gets."""
        self.daemon.send(struct.pack("=IiQ", 16 + len(body), error, unique) + body)
        return self.kernel.recv(1 << 20)

    def close(self) -> None:
        for each in (self.kernel, self.daemon):
            each.close()
        assert self.ended.wait(5)
        self.device.close()
        self.end.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def opened(world: World, unique: int, nodeid: int, handle: int, flags: int = os.O_RDONLY) -> tuple[int, int, int]:
    world.ask(wire.OPEN, unique, nodeid, struct.pack("=II", flags, 0))
    out = world.answer(unique, struct.pack("=QIi", handle, wire.FOPEN_KEEP_CACHE, 0))
    return struct.unpack_from("=QIi", out, 16)  # type: ignore[return-value]


def test_messages_pass_unchanged(world: World) -> None:
    body = os.urandom(1000)
    assert world.ask(15, 1, 5, body)[40:] == body
    assert world.answer(1, body)[16:] == body


def test_an_offered_file_backs_the_handle_and_is_given_back_with_the_last_release(
    world: World, tmp_path: object
) -> None:
    path = os.path.join(str(tmp_path), "block")
    with open(path, "wb") as file:
        file.write(b"bytes")
    fd = os.open(path, os.O_RDONLY)
    channel.send_offer(world.daemon, 11, fd, writes=False)
    os.close(fd)
    assert opened(world, 1, 5, 11) == (11, wire.FOPEN_PASSTHROUGH | wire.FOPEN_NOFLUSH, 41)
    assert opened(world, 2, 5, 12) == (12, wire.FOPEN_PASSTHROUGH | wire.FOPEN_NOFLUSH, 41)
    assert opened(world, 3, 5, 13, os.O_RDWR) == (13, wire.FOPEN_PASSTHROUGH | wire.FOPEN_DIRECT_IO, 41)
    assert opened(world, 4, 6, 14) == (14, wire.FOPEN_KEEP_CACHE, 0)
    assert world.backed == [b"bytes"]
    for unique, handle in ((5, 11), (6, 12)):
        world.ask(wire.RELEASE, unique, 5, struct.pack("=QIIQ", handle, 0, 0, 0))
    assert world.closed == []
    world.ask(wire.RELEASE, 7, 5, struct.pack("=QIIQ", 13, 0, 0, 0))
    assert world.closed == [41]


def test_where_the_kernel_also_writes_a_writer_asks_nobody(world: World, tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "block")
    with open(path, "w+b") as file:
        channel.send_offer(world.daemon, 11, file.fileno(), writes=True)
        assert opened(world, 1, 5, 11, os.O_WRONLY) == (11, wire.FOPEN_PASSTHROUGH, 41)
        channel.send_offer(world.daemon, 12, file.fileno(), writes=True)
        assert opened(world, 2, 5, 12) == (12, wire.FOPEN_PASSTHROUGH, 41)  # its close publishes, as every close


def test_the_daemon_is_not_asked_for_capabilities(world: World) -> None:
    for unique, name in ((1, b"security.capability\0"), (2, b"user.other\0"), (3, b"security.capability2\0")):
        body = struct.pack("=II", 100, 0) + name
        world.kernel.send(struct.pack("=IIQQIIIHH", 40 + len(body), wire.GETXATTR, unique, 5, 0, 0, 0, 0, 0) + body)
    assert wire.reply(world.kernel.recv(100)) == (16, -61, 1)
    assert [wire.request(world.daemon.recv(1000)).unique for _ in range(2)] == [2, 3]


def test_a_failed_open_counts_for_nothing(world: World, tmp_path: object) -> None:
    world.ask(wire.OPEN, 1, 5, struct.pack("=II", 0, 0))
    world.answer(1, b"", error=-2)
    assert len(world.pump._modes) == 0


def test_init_says_passthrough_only_where_the_kernel_has_it(world: World) -> None:
    for flags_2, expected in ((wire.PASSTHROUGH_2, True), (0, False)):
        body = struct.pack("=IIIII", 7, 45, 131072, wire.INIT_EXT, flags_2) + bytes(44)
        world.ask(wire.INIT, 1, 0, body)
        reply = struct.pack("=IIIIHHIIHHII", 7, 38, 131072, 0, 0, 0, 1 << 20, 1, 256, 0, 0, 0) + bytes(24)
        out = world.answer(1, reply)
        assert bool(struct.unpack_from("=I", out, 16 + 32)[0] & wire.PASSTHROUGH_2) == expected
        assert struct.unpack_from("=I", out, 16 + 36)[0] == int(expected)
        assert world.serving.get(timeout=5) is expected
