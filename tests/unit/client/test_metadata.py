"""The master is a list of answers: what is sent, how often, and with which numbers, is what matters here."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hearthfs.client.deadline import Deadline
from hearthfs.client.metadata import Metadata
from hearthfs.client.retry import RetryPolicy
from hearthfs.client.session import Identity, Session
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import (
    DeadlineExceeded,
    HearthError,
    NotFound,
    StaleEpoch,
    StaleSession,
    Unavailable,
    to_trailing_metadata,
)
from hearthfs.common.telemetry import trace
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import master_pb2 as pb


class Failed(grpc.RpcError):
    def __init__(self, error: HearthError) -> None:
        self.error = error

    def code(self) -> grpc.StatusCode:
        return self.error.code

    def details(self) -> str:
        return self.error.message

    def trailing_metadata(self) -> Any:
        return to_trailing_metadata(self.error)


class FakeMaster:
    """Stands in for the channel. ``answers`` are given in turn to all calls but Register, which succeeds by itself
    unless ``register`` says otherwise."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.answers: list[Any] = []
        self.register: list[Any] = []
        self.calls: list[tuple[str, Any, float, Any]] = []
        self.sessions = 0
        self.delay_s = 0.0

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Any]:
        method = path.rpartition("/")[2]

        def call(request: Any, timeout: float, metadata: Any) -> Any:
            self.calls.append((method, type(request).FromString(request.SerializeToString()), timeout, metadata))
            self.clock.advance(self.delay_s)
            if method == "Register":
                self.sessions += 1
                default = pb.RegisterReply(session_id=self.sessions, epoch=self.sessions, cluster_id="c", lease_ms=1)
                answer = self.register.pop(0) if self.register else default
            else:
                answer = self.answers.pop(0)
            if isinstance(answer, HearthError):
                raise Failed(answer)
            return answer

        return call

    def stream_stream(self, path: str, **_: Any) -> None: ...

    unary_stream = stream_stream

    def close(self) -> None: ...

    def methods(self) -> list[str]:
        return [call[0] for call in self.calls]


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.master = FakeMaster(self.clock)
        self.sleeps: list[float] = []
        self.session = Session(Identity(), client_id=99)
        self.metadata = Metadata(
            "h:1",
            self.session,
            policy=RetryPolicy(0.1, 2.0),
            connect=lambda address: self.master,  # type: ignore[return-value, arg-type]
            sleep=self.sleep,
            chance=lambda: 0.0,
        )

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.advance(seconds)

    def deadline(self, timeout_s: float = 30.0) -> Deadline:
        return Deadline(timeout_s, self.clock)

    def unlink(self, timeout_s: float = 30.0) -> pb.MutateReply:
        return self.metadata.mutate(pb.MutateRequest(unlink=pb.Unlink(parent=1, name=b"x")), self.deadline(timeout_s))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_call_registers(rig: Rig) -> None:
    rig.master.answers = [common.Entry(), common.Entry()]
    rig.metadata.getattr(1, rig.deadline())
    rig.metadata.getattr(1, rig.deadline())
    assert rig.master.methods() == ["Register", "Getattr", "Getattr"]
    assert rig.master.calls[1][1].context.session_id == 1


@pytest.mark.parametrize("kind", [StaleSession, StaleEpoch])
def test_a_stale_session_is_replaced_without_the_caller_noticing(rig: Rig, kind: type[HearthError]) -> None:
    rig.master.answers = [common.Entry(), kind("old"), common.Entry(symlink_target=b"t")]
    rig.metadata.getattr(1, rig.deadline())
    assert rig.metadata.getattr(1, rig.deadline()).symlink_target == b"t"
    assert rig.master.methods() == ["Register", "Getattr", "Getattr", "Register", "Getattr"]
    assert rig.master.calls[-1][1].context == common.Context(session_id=2, epoch=2)
    assert rig.sleeps == [0.0]


