import os
import threading

import pytest
from hearthfs.common.clock import FakeClock, SystemClock
from hearthfs.common.errors import Conflict, StaleEpoch, Unavailable, WrongCluster
from hearthfs.common.types import PROTOCOL, BlockKey
from hearthfs.proto import master_pb2
from hearthfs.tests.unit.worker.parts import FakeMaster, put
from hearthfs.worker import master_link
from hearthfs.worker.master_link import MasterLink
from hearthfs.worker.metrics import Metrics
from hearthfs.worker.reports import pages

A, B, C = (BlockKey(block, 1) for block in (1, 2, 3))


@pytest.fixture
def make_link(store, make_store, master):
    made = []

    def make(*, clock=None, address=None, cluster_id="c1", delay_s=60.0, report_s=1e6, scanned=True):
        request = master_pb2.RegisterWorkerRequest(
            worker_id="w1", node_id="n1", address="a:1", cluster_id=cluster_id, incarnation=5, protocol=PROTOCOL
        )
        clock = clock or SystemClock()
        link = MasterLink(address or master.address, request, make_store.changes, clock, Metrics(), delay_s, report_s)
        if scanned:
            link.scan_done()
        made.append(link)
        return link

    yield make
    for link in made:
        link.stop()


@pytest.fixture
def link(make_link, store):
    link = make_link()
    link.register()
    link.start(store)
    return link


def test_it_registers_reports_all_and_then_what_changes(store, master, make_link):
    put(store, A, b"a")
    link = make_link()
    assert link.register() == "c1"
    link.start(store)
    master.wait(lambda: master.full_reports)
    assert list(master.full_reports[0]) == [A]
    put(store, B, b"bb")
    master.wait(lambda: set(master.known) == {A, B})
    assert (master.known[B].length_bytes, master.known[B].digest) == (2, store.catalog.find(B)[1].digest)
    store.delete(A)
    master.wait(lambda: set(master.known) == {B})
    assert master.heartbeats[-1].incarnation == 5
    assert master.heartbeats[-1].disks[0].blocks == 1
    assert link.healthy


def test_the_full_report_waits_for_the_scan_and_heartbeats_do_not(store, master, make_link):
    link = make_link(scanned=False)
    link.register()
    link.start(store)
    master.wait(lambda: len(master.heartbeats) >= 3)
    assert not master.full_reports
    link.scan_done()
    master.wait(lambda: master.full_reports)


def test_a_large_report_comes_in_pages(store, master, link, monkeypatch):
    master.wait(lambda: master.full_reports)
    monkeypatch.setattr(master_link, "pages", lambda reports: pages(reports, 2))
    for block in range(5):
        put(store, BlockKey(block, 1), b"x")
    master.report_all = True
    master.wait(lambda: len(master.full_reports) >= 2)
    assert len(master.full_reports[-1]) == 5


def test_orders_to_delete_are_carried_out_and_confirmed(store, master, link):
    put(store, A, b"a")
    put(store, B, b"b")
    master.wait(lambda: set(master.known) == {A, B})
    master.delete = [A, C]
    master.wait(lambda: any({k.block for k in h.removed} >= {1, 3} for h in master.heartbeats))
    assert [r.key for r in store.reports()] == [B]


def test_a_delete_that_fails_is_not_confirmed(store, master, link, make_store):
    put(store, A, b"a")
    master.wait(lambda: A in master.known)
    make_store.calls.errors["delete"] = OSError(5, "injected")
    count = len(master.heartbeats)
    master.delete = [A]
    master.wait(lambda: len(master.heartbeats) >= count + 3)
    assert A in master.known


def test_a_master_that_forgot_the_worker_gets_everything_again(store, master, link):
    put(store, A, b"a")
    master.wait(lambda: A in master.known and master.full_reports)
    count = len(master.full_reports)
    master.known.clear()
    master.forget = True
    master.wait(lambda: len(master.registrations) == 2)
    master.wait(lambda: len(master.full_reports) > count and A in master.known)
    assert master.registrations[1].disks[0].blocks == 1


