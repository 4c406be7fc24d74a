"""The worker's data port over a real store."""

import contextlib
import socket
import struct
import threading
from contextvars import ContextVar

import pytest
from hearthfs.common import checksums
from hearthfs.common.clock import FakeClock
from hearthfs.common.data_socket import (
    ADMITTED,
    GREETING,
    NONCE_BYTES,
    PROOF,
    TICKET,
    prove,
    receive_into,
    receive_message,
    send_message,
)
from hearthfs.common.errors import Conflict, SettingsError
from hearthfs.common.types import BlockKey
from hearthfs.proto import worker_pb2 as pb
from hearthfs.tests.unit.worker.parts import block_path, pattern, put, sums
from hearthfs.worker import data_door
from hearthfs.worker.data_door import DataDoor
from hearthfs.worker.leases import Leases
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.service import BlockStreams

KEY = BlockKey(0x51, 1)
DATA = pattern((5 << 20) + 123)
CHUNK = checksums.CHUNK_BYTES


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def leases():
    made = Leases(10, 100, iter(range(1, 1000)).__next__)
    yield made
    made.close()


@pytest.fixture
def door(store, leases, metrics):
    made = DataDoor("127.0.0.1", 0, 3, "w1")
    made.start(BlockStreams(store, leases, FakeClock(), metrics), metrics)
    yield made
    made.stop(0)


class Caller:
    def __init__(self, door, greeting=GREETING, ticket=None):
        port, given = door.invite()
        number, secret = TICKET.unpack(ticket or given)
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.settimeout(None)
        self.socket.sendall(greeting)
        nonce, admitted = memoryview(bytearray(NONCE_BYTES)), memoryview(bytearray(1))
        self.admitted = False
        with contextlib.suppress(ConnectionResetError):
            if receive_into(self.socket, nonce):
                self.socket.sendall(PROOF.pack(number, prove(secret, nonce)))
                self.admitted = receive_into(self.socket, admitted) and admitted == ADMITTED

    def ask(self, **fields):
        """(reply, payload); None when the door closed the connection instead."""
        request = {"block": KEY.block, "generation": KEY.generation, "worker_id": "w1", **fields}
        try:
            send_message(self.socket, pb.ReadRequest(**request))
        except (ConnectionResetError, BrokenPipeError):
            return None
        return self.answer()

    def answer(self):
        try:
            data = receive_message(self.socket, 1 << 20)
            if data is None:
                return None
            reply = pb.DataReply.FromString(data)
            payload = memoryview(bytearray(reply.header.payload_bytes))
            if len(payload) and not receive_into(self.socket, payload):
                return None
            return reply, bytes(payload)
        except (ConnectionResetError, BrokenPipeError):
            return None


@pytest.fixture
def caller(door):
    made = Caller(door)
    yield made
    made.socket.close()


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 0), (0, CHUNK), (CHUNK, 2 * CHUNK), (5 * CHUNK, 123), (5 * CHUNK, 0)]
)
def test_ranges_are_sent(store, caller, metrics, offset, length):
    put(store, KEY, DATA)
    end = offset + length if length else len(DATA)
    for _ in range(2):
        reply, payload = caller.ask(offset_bytes=offset, length_bytes=length)
        assert payload == DATA[offset:end]
        assert reply.header.checksums == sums(DATA)
        assert reply.header.block_length_bytes == len(DATA)
    assert metrics.read_bytes.labels("data")._value.get() == 2 * (end - offset)


def test_an_empty_block_is_sent(store, caller):
    put(store, KEY, b"")
    reply, payload = caller.ask()
    assert (reply.error, payload) == ("", b"")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"block": 9}, "NotFound"),
        ({"offset_bytes": 1}, "InvalidArgument"),
        ({"offset_bytes": 9 << 20}, "InvalidArgument"),
    ],
)
def test_what_cannot_be_sent_is_said_and_the_connection_goes_on(store, caller, fields, error):
    put(store, KEY, DATA)
    assert caller.ask(**fields)[0].error == error
    assert caller.ask()[1] == DATA


def test_a_leased_block_is_sent_after_its_deletion(store, leases, caller):
    put(store, KEY, DATA)
    leases.grant({KEY: store.open_read(KEY)}, 0)
    store.delete(KEY)
    assert caller.ask()[1] == DATA


def test_a_damaged_length_is_never_sent(store, caller):
    put(store, KEY, DATA)
    with block_path(store, KEY).open("r+b") as file:
        file.truncate(CHUNK + 1)
    assert caller.ask()[0].error == "BlockCorrupt"
    assert caller.ask()[0].error == "NotFound"