def test_a_mutation_keeps_its_number_through_restart_and_new_session(rig: Rig) -> None:
    rig.master.answers = [Unavailable("down"), StaleEpoch("old"), pb.MutateReply(existed=True)]
    assert rig.unlink().existed
    sent = [call[1] for call in rig.master.calls if call[0] == "Mutate"]
    assert [request.request_id for request in sent] == [1, 1, 1]
    assert {request.client_id for request in sent} == {99}
    assert [request.context.session_id for request in sent] == [1, 1, 2]
    assert {request.unlink.name for request in sent} == {b"x"}


def test_results_are_acknowledged_with_the_next_mutation(rig: Rig) -> None:
    rig.master.answers = [pb.MutateReply(), NotFound("no"), pb.MutateReply()]
    rig.unlink()
    with pytest.raises(NotFound):
        rig.unlink()
    rig.unlink()
    sent = [call[1] for call in rig.master.calls if call[0] == "Mutate"]
    assert [(request.request_id, request.acked_below) for request in sent] == [(1, 1), (2, 2), (3, 3)]


def test_final_errors_come_at_once(rig: Rig) -> None:
    rig.master.answers = [NotFound("'x' does not exist")]
    with pytest.raises(NotFound, match="'x' does not exist"):
        rig.metadata.getattr(1, rig.deadline())
    assert rig.sleeps == []


def test_the_whole_call_ends_by_its_deadline(rig: Rig) -> None:
    rig.master.answers = [Unavailable("down")] * 1000
    start = rig.clock.monotonic_s()
    with pytest.raises(Unavailable, match="down"):
        rig.metadata.getattr(1, rig.deadline(7.0))
    assert rig.clock.monotonic_s() - start < 7.0
    assert len(rig.sleeps) > 3


def test_a_master_that_hangs_costs_attempts_not_the_call(rig: Rig) -> None:
    rig.master.delay_s = 9.0
    rig.master.register = []
    rig.master.answers = [DeadlineExceeded("slow"), common.Entry(symlink_target=b"t")]
    assert rig.metadata.getattr(1, rig.deadline(30.0)).symlink_target == b"t"
    assert [round(call[2]) for call in rig.master.calls] == [10, 10, 10]


def test_the_last_attempt_gets_only_what_is_left(rig: Rig) -> None:
    rig.master.answers = [common.Entry()]
    rig.metadata.getattr(1, rig.deadline(3.0))
    assert rig.master.calls[-1][2] == 3.0


def test_no_time_is_no_call(rig: Rig) -> None:
    with pytest.raises(DeadlineExceeded, match="0 s"):
        rig.metadata.getattr(1, rig.deadline(0.0))
    assert rig.master.calls == []


def test_registration_is_repeated_like_any_call(rig: Rig) -> None:
    rig.master.register = [Unavailable("starting"), Unavailable("starting")]
    rig.master.answers = [common.Entry()]
    rig.metadata.getattr(1, rig.deadline())
    assert rig.master.methods() == ["Register"] * 3 + ["Getattr"]


def test_the_trace_id_travels(rig: Rig) -> None:
    rig.master.answers = [common.Entry()]
    with trace("feed"):
        rig.metadata.getattr(1, rig.deadline())
    assert rig.master.calls[-1][3] == (("hearth-trace-id", "feed"),)


def test_pages_are_fetched_as_they_are_needed(rig: Rig) -> None:
    entries = [pb.DirectoryEntry(name=b"%d" % n, cookie=n + 5) for n in range(3)]
    rig.master.answers = [
        pb.ReaddirReply(entries=entries[:2]),
        pb.ReaddirReply(entries=entries[2:], end=True),
    ]
    listing = rig.metadata.readdir(1, 2, rig.deadline, want_entries=False)
    assert next(listing).name == b"0"
    assert rig.master.methods() == ["Register", "Readdir"]
    assert [entry.name for entry in listing] == [b"1", b"2"]
    assert rig.master.calls[-1][1].after_cookie == 6


def test_a_closed_client_says_so(rig: Rig) -> None:
    rig.metadata.close()
    with pytest.raises(Unavailable, match="closed"):
        rig.metadata.getattr(1, rig.deadline())
    assert rig.sleeps == []
