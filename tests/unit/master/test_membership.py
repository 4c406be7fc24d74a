import pytest
from hearthfs.common.errors import Conflict
from hearthfs.master.membership import DiskState, Member, Membership

SUSPECT_S, LOST_S = 5.0, 30.0


def member(incarnation=1, now_s=0.0, node="n1", address="h:1", paths=("/d",), **changes):
    return Member("w", node, address, incarnation, paths, now_s, **changes)


@pytest.fixture
def members():
    members = Membership(SUSPECT_S, LOST_S)
    members.register(member())
    return members


def beat(members, now_s, incarnation=1, disks=()):
    return members.heartbeat("w", incarnation, disks, now_s)


def test_states_follow_the_age_of_the_heartbeat(members):
    states = []
    for now_s in (1.0, 5.0, 5.1, 30.0, 30.1):
        members.tick(now_s)
        states.append(members.state("w"))
    assert states == ["live", "live", "suspect", "suspect", "lost"]
    assert members.live() == ()
    assert members.state("nobody") == "lost"


def test_changes_are_told_once(members):
    assert members.tick(1.0) == []
    assert [state for _, state in members.tick(6.0)] == ["suspect"]
    assert members.tick(7.0) == []
    assert [state for _, state in members.tick(31.0)] == ["lost"]


def test_a_heartbeat_brings_a_suspect_back(members):
    members.tick(10.0)
    assert beat(members, 10.0) is not None
    assert members.state("w") == "live"


def test_a_lost_worker_is_live_after_its_report(members):
    members.reported(members.find("w"), 0.0)
    members.tick(31.0)
    found = beat(members, 32.0)
    assert found.needs_report
    assert members.state("w") == "suspect"
    members.tick(33.0)
    assert members.state("w") == "suspect"
    members.reported(found, 33.0)
    assert members.state("w") == "live"
    assert not found.needs_report


def test_a_lost_worker_that_registers_is_live_after_its_report(members):
    members.tick(31.0)
    members.register(member(2, 32.0))
    assert members.state("w") == "suspect"
    members.register(member(3, 33.0))
    assert members.state("w") == "suspect"
    members.reported(members.find("w"), 33.0)
    assert members.state("w") == "live"


def test_an_unknown_incarnation_must_register(members):
    assert beat(members, 1.0, incarnation=2) is None
    assert members.heartbeat("other", 1, (), 1.0) is None


def test_one_id_is_one_worker(members):
    with pytest.raises(Conflict, match=r"'w' is in use by h:1 on node n1, heard of 4\.0 s ago"):
        members.register(member(2, 4.0, node="n2", address="h:2"))
    with pytest.raises(Conflict):
        members.register(member(2, 4.0, paths=("/other",)))
    assert beat(members, 4.0) is not None
    members.register(member(2, 9.1, node="n2", address="h:2"))
    assert members.find("w").address == "h:2"
    assert beat(members, 9.2) is None


def test_the_same_process_or_the_same_disks_may_come_back(members):
    members.register(member(1, 1.0, address="h:9"))
    assert members.find("w").address == "h:9"
    members.register(member(2, 1.5, address="h:10"))
    assert members.find("w").incarnation == 2
    assert members.state("w") == "live"


def test_restored_workers_count_when_heard_of():
    members = Membership(SUSPECT_S, LOST_S)
    members.restore(member(1, 100.0, heard=False))
    assert members.state("w") == "suspect"
    assert beat(members, 101.0) is None
    members.tick(131.0)
    assert members.state("w") == "lost"


def test_a_restored_worker_comes_back():
    members = Membership(SUSPECT_S, LOST_S)
    members.restore(member(1, 100.0, heard=False))
    members.register(member(5, 101.0, node="n2"))
    assert members.state("w") == "live"


def test_available_bytes(members):
    states = (("/a", 60, False), ("/b", 90, True), ("/c", 7, False))
    disks = tuple(DiskState(path, 100, 0, available, failed, 0) for path, available, failed in states)
    found = beat(members, 1.0, disks=disks)
    assert found.available_bytes == 60
    found.promised_bytes = 50
    assert found.available_bytes == 10
    found.promised_bytes = 500
    assert found.available_bytes == 0
    assert beat(members, 2.0, disks=disks).available_bytes == 60
    assert beat(members, 3.0).available_bytes == 0