def test_a_file_that_is_cut_while_it_is_sent_ends_the_connection_and_the_block(store, caller, make_store, monkeypatch):
    put(store, KEY, DATA)
    real = make_store.calls.pread_into

    def cut(step, fd, view, offset):
        got = real(step, fd, view, offset)
        return got if offset < 2 * CHUNK else got // 2

    monkeypatch.setattr(make_store.calls, "pread_into", cut)
    assert caller.ask() is None
    assert store.catalog.find(KEY) is None


def test_a_disk_that_fails_ends_the_connection_only(store, door, caller, make_store):
    put(store, KEY, DATA)
    make_store.calls.errors["read"] = OSError(5, "injected")
    assert caller.ask() is None
    make_store.calls.errors.clear()
    again = Caller(door)
    assert again.ask()[1] == DATA
    again.socket.close()


@pytest.mark.parametrize("junk", [b"\xff" * 64, struct.pack("<I", 5) + b"\xff" * 5, struct.pack("<I", 60) + b"x"])
def test_junk_ends_its_connection_and_no_other(store, door, caller, junk):
    put(store, KEY, DATA)
    bad = Caller(door)
    bad.socket.sendall(junk)
    with contextlib.suppress(OSError):  # the worker was quicker
        bad.socket.shutdown(socket.SHUT_WR)
    assert bad.answer() is None
    bad.socket.close()
    assert caller.ask()[1] == DATA


@pytest.mark.parametrize("wrong", [{"greeting": b"GET / HT"}, {"ticket": bytes(40)}, {"ticket": b"other secret"}])
def test_who_has_no_ticket_is_not_served(door, wrong):
    if wrong.get("ticket") == b"other secret":
        number, _ = TICKET.unpack(door.invite()[1])
        wrong = {"ticket": TICKET.pack(number, b"x" * 32)}
    stranger = Caller(door, **wrong)
    assert not stranger.admitted
    assert stranger.ask() is None
    stranger.socket.close()


def test_old_tickets_go_first(door, monkeypatch):
    monkeypatch.setattr(data_door, "MAX_TICKETS", 3)
    oldest, *newer = [door.invite()[1] for _ in range(3)]
    callers = [Caller(door, ticket=ticket) for ticket in (oldest, newer[-1])]
    assert [each.admitted for each in callers] == [False, True]
    for each in callers:
        each.socket.close()


def test_a_connection_acts_for_whom_its_ticket_was_given_to(store, door, monkeypatch):
    put(store, KEY, DATA)
    who = ContextVar("who", default="nobody")
    seen = []
    real = door._streams.open_range
    monkeypatch.setattr(door._streams, "open_range", lambda request: seen.append(who.get()) or real(request))
    tickets = []
    for name in ("one", "other"):
        who.set(name)
        tickets.append(door.invite()[1])
    who.set("somebody else")
    for ticket in tickets:
        caller = Caller(door, ticket=ticket)
        assert caller.ask()[1] == DATA
        caller.socket.close()
    assert seen == ["one", "other"]


def test_who_means_another_worker_is_not_served(store, caller):
    put(store, KEY, DATA)
    assert caller.ask(worker_id="w2") is None


def test_connections_have_a_bound(store, door):
    put(store, KEY, DATA)
    callers = [Caller(door) for _ in range(3)]
    assert all(each.ask()[1] == DATA for each in callers)
    more = Caller(door)
    assert more.ask() is None
    for each in [*callers, more]:
        each.socket.close()


def test_a_client_that_takes_nothing_loses_its_connection(store, door, monkeypatch):
    monkeypatch.setattr(data_door, "STUCK_S", 0.2)
    put(store, KEY, bytes(64 << 20))
    slow = Caller(door)
    send_message(slow.socket, pb.ReadRequest(block=KEY.block, generation=KEY.generation))
    threads = list(door._connections.values())
    while not threads:
        threads = list(door._connections.values())
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    slow.socket.close()


def test_stopping_waits_for_what_is_being_sent(store, door, caller, make_store):
    put(store, KEY, DATA)
    begun, go = threading.Event(), threading.Event()
    real = make_store.calls.pread_into

    def slow(step, fd, view, offset):
        begun.set()
        go.wait(20)
        return real(step, fd, view, offset)

    make_store.calls.pread_into = slow
    got = []
    reader = threading.Thread(target=lambda: got.append(caller.ask()))
    reader.start()
    assert begun.wait(20)
    stopper = threading.Thread(target=door.stop, args=(20,))
    stopper.start()
    go.set()
    reader.join(20)
    stopper.join(20)
    assert got[0][1] == DATA
    assert not stopper.is_alive()


def test_addresses_that_cannot_be_had(door):
    with pytest.raises(Conflict, match="data_port"):
        DataDoor("127.0.0.1", door.port, 3, "w1")
    with pytest.raises(SettingsError):
        DataDoor("192.0.2.1", 0, 3, "w1")
    with pytest.raises(SettingsError):
        DataDoor("no-such-host.invalid", 0, 3, "w1")
