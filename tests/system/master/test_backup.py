"""Backup and Journal of a real master on loopback, with a load on it: what a restore makes of them."""

import asyncio
import contextlib
import os
import random
import time

import grpc
import pytest
import xxhash
from hearthfs.common.credentials import Unchecked
from hearthfs.common.data_stream import CHANNEL_OPTIONS
from hearthfs.common.errors import (
    Busy,
    DeadlineExceeded,
    HearthError,
    InvalidArgument,
    NotFound,
    Unavailable,
    from_rpc_error,
)
from hearthfs.master import backups, journal, restore
from hearthfs.master.archive import Archive
from hearthfs.master.journal import Stored
from hearthfs.master.main import MasterServer
from hearthfs.master.settings import MasterSettings
from hearthfs.master.store import LmdbStore
from hearthfs.master.tables import TABLES, rows
from hearthfs.proto import common_pb2, master_pb2, master_pb2_grpc
from prometheus_client import REGISTRY

ROOT = 1
TIMEOUT_S = 30
JOURNAL = "hearth_master_journal_records"
DIRECTORIES, XATTRS, XATTR_BYTES = 15, 14, 65_000
"""More than pipe, gRPC and kernel hold of a stream that nobody reads."""


class Client:
    def __init__(self, server, client_id):
        self.server, self.client_id, self.request_id = server, client_id, 0
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=CHANNEL_OPTIONS)
        self.stub = master_pb2_grpc.MasterStub(self.channel)

    async def register(self):
        reply = await self.stub.Register(master_pb2.RegisterRequest(client_id=self.client_id, protocol=1))
        self.context = common_pb2.Context(session_id=reply.session_id, epoch=reply.epoch)

    async def mutate(self, **op):
        self.request_id += 1
        request = master_pb2.MutateRequest(
            context=self.context, client_id=self.client_id, request_id=self.request_id, **op
        )
        try:
            return await self.stub.Mutate(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def work(self, chance):
        """One change of some kind; some are refused."""
        name = b"%d" % chance.randrange(40)
        op = chance.choice(
            [
                {"mkdir": master_pb2.Mkdir(parent=ROOT, name=name, mode=0o755)},
                {"create": master_pb2.Create(parent=ROOT, name=name, mode=0o644)},
                {"unlink": master_pb2.Unlink(parent=ROOT, name=name)},
                {"rmdir": master_pb2.Rmdir(parent=ROOT, name=name)},
                {"rename": master_pb2.Rename(parent=ROOT, name=name, new_parent=ROOT, new_name=b"x")},
                {"set_xattr": master_pb2.SetXattr(inode=ROOT, name=b"user." + name, value=os.urandom(2000))},
            ]
        )
        with contextlib.suppress(HearthError):
            await self.mutate(**op)

    async def fill(self):
        """Makes the data too large for a stream to be on its way as a whole."""
        for number in range(DIRECTORIES):
            made = await self.mutate(mkdir=master_pb2.Mkdir(parent=ROOT, name=b"big%d" % number, mode=0o755))
            inode = made.entry.attributes.inode
            xattrs = [
                master_pb2.SetXattr(inode=inode, name=b"user.%d" % n, value=bytes(XATTR_BYTES)) for n in range(XATTRS)
            ]
            await asyncio.gather(*(self.mutate(set_xattr=each) for each in xattrs))

    async def backup(self, path):
        size_bytes, digest = 0, xxhash.xxh3_64()
        with path.open("wb") as file:
            async for part in self.stub.Backup(master_pb2.BackupRequest(), timeout=TIMEOUT_S):
                if part.HasField("end"):
                    assert (part.end.size_bytes, part.end.digest) == (size_bytes, digest.intdigest())
                    return part.end
                file.write(part.data)
                size_bytes += len(part.data)
                digest.update(part.data)
        raise AssertionError("cut")

    async def journal(self, timeout_s=TIMEOUT_S, **fields):
        """The numbers and bodies; with an error at the end of them, if there is one."""
        found, failure = [], None
        try:
            async for page in self.stub.Journal(master_pb2.JournalRequest(**fields), timeout=timeout_s):
                found += [Stored(record.number, record.body) for record in page.records]
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
        return found, failure


@pytest.fixture
def serve(tmp_path):
    """``serve(test)`` runs ``await test(client)``, or with two of them."""

    def serve(test, **settings):
        async def main():
            chosen = MasterSettings(data=tmp_path / "data", listen="127.0.0.1:0", stop_grace_s=2, **settings)
            server = MasterServer(chosen, shown=Unchecked())
            await server.start()
            clients = [Client(server, 7 + number) for number in range(test.__code__.co_argcount)]
            try:
                for client in clients:
                    await client.register()
                await asyncio.wait_for(test(*clients), 90)
            finally:
                for client in clients:
                    await client.channel.close()
                await server.stop()

        asyncio.run(main())

    return serve


def tables(reader):
    return {table: list(rows(reader, table)) for table in TABLES}


def restored_tables(data):
    store = LmdbStore(data)
    try:
        with store.snapshot() as reader:
            return tables(reader)
    finally:
        store.close()


def test_a_restore_to_a_number_equals_a_dump_taken_then(serve, tmp_path):
    """A hot backup and an archive are made under load; so are dumps, at numbers that chance decides."""
    seed = random.randrange(1 << 32)
    dumps, segments = {}, tmp_path / "segments"

    async def test(client, other):
        chance = random.Random(seed)
        ended = False

        async def load(by):
            while not ended:
                await by.work(chance)

        def dump():
            with client.server.core.store.snapshot() as reader:
                dumps[journal.last_number(reader)] = tables(reader)

        async def archive():
            with Archive(segments, 20_000) as target:
                last = target.last_record(client.server.core.cluster.cluster_id)
                found, failure = await client.journal(after=last.number if last else 0)
                assert failure is None
                list(target.write(client.server.core.cluster.cluster_id, found))

        tasks = [asyncio.create_task(load(by)) for by in (client, client, other, other)]
        await asyncio.sleep(0.3)
        await archive()
        before = journal_end(client.server)
        end = await client.backup(tmp_path / "backup")
        assert end.journal_sequence >= before
        assert end.cluster_id == client.server.core.cluster.cluster_id
        dumps["backup"] = end.journal_sequence
        for _ in range(6):
            dump()
            await asyncio.sleep(0.05)
        ended = True
        await asyncio.gather(*tasks)
        dump()
        await archive()

    serve(test)
    start = dumps.pop("backup")
    assert len([number for number in dumps if number > start]) > 3
    for to, dump in dumps.items():
        data = tmp_path / f"to {to}"
        reached = restore.restore(tmp_path / "backup", segments, to, data, time.time_ns(), exact=True)
        assert (reached.backup_sequence, reached.sequence) == (start, to)
        assert restored_tables(data) == dump


def journal_end(server):
    with server.core.store.snapshot() as reader:
        return journal.last_number(reader)


async def read_all(stream):
    """To the end of a stream, or its error."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None


async def is_busy(client, path):
    """Whether the master refuses a backup because it makes one; otherwise it is there."""
    try:
        await client.backup(path)
    except grpc.RpcError as error:
        if isinstance(from_rpc_error(error), Busy):
            return True
        raise
    return False


def test_one_backup_at_a_time_and_one_that_nobody_reads_is_ended(serve, tmp_path):
    async def test(client, other):
        await client.fill()
        stuck = client.stub.Backup(master_pb2.BackupRequest(), timeout=TIMEOUT_S)
        assert (await stuck.read()).expected_bytes > DIRECTORIES * XATTRS * XATTR_BYTES
        await stuck.read()
        assert await is_busy(other, tmp_path / "second")
        await other.mutate(mkdir=master_pb2.Mkdir(parent=ROOT, name=b"meanwhile", mode=0o755))
        stuck.cancel()
        while await is_busy(other, tmp_path / "second"):  # the end of the first has not come to the master yet
            await asyncio.sleep(0.01)
        restore.restore(tmp_path / "second", None, None, tmp_path / "new", time.time_ns())

    serve(test)


def test_a_backup_has_a_time_to_be_done_in(serve, monkeypatch):
    monkeypatch.setattr(backups, "MAX_S", 0.2)

    async def test(client):
        await client.fill()
        stuck = client.stub.Backup(master_pb2.BackupRequest(), timeout=TIMEOUT_S)
        await asyncio.sleep(0.5)
        with pytest.raises(DeadlineExceeded):
            await read_all(stuck)

    serve(test)


def test_a_master_stops_although_somebody_takes_a_backup_and_somebody_follows(serve):
    async def test(client):
        await client.fill()
        stuck = client.stub.Backup(master_pb2.BackupRequest(), timeout=TIMEOUT_S)
        await stuck.read()
        follower = asyncio.create_task(client.journal(newest=1, follow=True))
        await asyncio.sleep(0.1)
        started_s = time.monotonic()
        await client.server.stop()
        assert time.monotonic() - started_s < 8
        found, failure = await follower
        assert len(found) == 1
        assert isinstance(failure, Unavailable)
        stuck.cancel()

    serve(test)


def test_the_journal_in_pages_and_as_it_grows(serve):
    async def test(client, other):
        await client.fill()
        found, failure = await client.journal()
        assert failure is None
        last = journal_end(client.server)
        assert [number for number, _ in found] == list(range(1, last + 1))
        assert [journal.decode(body).number for _, body in found] == list(range(1, last + 1))
        assert (await client.journal(after=last)) == ([], None)
        assert (await client.journal(after=last - 2)) == (found[-2:], None)
        assert (await client.journal(newest=3)) == (found[-3:], None)
        follower = asyncio.create_task(other.journal(timeout_s=2, after=last, follow=True))
        for number in range(5):
            await client.mutate(mkdir=master_pb2.Mkdir(parent=ROOT, name=b"%d" % number, mode=0o755))
        found, failure = await follower
        assert [number for number, _ in found] == list(range(last + 1, last + 6))
        assert isinstance(failure, DeadlineExceeded)
        assert isinstance((await client.journal(after=last + 1000))[1], InvalidArgument)

    serve(test)


def test_records_that_are_trimmed_are_an_error_that_says_what_to_do(serve):
    async def test(client):
        for number in range(10):
            await client.mutate(mkdir=master_pb2.Mkdir(parent=ROOT, name=b"%d" % number, mode=0o755))
        await client.server._upkeep.trim_journal()
        end = journal_end(client.server)
        status = await client.stub.Status(master_pb2.StatusRequest())
        assert (status.journal_oldest, status.journal_sequence) == (end - 3, end)
        shown = [REGISTRY.get_sample_value(JOURNAL, {"which": which}) for which in ("oldest", "newest")]
        assert shown == [end - 3, end]
        found, failure = await client.journal(after=1)
        assert found == []
        assert isinstance(failure, NotFound)
        assert f"record 2 is gone, the master has those from {end - 3} on: make a new backup" in str(failure)
        assert len((await client.journal(after=end - 4))[0]) == 4

    serve(test, journal_retention_records=4)
