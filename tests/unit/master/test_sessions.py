import pytest
from hearthfs.common.errors import StaleSession
from hearthfs.master import sessions as sessions_module
from hearthfs.master.change import Touch
from hearthfs.master.sessions import Debt, Invalidation, Session, Sessions, coalesced, without_names

LEASE_S = 5.0
IDLE_S = 300.0
A, B, C = 11, 12, 13


def make(number, now_s=0.0, client_id=0, holds_grants=True, **changes):
    return Session(
        session_id=number,
        client_id=client_id or number + 100,
        kind="mount",
        node_id="n",
        name="x",
        holds_grants=holds_grants,
        seen_s=now_s,
        renewed_s=now_s,
        **changes,
    )


@pytest.fixture
def sessions():
    """A and B are mounts, C a connector."""
    sessions = Sessions(LEASE_S, IDLE_S)
    for session in (make(A), make(B), make(C, holds_grants=False)):
        sessions.open(session)
    return sessions


def name_touch(directory, name=b"f", inode=0):
    return Touch(directory, name, inode, False, (directory,))


def invalidate(sessions, *touches, by=B):
    return sessions.invalidate(touches, by)


def test_only_holders_are_told(sessions):
    a = sessions.find(A)
    assert invalidate(sessions, name_touch(5)) == []
    sessions.grant(a, 5)
    assert invalidate(sessions, name_touch(6)) == []
    assert invalidate(sessions, name_touch(5)) == [Debt(A, 1)]
    assert sessions.next_event(a) == (1, [Invalidation(5, b"f", 0, False)])


def test_the_session_that_changes_is_not_told(sessions):
    sessions.grant(sessions.find(A), 5)
    assert invalidate(sessions, name_touch(5), by=A) == []


def test_sessions_without_grants_are_never_told(sessions):
    sessions.grant(sessions.find(C), 5)
    assert invalidate(sessions, name_touch(5)) == []
    assert sessions.grants == 0


def test_an_inode_is_covered_by_its_directories(sessions):
    sessions.grant(sessions.find(A), 5)
    touch = Touch(0, b"", 9, True, (9, 5))
    assert invalidate(sessions, touch) == [Debt(A, 1)]
    assert sessions.next_event(sessions.find(A)) == (1, [Invalidation(0, b"", 9, True)])


def test_a_debt_is_paid_by_the_ack(sessions):
    a = sessions.find(A)
    sessions.grant(a, 5)
    debt = invalidate(sessions, name_touch(5))[0]
    assert not sessions.is_paid(debt)
    sessions.next_event(a)
    assert not sessions.is_paid(debt)
    sessions.ack(a, 1, 1.0)
    assert sessions.is_paid(debt)
    assert not a.owes


def test_changes_before_the_event_is_sent_share_it(sessions):
    a = sessions.find(A)
    sessions.grant(a, 5)
    debts = [invalidate(sessions, name_touch(5, b"%d" % number))[0] for number in range(3)]
    invalidate(sessions, name_touch(5, b"0"))
    assert set(debts) == {Debt(A, 1)}
    event, invalidations = sessions.next_event(a)
    assert event == 1
    assert [item.name for item in invalidations] == [b"0", b"1", b"2"]
    later = invalidate(sessions, name_touch(5, b"late"))[0]
    sessions.ack(a, 1, 1.0)
    assert sessions.is_paid(debts[0])
    assert not sessions.is_paid(later)
    assert a.owes


def test_an_ack_cannot_run_ahead(sessions):
    a = sessions.find(A)
    sessions.grant(a, 5)
    debt = invalidate(sessions, name_touch(5))[0]
    sessions.ack(a, 1, 1.0)
    assert not sessions.is_paid(debt)


def test_pings_are_answered_while_nothing_is_owed(sessions):
    a = sessions.find(A)
    assert sessions.ping(a, 1, 1.0) == 1
    assert a.renewed_s == 1.0
    sessions.grant(a, 5)
    invalidate(sessions, name_touch(5))
    assert sessions.ping(a, 2, 2.0) == 0
    sessions.next_event(a)
    assert sessions.ping(a, 3, 3.0) == 0
    assert a.renewed_s == 1.0
    assert sessions.ack(a, 1, 4.0) == 3
    assert a.renewed_s == 3.0  # when the ping came, not when it was answered


