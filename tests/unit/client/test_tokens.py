"""Block tokens in the client: learned from replies, renewed in time, bounded."""

from hearthfs.client.tokens import EARLY_S, Tokens
from hearthfs.client.workers import blocks_of
from hearthfs.common import block_tokens
from hearthfs.common.block_tokens import Secret
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2, master_pb2, worker_pb2
from hearthfs.worker import access

NOW_S = 1_000_000
KEY = BlockKey(5, 1)


def token(key, expires_s=NOW_S + 600):
    return block_tokens.sign(Secret(1, b"k" * 32), key, "r", 0, expires_s)


def entry(key, given):
    return common_pb2.Entry(extents=[common_pb2.Extent(block=key.block, generation=key.generation, token=given)])


def none(keys):
    raise AssertionError(f"asked for {keys}")


def test_learned_from_every_reply_that_has_some():
    tokens = Tokens(10, lambda: NOW_S)
    keys = [BlockKey(number, 1) for number in range(1, 6)]
    tokens.learn(entry(keys[0], token(keys[0])))
    working = common_pb2.WorkingBlock(block=2, generation=1, token=token(keys[1]))
    tokens.learn(master_pb2.MutateReply(blocks=[working], entry=entry(keys[2], token(keys[2]))))
    tokens.learn(master_pb2.LookupManyReply(blocks=[4, 5], generations=[1, 1], tokens=[token(keys[3]), token(keys[4])]))
    tokens.learn(master_pb2.StatfsReply())
    assert tokens.of(keys, none) == [token(key) for key in keys]
    assert tokens.of([BlockKey(99, 1)], none) == [b""]


def test_who_gets_none_has_none():
    tokens = Tokens(10, lambda: NOW_S)
    tokens.learn(entry(KEY, b""))
    tokens.learn(master_pb2.LookupManyReply(blocks=[4], generations=[1]))
    assert tokens.of([KEY], none) == []


def test_renewed_before_it_expires():
    tokens = Tokens(10, lambda: NOW_S)
    other = BlockKey(6, 1)
    late = token(KEY, NOW_S + EARLY_S - 1)
    tokens.learn(entry(KEY, late))
    tokens.learn(entry(other, token(other)))
    asked = []

    def renew(keys):
        asked.append(list(keys))
        return [token(KEY)]

    assert tokens.of([KEY, other], renew) == [token(KEY), token(other)]
    assert tokens.of([KEY, other], none) == [token(KEY), token(other)]
    assert asked == [[KEY]]


def test_one_that_is_not_renewed_is_shown_while_it_lasts():
    tokens = Tokens(10, lambda: NOW_S)
    tokens.learn(entry(KEY, token(KEY, NOW_S + 1)))
    assert tokens.of([KEY], lambda keys: [b""]) == [token(KEY, NOW_S + 1)]


def test_bounded():
    tokens = Tokens(3, lambda: NOW_S)
    for number in range(1, 10):
        key = BlockKey(number, 1)
        tokens.learn(entry(key, token(key)))
    assert [bool(each) for each in tokens.of([BlockKey(number, 1) for number in range(1, 10)], none)] == [False] * 6 + [
        True
    ] * 3


def test_client_and_worker_name_the_same_blocks_in_the_same_order():
    """For every operation that there is: one that has no rule here would be refused to users."""
    keys = [master_pb2.BlockKey(block=number, generation=1) for number in (3, 4)]
    requests = {
        "open": worker_pb2.OpenBlocks(blocks=keys),
        "create": worker_pb2.CreateBlocks(blocks=keys[:1], copy_from=keys[1]),
        "commit": worker_pb2.CommitBlocks(items=[worker_pb2.CommitItem(key=key) for key in keys]),
        "discard": worker_pb2.DiscardBlocks(blocks=keys),
        "fetch": worker_pb2.FetchBlock(key=keys[0]),
        "renew": worker_pb2.Renew(lease_id=1),
        "hello": worker_pb2.Hello(),
    }
    ops = {field.name for field in worker_pb2.ControlRequest.DESCRIPTOR.oneofs_by_name["op"].fields}
    assert set(requests) == ops
    for op, value in requests.items():
        request = worker_pb2.ControlRequest(**{op: value})
        assert [key for key, _ in access.blocks_of(request)] == blocks_of(request)