def test_a_master_with_a_newer_epoch_gets_everything_again(store, master, link):
    master.wait(lambda: master.full_reports)
    master.epoch = 2
    master.refusal = StaleEpoch("epoch 2")
    count = len(master.heartbeats)
    threading.Event().wait(0.1)
    master.refusal = None
    master.wait(lambda: len(master.registrations) >= 2 and len(master.heartbeats) > count + 1)
    assert link.epoch == 2
    assert master.heartbeats[-1].context.epoch == 2


def test_orders_of_a_replaced_master_are_refused(store, master, link):
    put(store, A, b"a")
    master.wait(lambda: A in master.known)
    link.epoch = 9
    master.delete = [A]
    master.wait(lambda: not master.delete)
    threading.Event().wait(0.15)
    assert store.open_read(A).close() is None
    assert not link.healthy


def test_while_the_master_is_away_changes_are_kept(store, master, make_link):
    link = make_link()
    link.register()
    link.start(store)
    master.wait(lambda: master.full_reports)
    master.refusal = Unavailable("away")
    put(store, A, b"a")
    put(store, B, b"b")
    store.delete(B)
    for _ in range(200):
        if not link.healthy:
            break
        threading.Event().wait(0.01)
    assert not link.healthy
    assert store.open_read(A).close() is None
    master.refusal = None
    master.wait(lambda: set(master.known) == {A})


def test_working_blocks_that_nobody_knows_go_at_once_and_committed_ones_later(store, master, make_link):
    clock = FakeClock()
    put(store, A, b"a")
    put(store, B, b"b")
    os.close(store.create(C).fd)
    master.unknown = {B, C}
    link = make_link(clock=clock)
    link.register()
    link.start(store)
    master.wait(lambda: any(k.block == C.block for h in master.heartbeats for k in h.removed))
    assert [r.key for r in store.reports()] == [A, B]
    clock.advance(59)
    count = len(master.heartbeats)
    master.wait(lambda: len(master.heartbeats) > count + 2)
    assert [r.key for r in store.reports()] == [A, B]
    clock.advance(1)
    master.wait(lambda: any(k.block == B.block for h in master.heartbeats for k in h.removed))
    assert [r.key for r in store.reports()] == [A]


def test_a_block_that_is_known_again_after_the_next_report_stays(store, master, make_link):
    clock = FakeClock()
    put(store, A, b"a")
    master.unknown = {A}
    link = make_link(clock=clock)
    link.register()
    link.start(store)
    master.wait(lambda: master.full_reports)
    master.unknown = set()
    master.report_all = True
    master.wait(lambda: len(master.full_reports) >= 2)
    clock.advance(100)
    count = len(master.heartbeats)
    master.wait(lambda: len(master.heartbeats) > count + 2)
    assert A in {r.key for r in store.reports()}


def test_a_full_report_comes_from_time_to_time(store, master, make_link):
    clock = FakeClock()
    link = make_link(clock=clock, report_s=600)
    clock.advance(1000)
    link.register()
    link.start(store)
    master.wait(lambda: len(master.full_reports) == 1)
    clock.advance(599)
    count = len(master.heartbeats)
    master.wait(lambda: len(master.heartbeats) > count + 2)
    assert len(master.full_reports) == 1
    clock.advance(1)
    master.wait(lambda: len(master.full_reports) == 2)


def test_another_cluster_and_a_clash_are_told_at_once(master, make_link):
    with pytest.raises(WrongCluster):
        make_link(cluster_id="c9").register_at_start(5)
    master.refusal = Conflict("worker id 'w1' is in use")
    with pytest.raises(Conflict, match="in use"):
        make_link().register_at_start(5)


def test_a_master_of_another_cluster_is_refused_by_the_worker_too(make_link, master):
    class Careless(FakeMaster):
        def RegisterWorker(self, request, context):
            return master_pb2.RegisterWorkerReply(epoch=1, cluster_id="c2", heartbeat_ms=50)

    careless = Careless()
    try:
        with pytest.raises(WrongCluster, match="cluster c2"):
            make_link(address=careless.address).register()
    finally:
        careless.stop()


def test_nobody_at_the_address_is_told_after_a_while(make_link):
    with pytest.raises(Unavailable, match=r"no master answers at 127.0.0.1:1 .*name another --master"):
        make_link(address="127.0.0.1:1").register_at_start(0.1)