def test_who_owes_past_the_lease_is_fenced(sessions):
    a = sessions.find(A)
    sessions.ping(a, 1, 1.0)
    sessions.grant(a, 5)
    debt = invalidate(sessions, name_touch(5))[0]
    sessions.ping(a, 2, 5.0)  # alive, but it does not acknowledge
    assert sessions.next_fence_s() == 6.0
    assert sessions.expire(6.0) == []
    assert sessions.expire(6.1) == [a]
    assert sessions.is_paid(debt)
    assert sessions.fenced == 1
    assert sessions.next_fence_s() is None
    with pytest.raises(StaleSession):
        sessions.require(A, 7.0)
    assert sessions.grants == 0
    assert invalidate(sessions, name_touch(5)) == []


def test_a_silent_session_that_owes_nothing_keeps_its_grants(sessions):
    a = sessions.find(A)
    sessions.grant(a, 5)
    assert sessions.expire(100.0) == []
    assert sessions.require(A, 100.0) is a
    invalidate(sessions, name_touch(5))
    assert sessions.expire(100.0) == [a]  # its lease was over long ago: nobody waits for it


def test_idle_sessions_end(sessions):
    sessions.require(A, 100.0)
    sessions.ping(sessions.find(B), 1, 100.0)
    assert [s.session_id for s in sessions.expire(IDLE_S + 1)] == [C]
    assert [s.session_id for s in sessions.expire(IDLE_S + 101)] == [A, B]
    assert len(sessions) == 0


def test_a_new_session_of_a_client_ends_the_old(sessions):
    a = sessions.find(A)
    sessions.grant(a, 5)
    debt = invalidate(sessions, name_touch(5))[0]
    assert sessions.open(make(20, client_id=a.client_id)) == A
    assert sessions.is_paid(debt)
    assert sessions.find(A) is None
    assert invalidate(sessions, name_touch(5)) == []
    assert sessions.open(make(21)) == 0


def test_restored_sessions_hold_everything_for_a_lease():
    sessions = Sessions(LEASE_S, IDLE_S)
    sessions.open(make(A, 10.0, everything=True, restored=True))
    sessions.open(make(B, 10.0, client_id=55, everything=True, restored=True))
    debts = invalidate(sessions, name_touch(123), by=C)
    assert [debt.session_id for debt in debts] == [A, B]
    sessions.open(make(30, 12.0, client_id=55))
    assert [sessions.is_paid(debt) for debt in debts] == [False, True]
    assert sessions.expire(15.0) == []
    assert [s.session_id for s in sessions.expire(15.1)] == [A]
    assert sessions.is_paid(debts[0])


def test_a_replaced_stream_gets_again_what_was_not_acknowledged(sessions):
    a = sessions.find(A)
    first = sessions.attach(a)
    sessions.grant(a, 5)
    debt = invalidate(sessions, name_touch(5, b"lost"))[0]
    sessions.next_event(a)
    invalidate(sessions, name_touch(5, b"waiting"))
    assert sessions.attach(a) != first
    event, invalidations = sessions.next_event(a)
    assert [item.name for item in invalidations] == [b"lost", b"waiting"]
    sessions.ack(a, event, 1.0)
    assert sessions.is_paid(debt)
    assert not a.owes
    assert sessions.next_event(a) is None


def test_too_many_grants_become_all(sessions, monkeypatch):
    monkeypatch.setattr(sessions_module, "GRANTS_MAX", 3)
    a = sessions.find(A)
    sessions.grant(a, 1, 2, 3, 4)
    assert sessions.grants == 0
    assert invalidate(sessions, name_touch(99)) == [Debt(A, 1)]
    sessions.end(A)
    assert invalidate(sessions, name_touch(99)) == []


def test_pending_is_bounded(sessions, monkeypatch):
    monkeypatch.setattr(sessions_module, "PENDING_MAX", 10)
    a = sessions.find(A)
    sessions.grant(a, 5)
    for number in range(100):
        invalidate(sessions, name_touch(5, b"%d" % number))
    _, invalidations = sessions.next_event(a)
    assert len(invalidations) <= 11
    assert Invalidation(5, b"", 0, False) in invalidations


def test_many_names_of_one_directory_become_one():
    crowd = [Invalidation(5, b"%d" % number, number, number % 2 == 0) for number in range(100)]
    other = Invalidation(6, b"x", 0, False)
    result = coalesced([*crowd, other])
    assert result[0] == Invalidation(5, b"", 0, False)
    assert other in result
    assert Invalidation(0, b"", 2, True) in result
    assert Invalidation(0, b"", 1, False) in result
    assert coalesced(crowd[:10]) == crowd[:10]


def test_without_names_keeps_inodes():
    items = [Invalidation(5, b"a", 7, True), Invalidation(5, b"b", 0, False), Invalidation(0, b"", 8, False)]
    expected = [Invalidation(5, b"", 0, False), Invalidation(0, b"", 7, True), Invalidation(0, b"", 8, False)]
    assert without_names(items) == expected
