"""Which blocks a caller may open: by token, by lease, by role."""

import pytest
from hearthfs.common import block_tokens, gate
from hearthfs.common.block_tokens import Secret
from hearthfs.common.clock import FakeClock
from hearthfs.common.credentials import Caller
from hearthfs.common.errors import AccessDenied
from hearthfs.common.types import BlockKey
from hearthfs.proto import master_pb2, worker_pb2
from hearthfs.worker.access import Access
from hearthfs.worker.leases import Leases

SECRET, KEY, OTHER = Secret(3, b"s" * 32), BlockKey(5, 1), BlockKey(6, 1)
ANNA, BERT = Caller("user", "user 1000 100", 1000, 100), Caller("user", "user 1001 101", 1001, 101)


class Held:
    def close(self):
        pass


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def leases():
    return Leases(30.0, 10, lambda: 77)


@pytest.fixture
def allows(clock, leases):
    access = Access(lambda: {SECRET.number: SECRET}, leases, clock)

    def allows(caller, **what):
        ((kind, request),) = what.items()
        try:
            getattr(access, kind)(caller, request)
        except AccessDenied:
            return False
        return True

    return allows


def token(clock, key=KEY, mode="r", uid=1000):
    return block_tokens.sign(SECRET, key, mode, uid, int(clock.wall_ns() / 1e9) + 600)


def read(token=b"", key=KEY, lease_id=0):
    return worker_pb2.ReadRequest(block=key.block, generation=key.generation, token=token, lease_id=lease_id)


def wire(key):
    return master_pb2.BlockKey(block=key.block, generation=key.generation)


@pytest.mark.parametrize("caller", [Caller("admin", "token"), Caller("node", "node a")])
def test_nodes_and_operators_need_nothing(allows, caller):
    assert allows(caller, read=read())
    assert allows(caller, write=worker_pb2.WriteHeader(block=5, generation=1))
    assert allows(caller, control=worker_pb2.ControlRequest(discard=worker_pb2.DiscardBlocks(blocks=[wire(KEY)])))


def test_users_need_a_token(allows, clock):
    assert allows(ANNA, read=read(token(clock)))
    assert not allows(BERT, read=read(token(clock)))
    assert not allows(ANNA, read=read())
    assert not allows(gate.NOBODY, read=read(token(clock, uid=gate.NOBODY.uid)))
    assert not allows(ANNA, write=worker_pb2.WriteHeader(block=5, generation=1, token=token(clock)))
    assert allows(ANNA, write=worker_pb2.WriteHeader(block=5, generation=1, token=token(clock, mode="w")))


def test_a_token_that_has_expired(allows, clock):
    given = token(clock)
    clock.advance(600 + block_tokens.SKEW_S + 1)
    assert not allows(ANNA, read=read(given))


def test_a_lease_stands_for_the_token_of_its_block(allows, clock, leases):
    lease_id = leases.grant({KEY: Held()}, clock.monotonic_s())
    assert allows(ANNA, read=read(lease_id=lease_id))
    assert not allows(ANNA, read=read(key=OTHER, lease_id=lease_id))
    assert not allows(ANNA, read=read(lease_id=lease_id + 1))
    clock.advance(31)
    assert not allows(ANNA, read=read(lease_id=lease_id))


def test_a_copy_needs_both_tokens(allows, clock):
    create = worker_pb2.CreateBlocks(blocks=[wire(KEY)], copy_from=wire(OTHER))
    both = [token(clock, KEY, "w"), token(clock, OTHER, "r")]
    assert allows(ANNA, control=worker_pb2.ControlRequest(create=create, tokens=both))
    for tokens in ([], both[:1], both[::-1], [*both, b""]):
        assert not allows(ANNA, control=worker_pb2.ControlRequest(create=create, tokens=tokens))


def test_what_touches_no_block_needs_no_token(allows):
    assert allows(ANNA, control=worker_pb2.ControlRequest(hello=worker_pb2.Hello()))
    assert allows(ANNA, control=worker_pb2.ControlRequest(renew=worker_pb2.Renew(lease_id=9)))
