import threading

import pytest
from hearthfs.client.session import Identity, Session
from hearthfs.common.errors import DeadlineExceeded, Unavailable
from hearthfs.proto import master_pb2 as pb
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def reply(session: int, epoch: int = 1) -> pb.RegisterReply:
    return pb.RegisterReply(session_id=session, epoch=epoch, cluster_id="c1", lease_ms=5000)


def test_registration_says_who_and_remembers_the_answer() -> None:
    session = Session(Identity(node_id="n1", kind="mount", name="host:1:/mnt", holds_grants=True), client_id=77)
    request = session.register_request()
    assert (request.client_id, request.node_id, request.kind, request.holds_grants) == (77, "n1", "mount", True)
    session.registered(reply(5, epoch=3))
    assert session.context().session_id == 5
    assert session.epoch == 3
    assert session.lease_s == 5.0
    assert session.register_request().cluster_id == "c1"  # from now on only this cluster


def test_client_ids_are_random_and_never_zero() -> None:
    ids = {Session(Identity()).client_id for _ in range(100)}
    assert len(ids) == 100
    assert 0 not in ids


def test_threads_that_fail_together_register_once() -> None:
    session = Session(Identity())
    calls = []
    gate = threading.Barrier(8)

    def register(request: pb.RegisterRequest) -> pb.RegisterReply:
        calls.append(request)
        return reply(len(calls))

    def fail_and_renew() -> None:
        seen = session.ticket()
        gate.wait()
        session.renew(seen, register, 10.0)

    threads = [threading.Thread(target=fail_and_renew) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert session.ticket().generation == 1


def test_a_failed_registration_leaves_the_next_caller_its_turn() -> None:
    session = Session(Identity())
    seen = session.ticket()

    def refuse(request: pb.RegisterRequest) -> pb.RegisterReply:
        raise Unavailable("down")

    with pytest.raises(Unavailable):
        session.renew(seen, refuse, 1.0)
    assert session.is_current(seen)
    assert session.renew(seen, lambda request: reply(9), 1.0).session_id == 9


def test_waiting_for_another_threads_registration_has_a_deadline() -> None:
    session = Session(Identity())
    entered, leave = threading.Event(), threading.Event()

    def hang(request: pb.RegisterRequest) -> pb.RegisterReply:
        entered.set()
        leave.wait(10)
        return reply(1)

    thread = threading.Thread(target=lambda: session.renew(session.ticket(), hang, 10.0))
    thread.start()
    entered.wait(10)
    with pytest.raises(DeadlineExceeded):
        session.renew(session.ticket(), hang, 0.01)
    leave.set()
    thread.join()


def test_a_retry_keeps_its_number_in_a_new_session() -> None:
    session = Session(Identity(), client_id=4)
    first = session.renew(session.ticket(), lambda request: reply(1, 1), 1.0)
    number = session.begin()
    request = pb.MutateRequest(unlink=pb.Unlink(parent=1, name=b"x"))
    session.stamp(request, number, first)
    before = pb.MutateRequest.FromString(request.SerializeToString())
    second = session.renew(first, lambda request: reply(2, 2), 1.0)
    session.stamp(request, number, second)
    assert (before.request_id, before.client_id) == (request.request_id, request.client_id) == (1, 4)
    assert (before.context.session_id, request.context.session_id) == (1, 2)
    assert request.unlink.name == b"x"


class Numbers(RuleBasedStateMachine):
    """Whatever order results come in, acked_below never covers a number that is awaited, and never goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(Identity())
        self.awaited: list[int] = []
        self.handed_out = 0
        self.watermark = 1

    @rule()
    def begin(self) -> None:
        number = self.session.begin()
        assert number == self.handed_out + 1
        self.handed_out = number
        self.awaited.append(number)

    @precondition(lambda self: self.awaited)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.awaited))
        self.awaited.remove(number)
        self.session.finish(number)

    @invariant()
    def watermark_is_right(self) -> None:
        now = self.session.acked_below
        assert now == min(self.awaited, default=self.handed_out + 1)
        assert now >= self.watermark
        self.watermark = now


TestNumbers = Numbers.TestCase
