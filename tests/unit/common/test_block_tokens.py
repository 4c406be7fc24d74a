"""Block tokens: what opens what, for whom, until when."""

import random

from hearthfs.common import block_tokens
from hearthfs.common.block_tokens import SETTLE_S, SKEW_S, Heard, Secret, Secrets
from hearthfs.common.errors import AccessDenied
from hearthfs.common.types import BlockKey
from hypothesis import given
from hypothesis import strategies as st

SECRET = Secret(7, b"s" * 32)
KNOWN = block_tokens.by_number([SECRET])
KEY, UID, NOW_S = BlockKey(0x1234, 3), 1000, 1_800_000_000
TOKEN = block_tokens.sign(SECRET, KEY, "r", UID, NOW_S + 60)


def opens(token=TOKEN, key=KEY, mode="r", uid=UID, now_s=NOW_S, secrets=KNOWN):
    try:
        block_tokens.check(secrets, token, key, mode, uid, now_s)
    except AccessDenied as error:
        return str(error) != block_tokens.DENIED  # the text is the same, whatever is wrong
    return True


def test_it_opens_its_block_for_its_user_in_its_mode_and_time():
    assert opens()
    assert not opens(key=BlockKey(0x1235, 3))
    assert not opens(key=BlockKey(0x1234, 4))
    assert not opens(mode="w")
    assert not opens(uid=1001)
    assert opens(now_s=NOW_S + 60 + SKEW_S)
    assert not opens(now_s=NOW_S + 61 + SKEW_S)
    assert not opens(secrets={})
    assert not opens(secrets=block_tokens.by_number([Secret(7, b"t" * 32)]))


def test_a_writer_may_read_what_it_writes():
    token = block_tokens.sign(SECRET, KEY, "w", UID, NOW_S + 60)
    assert opens(token, mode="w")
    assert opens(token, mode="r")


@given(place=st.integers(0, block_tokens.LENGTH - 1), flip=st.integers(1, 255))
def test_any_byte_changed(place, flip):
    changed = bytearray(TOKEN)
    changed[place] ^= flip
    assert not opens(bytes(changed))


@given(st.binary(max_size=2 * block_tokens.LENGTH))
def test_any_bytes(token):
    assert not opens(token)
    assert block_tokens.expires_s(token) >= 0


def test_expiry_is_read_from_the_token():
    assert block_tokens.expires_s(TOKEN) == NOW_S + 60
    assert block_tokens.expires_s(b"") == 0


def test_a_secret_is_not_shown():
    assert "ssss" not in f"{SECRET} {SECRET!r} {[SECRET]}"


def test_a_token_is_good_for_its_life_through_rotations():
    """A worker hears of keys a heartbeat late; whatever is signed opens until it expires, and no key is older than two
    lives."""
    chance = random.Random(1)
    secrets = Secrets(600, chance.randbytes, 0.0, first=2**32 - 2)
    heard = block_tokens.by_number(secrets.known(0.0))
    signed = []
    numbers = set()
    for now_s in range(0, 6000, 15):
        secret = secrets.signing(now_s)
        numbers.add(secret.number)
        signed.append((now_s, block_tokens.sign(secret, KEY, "r", UID, now_s + 600)))
        assert opens(signed[-1][1], now_s=now_s, secrets=heard)
        heard = block_tokens.by_number(secrets.known(now_s))
        assert len(heard) <= 2
        for made_s, token in signed:
            if now_s <= made_s + 600:
                assert opens(token, now_s=now_s, secrets=heard), (made_s, now_s)
            if now_s > made_s + 600 + SKEW_S:
                assert not opens(token, now_s=now_s, secrets=heard)
    assert len(numbers) >= 9


def test_a_new_key_signs_when_workers_have_it():
    secrets = Secrets(600, random.Random(1).randbytes, 0.0, first=1)
    assert secrets.signing(0.0).number == 1
    assert [each.number for each in secrets.known(610.0)] == [1, 2]
    assert secrets.signing(610.0).number == 1
    assert secrets.signing(610.0 + SETTLE_S).number == 2


def test_tokens_outlive_a_restart_of_the_master():
    heard = Heard()
    first = [Secret(number, b"a" * 32) for number in (1, 2)]
    heard.hear(first)
    heard.hear([])  # a master of an older version
    assert sorted(heard.known) == [1, 2]
    heard.hear([Secret(50, b"b" * 32)])
    heard.hear([Secret(50, b"b" * 32)])
    assert sorted(heard.known) == [1, 2, 50]
    heard.hear([Secret(50, b"b" * 32), Secret(51, b"c" * 32)])
    assert sorted(heard.known) == [50, 51]
    heard.hear([Secret(51, b"c" * 32), Secret(52, b"d" * 32)])
    assert sorted(heard.known) == [51, 52]


def test_restarts_in_a_row_leave_no_more_than_two_masters_keys():
    heard = Heard()
    for number in range(0, 100, 10):
        heard.hear([Secret(number, b"a" * 32), Secret(number + 1, b"a" * 32)])
        assert len(heard.known) <= 4
