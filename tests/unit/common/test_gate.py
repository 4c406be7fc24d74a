"""What is counted and logged of refused calls; that a handler knows its caller."""

import types

import pytest
from hearthfs.common import gate
from hearthfs.common.credentials import Caller
from hearthfs.common.errors import NotPermitted, Unauthenticated

DUMP = "/hearthfs.v1.Master/Dump"


class Shown:
    """Credentials that know who calls."""

    def __init__(self, caller):
        self._caller = caller

    def caller(self, method, context):
        if self._caller is None:
            raise Unauthenticated("none")
        return self._caller


CONTEXT = types.SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")


def admit(caller, method, counts=None):
    refusals = gate.Refusals((counts if counts is not None else []).append)
    return gate.admit(Shown(caller), refusals, method, CONTEXT)


@pytest.mark.parametrize("role", ["admin", "node", "user", "master", "nobody"])
@pytest.mark.parametrize("method", [*gate.RIGHTS, "/made/up"])
def test_the_table_decides(role, method):
    allowed = role in gate.RIGHTS.get(method, {"admin"})
    counts = []
    if allowed:
        assert admit(Caller(role, role), method, counts).role == role
        assert counts == []
    else:
        with pytest.raises(NotPermitted):
            admit(Caller(role, role), method, counts)
        assert counts == ["NotPermitted"]


def test_nobody_outside_of_a_call():
    assert gate.caller() == gate.NOBODY
    assert not gate.caller().trusted


def test_all_are_counted_and_few_logged(monkeypatch):
    lines, counts, now = [], [], [0.0]
    monkeypatch.setattr(gate, "log", types.SimpleNamespace(warning=lambda event, **fields: lines.append(fields)))
    refusals = gate.Refusals(counts.append, lambda: now[0])
    for _ in range(100):
        refusals.note(Unauthenticated("x"), DUMP, "", "peer")
    refusals.note(NotPermitted("x"), DUMP, "user 1 1", "peer")
    assert len(counts) == 101
    assert [(line["method"], line["caller"]) for line in lines] == [(DUMP, ""), (DUMP, "user 1 1")]
    now[0] = gate.LOG_EVERY_S
    refusals.note(Unauthenticated("x"), DUMP, "", "peer")
    assert len(lines) == 3
    for number in range(3 * gate.LOGGED_MAX):
        refusals.note(Unauthenticated("x"), DUMP, str(number), "peer")
    assert len(refusals._logged_s) <= gate.LOGGED_MAX
