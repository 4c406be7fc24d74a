"""Questions to the master and to workers that need no session: status, dump, list of blocks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from ..client.settings import ClientSettings
from ..common.credentials import Credentials, Kind, load
from ..common.errors import DeadlineExceeded, Unavailable, from_rpc_error
from ..common.types import BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from ..proto import master_pb2_grpc, worker_pb2, worker_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_S = 10.0
STREAM_S = 600.0
RECHECK_MAX = 1000
BACKUP_S = 3600.0


_shown: list[Credentials] = []


def show(credentials: Credentials) -> None:
    """What this command shows from now on. (One command is one process.)"""
    _shown[:] = [credentials]


@contextmanager
def _channel(address: str, what: Kind) -> Iterator[grpc.Channel]:
    if not _shown:
        show(load(ClientSettings.load()))
    with _shown[0].channel(address, what) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"{what} {address}") from None


def status(master: str, timeout_s: float = ANSWER_S) -> pb.StatusReply:
    """Raises Unavailable, DeadlineExceeded."""
    with _channel(master, "master") as channel:
        request = pb.StatusRequest(context=common.Context())
        reply: pb.StatusReply = master_pb2_grpc.MasterStub(channel).Status(request, timeout=timeout_s)
        return reply


def drain(master: str, worker_id: str, *, stop: bool, forget: bool) -> None:
    """Raises NotFound, Busy, Unavailable, DeadlineExceeded."""
    with _channel(master, "master") as channel:
        request = pb.DrainWorkerRequest(worker_id=worker_id, stop=stop, forget=forget)
        master_pb2_grpc.MasterStub(channel).DrainWorker(request, timeout=STREAM_S if forget else ANSWER_S)


def rebalance(master: str, percent: int) -> None:
    """0: stop. Raises InvalidArgument, Unavailable, DeadlineExceeded."""
    with _channel(master, "master") as channel:
        master_pb2_grpc.MasterStub(channel).Rebalance(pb.RebalanceRequest(percent=percent), timeout=ANSWER_S)


def recheck(master: str, replicas: Iterable[tuple[BlockKey, str]], report_workers: Iterable[str]) -> None:
    """Doubts replicas (block, worker id), and asks workers to report all they have. Raises Unavailable."""
    listed = [pb.Replica(block=key.block, generation=key.generation, worker_id=worker) for key, worker in replicas]
    with _channel(master, "master") as channel:
        stub = master_pb2_grpc.MasterStub(channel)
        for start in range(0, max(1, len(listed)), RECHECK_MAX):
            part = listed[start : start + RECHECK_MAX]
            stub.Recheck(pb.RecheckRequest(replicas=part, report_workers=report_workers), timeout=STREAM_S)


def dump(master: str) -> Iterator[pb.DumpRecord]:
    """All records of one snapshot; a stream without ``end`` was cut. Raises Unavailable, DeadlineExceeded."""
    with _channel(master, "master") as channel:
        request = pb.DumpRequest(context=common.Context(), pages=True)
        for record in master_pb2_grpc.MasterStub(channel).Dump(request, timeout=STREAM_S):
            if record.HasField("page"):
                yield from record.page.records
            else:
                yield record


def backup(master: str) -> Generator[pb.BackupPart]:
    """The data file of one snapshot; a stream without ``end`` was cut. To be closed if it is not read to its end.

    Raises Busy, Unavailable, DeadlineExceeded."""
    with _channel(master, "master") as channel:
        yield from master_pb2_grpc.MasterStub(channel).Backup(pb.BackupRequest(), timeout=BACKUP_S)


def journal(
    master: str, *, after: int = 0, newest: int = 0, follow: bool = False, timeout_s: float = STREAM_S
) -> Generator[pb.JournalRecord]:
    """Records above ``after``, or the ``newest`` so many, up to the last when it was asked, or until the time is up. To
    be closed if it is not read to its end.

    Raises:
        NotFound: some of them were trimmed.
        InvalidArgument: the journal ends before ``after``.
        DataDamaged, Busy, Unavailable, DeadlineExceeded.
    """
    with _channel(master, "master") as channel:
        request = pb.JournalRequest(after=after, newest=newest, follow=follow)
        for page in master_pb2_grpc.MasterStub(channel).Journal(request, timeout=timeout_s):
            yield from page.records


def worker_blocks(address: str) -> Sequence[pb.BlockReport] | None:
    """All block files of a worker; None when it does not answer."""
    try:
        with _channel(address, "worker") as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            stub.Stats(worker_pb2.StatsRequest(), timeout=ANSWER_S)
            reports: list[pb.BlockReport] = []
            for report in stub.ListBlocks(worker_pb2.ListBlocksRequest(pages=True), timeout=STREAM_S):
                reports.extend(report.page or [report])
            return reports
    except (Unavailable, DeadlineExceeded):
        return None


def worker_version(address: str, timeout_s: float = ANSWER_S) -> str:
    """Raises Unavailable, DeadlineExceeded, NotSupported (somebody else answers)."""
    with _channel(address, "worker") as channel:
        reply = worker_pb2_grpc.WorkerStub(channel).Stats(worker_pb2.StatsRequest(), timeout=timeout_s)
        return str(reply.version)


def replica(address: str, key: BlockKey) -> worker_pb2.ControlReply:
    """What a worker says of one block; errors about the block are in the reply.

    Raises:
        Unavailable, DeadlineExceeded.
    """
    with _channel(address, "worker") as channel:
        wanted = worker_pb2.OpenBlocks(blocks=[pb.BlockKey(block=key.block, generation=key.generation)])
        reply: worker_pb2.ControlReply = worker_pb2_grpc.WorkerStub(channel).Control(
            worker_pb2.ControlRequest(open=wanted), timeout=ANSWER_S
        )
        return reply
