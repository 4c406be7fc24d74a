"""The service over a real gRPC server on loopback, with a clock that stands still."""

import asyncio
import contextlib

import grpc
import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.credentials import Unchecked
from hearthfs.common.data_stream import CHANNEL_OPTIONS
from hearthfs.common.errors import (
    Busy,
    Conflict,
    Exists,
    InvalidArgument,
    NameTooLong,
    NoSpace,
    NotADirectory,
    NotFound,
    NotSupported,
    Stale,
    StaleEpoch,
    StaleSession,
    TooBig,
    Unavailable,
    WrongCluster,
    from_rpc_error,
)
from hearthfs.master import commands, machine
from hearthfs.master.main import MasterServer
from hearthfs.master.settings import MasterSettings
from hearthfs.master.watches import Watches
from hearthfs.proto import common_pb2, master_pb2, master_pb2_grpc

ROOT = 1
TIMEOUT_S = 30
GiB = 1 << 30


class Peer:
    """One client, worker or mount of the master under test."""

    def __init__(self, server, client_id=7):
        self.clock = server.clock
        self.master = server
        self.client_id = client_id
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=CHANNEL_OPTIONS)
        self.stub = master_pb2_grpc.MasterStub(self.channel)
        self.context = common_pb2.Context()
        self.request_id = 0

    async def call(self, method, **fields):
        request_type = getattr(master_pb2, f"{method}Request")
        if "context" in request_type.DESCRIPTOR.fields_by_name:
            fields.setdefault("context", self.context)
        try:
            return await getattr(self.stub, method)(request_type(**fields), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error, method) from None

    async def register(self, **fields):
        reply = await self.call("Register", client_id=self.client_id, protocol=1, **fields)
        self.context = common_pb2.Context(session_id=reply.session_id, epoch=reply.epoch)
        return reply

    async def mutate(self, request_id=0, acked_below=0, no_wait=False, **op):
        if not request_id:
            self.request_id += 1
            request_id = self.request_id
        return await self.call(
            "Mutate",
            client_id=self.client_id,
            request_id=request_id,
            acked_below=acked_below,
            no_wait=no_wait,
            **op,
        )

    async def mkdir(self, name, parent=ROOT):
        reply = await self.mutate(mkdir=master_pb2.Mkdir(parent=parent, name=name, mode=0o755))
        return reply.entry.attributes.inode

    async def create(self, name, parent=ROOT, **fields):
        return await self.mutate(create=master_pb2.Create(parent=parent, name=name, mode=0o644, **fields))

    # ---------------------------------------------------------------- as a worker

    def disks(self, available=GiB):
        return [master_pb2.Disk(path=f"/disk-{self.client_id}", capacity_bytes=2 * GiB, available_bytes=available)]

    async def register_worker(self, worker_id="w1", incarnation=1, **fields):
        reply = await self.call(
            "RegisterWorker",
            worker_id=worker_id,
            node_id=f"node-{worker_id}",
            address="127.0.0.1:99",
            incarnation=incarnation,
            protocol=1,
            **{"disks": self.disks(), **fields},
        )
        self.context = common_pb2.Context(epoch=reply.epoch)
        return reply

    async def beat(self, worker_id="w1", incarnation=1, **fields):
        fields = {"disks": self.disks(), **fields}
        return await self.call("Heartbeat", worker_id=worker_id, incarnation=incarnation, **fields)

    # ---------------------------------------------------------------- as a mount

    @contextlib.asynccontextmanager
    async def watch(self):
        stream = self.stub.Watch(timeout=TIMEOUT_S)
        await stream.write(master_pb2.WatchRequest(context=self.context))
        first = await stream.read()
        assert (first.event, first.pong) == (0, 0)
        try:
            yield stream
        finally:
            stream.cancel()


async def read_all(stream):
    """To the end of a stream, or its error."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None


@pytest.fixture
def serve(tmp_path):
    """``serve(test)`` runs ``await test(peer, ...)`` with as many peers as it has arguments."""

    def serve(test, **settings):
        async def main():
            server = MasterServer(
                MasterSettings(data=tmp_path / "data", listen="127.0.0.1:0", **settings), FakeClock(), Unchecked()
            )
            server.clock = server._clock
            await server.start()
            count = test.__code__.co_argcount
            peers = [Peer(server, client_id=7 + number) for number in range(count)]
            try:
                await asyncio.wait_for(test(*peers), 90)
            finally:
                for peer in peers:
                    await peer.channel.close()
                await server.stop()

        asyncio.run(main())

    return serve


def test_files_from_create_to_dump(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        directory = await client.mkdir(b"d")
        made = await client.create(b"f", directory, allocate=True)
        inode, working = made.entry.attributes.inode, made.blocks[0]
        assert working.worker.address == "127.0.0.1:99"
        publish = master_pb2.Publish(
            inode=inode,
            block=working.block,
            generation=working.generation,
            length_bytes=100,
            size_bytes=100,
            digest=5,
            sealed=True,
            worker_id="w1",
        )
        await client.mutate(publish=publish)
        for entry in (
            await client.call("Lookup", parent=directory, name=b"f"),
            await client.call("Getattr", inode=inode),
            await client.call("Resolve", path=b"/d/f"),
        ):
            assert entry.attributes.size_bytes == 100
            assert entry.extents[0].block == working.block
            assert [replica.worker_id for replica in entry.replicas] == ["w1"]
            assert list(entry.parents) == [directory]
        listing = await client.call("Readdir", inode=ROOT, want_entries=True)
        assert [(entry.name, entry.entry.attributes.nlink) for entry in listing.entries] == [(b"d", 2)]
        assert listing.end
        await client.mutate(set_xattr=master_pb2.SetXattr(inode=inode, name=b"user.a", value=b"\0"))
        xattrs = await client.call("GetXattrs", inode=inode)
        assert dict(xattrs.xattrs) == {"user.a": b"\0"}
        other = await client.mkdir(b"other", directory)
        both = (await client.call("Readdir", inode=directory, want_entries=True)).entries
        assert {item.inode: item.entry.no_xattrs for item in both} == {inode: False, other: True}
        assert not (await client.call("Getattr", inode=inode)).no_xattrs
        assert (await client.call("Lookup", parent=directory, name=b"other")).no_xattrs
        totals = await client.call("Statfs")
        assert (totals.inodes, totals.blocks, totals.total_bytes, totals.available_bytes) == (4, 1, 2 * GiB, GiB)
        records = [record async for record in client.stub.Dump(master_pb2.DumpRequest())]
        assert [record.WhichOneof("record") for record in records].count("inode") == 4
        pages = [record async for record in client.stub.Dump(master_pb2.DumpRequest(pages=True))]
        assert [len(record.page.records) for record in pages] == [len(records) - 1, 0]
        assert [*pages[0].page.records, pages[1]] == records
        assert records[-1].end.problems == []
        assert records[-1].end.dentries == 3
        status = await client.call("Status")
        assert status.workers[0].state == "live"
        assert status.sessions[0].session_id == client.context.session_id

    serve(test)


def test_many_files_in_one_call(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        keys = [b"%032d" % number for number in range(500)]
        packed = common_pb2.PackedNames(width=32, packed=b"".join(keys))
        allocated = await client.mutate(allocate=master_pb2.Allocate(count=500))
        put = master_pb2.PutMany(
            parent=ROOT,
            names=packed,
            mode=0o644,
            blocks=[block.block for block in allocated.blocks],
            generations=[block.generation for block in allocated.blocks],
            lengths_bytes=[100] * 500,
            digests=[9] * 500,
            worker_id="w1",
        )
        reply = await client.mutate(put_many=put)
        assert set(reply.errnos) == {0}
        asked = common_pb2.PackedNames(width=32, packed=b"".join([*keys[:2], b"x" * 32, *keys[2:]]))
        found = await client.call("LookupMany", directory=ROOT, names=asked, want_layout=True)
        assert found.found[0] == 0b11111011
        assert len(found.inodes) == len(found.valid_bytes) == len(found.worker_indexes) == 500
        assert list(found.blocks) == list(put.blocks)
        assert found.workers[found.worker_indexes[0]].worker_id == "w1"
        bits = await client.call("LookupMany", path=b"/", names=asked)
        assert bits.found == found.found
        assert list(bits.inodes) == []
        assert bits.directory == ROOT
        missing = await client.call("LookupMany", path=b"/none", names=asked)
        assert (missing.found, missing.directory) == (bytes(63), 0)
        # Its worker is silent: nothing can be read.
        client.clock.advance(6)
        client.master.core.membership.tick(client.clock.monotonic_s())
        assert not any((await client.call("LookupMany", directory=ROOT, names=asked)).found)
        assert (await client.call("Getattr", inode=found.inodes[0])).replicas[0].suspect

    serve(test)


BAD_INPUT = [
    ("Lookup", {"parent": ROOT, "name": b"a/b"}, InvalidArgument),
    ("Lookup", {"parent": ROOT, "name": b"a\0"}, InvalidArgument),
    ("Lookup", {"parent": ROOT, "name": b"x" * 256}, NameTooLong),
    ("Lookup", {"parent": ROOT, "name": b"none"}, NotFound),
    ("Lookup", {"parent": (1 << 64) - 1, "name": b"x"}, Stale),
    ("Lookup", {}, Stale),
    ("Getattr", {"inode": 12345}, Stale),
    ("Readdir", {"inode": 12345}, Stale),
    ("GetXattrs", {"inode": 12345}, Stale),
    ("Resolve", {"path": b"relative"}, InvalidArgument),
    ("Resolve", {"path": b"/" + b"x" * 5000}, NameTooLong),
    ("LookupMany", {"directory": 12345}, Stale),
    ("LookupMany", {"directory": ROOT, "names": common_pb2.PackedNames(width=300, packed=b"x" * 300)}, NameTooLong),
    ("LookupMany", {"directory": ROOT, "names": common_pb2.PackedNames(width=1, packed=b"x" * 20000)}, TooBig),
    ("LookupMany", {"directory": ROOT, "names": common_pb2.PackedNames(width=1, packed=b"x" * (5 << 20))}, TooBig),
    ("Register", {"client_id": 0, "protocol": 1}, InvalidArgument),
    ("Register", {"client_id": 1, "protocol": 1, "cluster_id": "other"}, WrongCluster),
    ("Register", {"client_id": 1, "protocol": 1, "name": "x" * 1000}, InvalidArgument),
    ("RegisterWorker", {"worker_id": "", "address": "a", "incarnation": 1, "protocol": 1}, InvalidArgument),
    ("RegisterWorker", {"worker_id": "a\0b", "address": "a", "incarnation": 1, "protocol": 1}, InvalidArgument),
    ("RegisterWorker", {"worker_id": "w" * 300, "address": "a", "incarnation": 1}, InvalidArgument),
    ("RegisterWorker", {"worker_id": "w", "incarnation": 1, "protocol": 1}, InvalidArgument),
    ("RegisterWorker", {"worker_id": "w", "address": "a", "incarnation": 1, "cluster_id": "x"}, WrongCluster),
    ("ReportBlocks", {"worker_id": "nobody"}, InvalidArgument),
    ("Mutate", {"request_id": 1}, InvalidArgument),
    ("Mutate", {"client_id": 8, "request_id": 1}, InvalidArgument),
    ("Mutate", {}, InvalidArgument),
    ("Mutate", {"request_id": 5, "acked_below": 9, "mkdir": master_pb2.Mkdir()}, InvalidArgument),
]


def test_bad_input_gets_its_status_and_the_daemon_lives(serve):
    """One server for all cases, each as a client of its own, so that nobody meets what is remembered of another."""

    async def test(client):
        for client.client_id, (method, fields, error) in enumerate(BAD_INPUT, 100):
            client.request_id = 0
            await client.register()
            sender = {"client_id": client.client_id} if method == "Mutate" else {}
            try:
                with pytest.raises(error):
                    await client.call(method, **sender | fields)
                await client.mkdir(b"alive-%d" % client.client_id)
            except BaseException as failure:
                failure.add_note(f"after {method} {fields}")
                raise

    serve(test)


def test_a_small_directory_comes_with_its_names(serve):
    async def test(mount, client):
        await client.register()
        await mount.register(holds_grants=True)
        directory = await client.mkdir(b"d")
        empty = await client.mkdir(b"empty")
        inodes = [(await client.create(name, directory)).entry.attributes.inode for name in (b"a", b"b")]
        names = (await mount.call("Lookup", parent=ROOT, name=b"d", names_max=2)).names
        assert (list(names.names), list(names.inodes)) == ([b"a", b"b"], inodes)
        assert directory in mount.master.core.sessions.find(mount.context.session_id).grants
        assert not (await mount.call("Lookup", parent=ROOT, name=b"d", names_max=1)).HasField("names")
        assert not (await mount.call("Lookup", parent=ROOT, name=b"d")).HasField("names")
        assert not (await mount.call("Lookup", parent=directory, name=b"a", names_max=9)).HasField("names")
        entry = await mount.call("Lookup", parent=ROOT, name=b"empty", names_max=1)
        assert (entry.attributes.inode, entry.HasField("names"), list(entry.names.names)) == (empty, True, [])

    serve(test)


def test_text_in_errors_is_escaped(serve):
    async def test(client):
        await client.register()
        with pytest.raises(NotFound, match=r"b'\\xff\\n'"):
            await client.call("Lookup", parent=ROOT, name=b"\xff\n")

    serve(test)


def test_listing_ends(serve):
    async def test(client):
        await client.register()
        await client.create(b"a")
        reply = await client.call("Readdir", inode=ROOT, after_cookie=(1 << 64) - 1)
        assert reply.end
        assert list(reply.entries) == []
        number = (await client.create(b"b")).entry.attributes.inode
        with pytest.raises(NotADirectory):
            await client.call("Readdir", inode=number)

    serve(test)


def test_sessions_and_epochs(serve):
    async def test(client):
        with pytest.raises(StaleSession):
            await client.call("Lookup", parent=ROOT, name=b"x")
        reply = await client.register(name="me", kind="sdk")
        assert (reply.epoch, reply.lease_ms, reply.protocol) == (1, 300_000, 1)
        good = client.context
        client.context = common_pb2.Context(session_id=good.session_id + 2, epoch=1)
        with pytest.raises(StaleSession):
            await client.call("Statfs")
        client.context = common_pb2.Context(session_id=good.session_id, epoch=1 << 40)
        with pytest.raises(InvalidArgument):
            await client.call("Statfs")
        client.context = good
        await client.register()
        client.context = good
        with pytest.raises(StaleSession):
            await client.call("Statfs")

    serve(test)


def test_a_newer_epoch_stops_the_master(serve):
    async def test(client):
        await client.register()
        session_id = client.context.session_id
        client.context = common_pb2.Context(session_id=session_id, epoch=2)
        with pytest.raises(StaleEpoch):
            await client.call("Statfs")
        client.context = common_pb2.Context(session_id=session_id, epoch=1)
        with pytest.raises(StaleEpoch, match="replaced"):
            await client.mkdir(b"d")
        with pytest.raises(OSError, match="newer master is at epoch 2"):
            await client.master.wait()

    serve(test)


def test_a_repeated_request_gets_the_same_answer(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        first = await client.mutate(request_id=1, allocate=master_pb2.Allocate(count=2))
        client.master.core.membership.tick(10**6)  # no worker any more
        again = await client.mutate(request_id=1, allocate=master_pb2.Allocate(count=2))
        assert [block.block for block in again.blocks] == [block.block for block in first.blocks]
        with pytest.raises(NoSpace):
            await client.mutate(request_id=2, allocate=master_pb2.Allocate(count=1))
        mkdir = master_pb2.Mkdir(parent=ROOT, name=b"d", mode=0o755)
        made = await client.mutate(request_id=3, mkdir=mkdir)
        await client.register()
        assert await client.mutate(request_id=3, mkdir=mkdir) == made
        with pytest.raises(Exists):
            await client.mutate(request_id=5, acked_below=5, mkdir=mkdir)
        with pytest.raises(InvalidArgument, match="acknowledged"):
            await client.mutate(request_id=3, acked_below=3, mkdir=mkdir)

    serve(test)


def test_a_fault_in_a_rule_is_internal_and_harmless(serve, monkeypatch):
    def broken(change, command):
        raise ZeroDivisionError

    monkeypatch.setitem(machine.RULES, commands.Rmdir, broken)

    async def test(client):
        await client.register()
        with pytest.raises(OSError, match="fault in the master"):
            await client.mutate(rmdir=master_pb2.Rmdir(parent=ROOT, name=b"x"))
        await client.mkdir(b"d")

    serve(test)


def test_a_caller_that_was_killed_is_no_fault(serve, monkeypatch, capsys, caplog):
    async def gone(*_):
        raise grpc.aio.InternalError('Failed "execute_batch"')

    monkeypatch.setattr(Watches, "serve", gone)

    async def test(mount):
        await mount.register(holds_grants=True)
        stream = mount.stub.Watch(timeout=TIMEOUT_S)
        await stream.write(master_pb2.WatchRequest(context=mount.context))
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await mount.mkdir(b"d")

    serve(test)
    assert "call-failed" not in capsys.readouterr().out
    assert not [record for record in caplog.records if record.exc_info]


# ------------------------------------------------------------------ invalidation


def test_a_mutation_waits_for_the_caches_of_others(serve):
    async def test(mount, client):
        reply = await mount.register(kind="mount", holds_grants=True)
        assert reply.lease_ms == 5000
        await client.register()
        directory = await client.mkdir(b"d")
        await mount.call("Readdir", inode=directory)
        async with mount.watch() as stream:
            change = asyncio.create_task(client.create(b"f", directory))
            event = await stream.read()
            assert event.event == 1
            names = [(i.directory, i.name) for i in event.invalidations if i.directory]
            assert names == [(directory, b"f")]
            assert [i.inode for i in event.invalidations if i.inode] == [directory]
            await stream.write(master_pb2.WatchRequest(ping=5))
            await asyncio.sleep(0.05)
            assert not change.done()
            await stream.write(master_pb2.WatchRequest(ack_event=1))
            await change
            assert (await stream.read()).pong == 5
            await client.create(b"g", ROOT)  # nobody holds ROOT
            await client.mutate(no_wait=True, create=master_pb2.Create(parent=directory, name=b"h"))
            assert (await stream.read()).event == 2

    serve(test)


def test_a_repeated_request_waits_too(serve):
    async def test(mount, client):
        await mount.register(holds_grants=True)
        await client.register()
        with pytest.raises(NotFound):
            await mount.call("Lookup", parent=ROOT, name=b"f")
        async with mount.watch() as stream:
            op = {"create": master_pb2.Create(parent=ROOT, name=b"f", exclusive=True)}
            await client.mutate(request_id=1, no_wait=True, **op)
            again = asyncio.create_task(client.mutate(request_id=1, **op))
            assert (await stream.read()).event == 1
            await asyncio.sleep(0.05)
            assert not again.done()
            await stream.write(master_pb2.WatchRequest(ack_event=1))
            await again

    serve(test)


def test_a_mount_that_does_not_acknowledge_is_fenced(serve):
    async def test(mount, client):
        await mount.register(holds_grants=True)
        await client.register()
        await mount.call("Getattr", inode=ROOT)
        async with mount.watch() as stream:
            change = asyncio.create_task(client.mkdir(b"d"))
            assert (await stream.read()).event == 1
            assert not change.done()
            client.clock.advance(5.1)
            client.master.core.watches.expire()
            await change
            with pytest.raises(StaleSession):
                await read_all(stream)
        with pytest.raises(StaleSession):
            await mount.call("Getattr", inode=ROOT)
        await mount.register(holds_grants=True)
        await mount.call("Getattr", inode=ROOT)

    serve(test)


def test_a_newer_stream_takes_over(serve):
    async def test(mount, client):
        await mount.register(holds_grants=True)
        await client.register()
        await mount.call("Getattr", inode=ROOT)
        async with mount.watch() as old, mount.watch() as new:
            assert await old.read() is grpc.aio.EOF
            change = asyncio.create_task(client.mkdir(b"d"))
            assert (await new.read()).event == 1
            await new.write(master_pb2.WatchRequest(ack_event=1))
            await change

    serve(test)


@pytest.mark.parametrize(
    ("holds_grants", "message", "error"),
    [(False, {}, InvalidArgument), (True, {"ack_event": 9}, InvalidArgument)],
)
def test_watch_refusals(serve, holds_grants, message, error):
    async def test(mount):
        await mount.register(holds_grants=holds_grants)
        stream = mount.stub.Watch(timeout=TIMEOUT_S)
        await stream.write(master_pb2.WatchRequest(context=mount.context, **message))
        with pytest.raises(error):
            await read_all(stream)

    serve(test)


def test_resolve_grants_all_it_passed(serve):
    async def test(mount, client):
        await client.register()
        a = await client.mkdir(b"a")
        b = await client.mkdir(b"b", a)
        await mount.register(holds_grants=True)
        await mount.call("Resolve", path=b"/a/b")
        granted = mount.master.core.sessions.find(mount.context.session_id).grants
        assert granted >= {ROOT, a, b}
        with pytest.raises(NotFound):
            await mount.call("Resolve", path=b"/a/none")

    serve(test)


# ------------------------------------------------------------------ workers


def test_a_second_worker_with_the_id_is_refused(serve):
    async def test(first, second):
        await first.register_worker()
        with pytest.raises(Conflict):
            await second.register_worker(incarnation=2)
        assert not (await first.beat()).register
        assert (await second.beat(incarnation=2)).register
        first.clock.advance(6)
        await second.register_worker(incarnation=2)
        assert (await first.beat()).register

    serve(test)


def test_delete_orders_stay_until_the_worker_says_it_is_gone(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        block = (await client.mutate(allocate=master_pb2.Allocate(count=1))).blocks[0].block
        await client.mutate(discard=master_pb2.Discard(blocks=[block]))
        for _ in range(2):
            orders = (await worker.beat()).delete
            assert [order.block for order in orders] == [block]
        reply = await worker.beat(removed=[master_pb2.BlockKey(block=block, generation=1)])
        assert list(reply.delete) == []
        before = (await client.call("Status")).journal_sequence
        await worker.beat(removed=[master_pb2.BlockKey(block=block, generation=1)])
        assert (await client.call("Status")).journal_sequence == before

    serve(test)


def test_full_report(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        assert (await worker.beat()).report_all
        await worker.call("ReportBlocks", worker_id="w1", incarnation=1, start=True)
        assert not (await worker.beat()).report_all
        strange = [master_pb2.BlockReport(block=5, generation=1), master_pb2.BlockReport(block=6, generation=1)]
        reply = await worker.call("ReportBlocks", worker_id="w1", incarnation=1, blocks=strange)
        assert [key.block for key in reply.unknown] == [5, 6]
        with pytest.raises(InvalidArgument, match="ascend"):
            await worker.call("ReportBlocks", worker_id="w1", incarnation=1, blocks=strange)
        await worker.call("ReportBlocks", worker_id="w1", incarnation=1, end=True)
        assert not (await worker.beat()).report_all
        with pytest.raises(InvalidArgument):
            await worker.call("ReportBlocks", worker_id="w1", incarnation=1, end=True)

    serve(test)


def test_replicas_of_a_wiped_worker_are_dropped(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        made = await client.create(b"f", allocate=True)
        publish = master_pb2.Publish(
            inode=made.entry.attributes.inode,
            block=made.blocks[0].block,
            generation=made.blocks[0].generation,
            length_bytes=1,
            size_bytes=1,
            digest=1,
            sealed=True,
        )
        await client.mutate(publish=publish)
        client.clock.advance(100)
        await worker.call("ReportBlocks", worker_id="w1", incarnation=1, start=True, end=True)
        assert list((await client.call("Lookup", parent=ROOT, name=b"f")).replicas) == []
        await client.master._upkeep.count_unavailable()
        assert (await client.call("Status")).unavailable_files == 1
        report = master_pb2.BlockReport(block=publish.block, generation=1, length_bytes=1, digest=1)
        await worker.beat(added=[report])
        assert len((await client.call("Lookup", parent=ROOT, name=b"f")).replicas) == 1

    serve(test)


def test_a_writer_may_wait_for_workers_that_may_come_back(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker()
        client.clock.advance(6)
        client.master.core.membership.tick(client.clock.monotonic_s())
        with pytest.raises(Unavailable, match="try again"):
            await client.create(b"f", allocate=True)
        client.clock.advance(30)
        client.master.core.membership.tick(client.clock.monotonic_s())
        with pytest.raises(NoSpace, match="no worker is alive"):
            await client.create(b"f", allocate=True)

    serve(test)


def test_a_full_worker_gets_no_blocks(serve):
    async def test(client, worker):
        await client.register()
        await worker.register_worker(disks=worker.disks(available=1000))
        await client.mutate(allocate=master_pb2.Allocate(count=1, size_hint_bytes=900))
        with pytest.raises(NoSpace):
            await client.mutate(allocate=master_pb2.Allocate(count=1, size_hint_bytes=900))
        await worker.beat(disks=worker.disks(available=0))
        with pytest.raises(NoSpace):
            await client.create(b"f", allocate=True)
        await client.create(b"f")

    serve(test)


# ------------------------------------------------------------------ replicas


async def publish(client, name, worker="w1", parent=ROOT, size=100):
    """A file whose block is on that worker; its key."""
    made = await client.create(name, parent, allocate=True, prefer_node=f"node-{worker}")
    block = made.blocks[0]
    item = master_pb2.Publish(
        inode=made.entry.attributes.inode,
        block=block.block,
        generation=block.generation,
        length_bytes=size,
        size_bytes=size,
        digest=5,
        sealed=True,
        worker_id=worker,
    )
    await client.mutate(publish=item)
    return master_pb2.BlockKey(block=block.block, generation=block.generation)


async def ask_for(client, replicas, inode=ROOT, when=b"background"):
    for name, value in ((b"hearth.replicas", b"%d" % replicas), (b"hearth.replicate", when)):
        await client.mutate(set_xattr=master_pb2.SetXattr(inode=inode, name=name, value=value))


def held(key, size=100):
    return master_pb2.BlockReport(block=key.block, generation=key.generation, length_bytes=size, digest=5)


def copied(key, error_number=0, **fields):
    return master_pb2.CopyResult(block=key.block, generation=key.generation, error_number=error_number, **fields)


def repairer(client):
    return client.master.core.observers[0].__self__


def test_an_order_to_copy_is_told_until_it_ends(serve):
    async def test(client, one, two):
        await client.register()
        await one.register_worker()
        await two.register_worker("w2", 2)
        await ask_for(client, 2)
        key = await publish(client, b"f")
        await repairer(client).step()
        for _ in range(2):
            (order,) = (await two.beat("w2", 2)).copy
            assert (order.block, order.generation, order.length_bytes, order.digest) == (key.block, 1, 100, 5)
            assert [source.worker_id for source in order.sources] == ["w1"]
        assert list((await one.beat()).copy) == []
        status = await client.call("Status")
        assert (status.degraded_files, status.repairing_files) == (1, 1)
        reply = await two.beat("w2", 2, added=[held(key)], copied=[copied(key)])
        assert list(reply.copy) == []
        await repairer(client).step()
        status = await client.call("Status")
        assert (status.degraded_files, status.repairing_files, status.repair_failures) == (0, 0, 0)
        assert len((await client.call("Lookup", parent=ROOT, name=b"f")).replicas) == 2

    serve(test)


def test_a_failed_copy_is_tried_again_and_its_bad_source_is_looked_at(serve):
    async def test(client, one, two):
        await client.register()
        await one.register_worker()
        await two.register_worker("w2", 2)
        await ask_for(client, 2)
        key = await publish(client, b"f")
        await repairer(client).step()
        await two.beat("w2", 2, copied=[copied(key, 5, message="wrong bytes", bad_sources=["w1"])])
        assert list((await client.call("Lookup", parent=ROOT, name=b"f")).replicas) == []
        assert [each.block for each in (await one.beat()).verify] == [key.block]
        assert list((await one.beat()).delete) == []
        client.clock.advance(2)
        await repairer(client).step()
        assert list((await two.beat("w2", 2)).copy) == []  # nobody has it
        await one.beat(added=[held(key)])  # it was good after all
        await repairer(client).step()
        assert len((await two.beat("w2", 2)).copy) == 1
        assert (await client.call("Status")).repair_failures == 1

    serve(test)


def test_what_a_lost_worker_had_is_made_again_elsewhere(serve):
    async def test(client, one, two, three):
        await client.register()
        for worker, name in ((one, "w1"), (two, "w2")):
            await worker.register_worker(name, int(name[1]))
        await ask_for(client, 2)
        key = await publish(client, b"f")
        await two.beat("w2", 2, added=[held(key)], copied=[copied(key)])
        await three.register_worker("w3", 3)
        client.clock.advance(26)
        for worker, name in ((two, "w2"), (three, "w3")):
            await worker.beat(name, int(name[1]))
            await worker.call(
                "ReportBlocks",
                worker_id=name,
                incarnation=int(name[1]),
                start=True,
                blocks=[held(key)] if name == "w2" else [],
                end=True,
            )
        await client.master._upkeep.age_workers()
        await repairer(client).walk()
        await repairer(client).step()
        (order,) = (await three.beat("w3", 3)).copy
        assert [source.worker_id for source in order.sources] == ["w2"]

    serve(test)


def test_a_close_waits_for_its_replicas(serve):
    async def test(client, one, two):
        await client.register()
        await one.register_worker()
        await two.register_worker("w2", 2)
        await ask_for(client, 2, when=b"before_close")
        closing = asyncio.create_task(publish(client, b"f"))
        while not (orders := (await two.beat("w2", 2)).copy):
            await asyncio.sleep(0.01)
        assert not closing.done()
        await two.beat("w2", 2, added=[held(orders[0])], copied=[copied(orders[0])])
        await closing
        # Nobody else is there: nothing to wait for.
        client.clock.advance(30)
        await one.beat()
        client.master.core.membership.reported(client.master.core.membership.find("w1"), client.clock.monotonic_s())
        client.master.core.membership.tick(client.clock.monotonic_s())
        await publish(client, b"g")

    serve(test)


def test_a_close_does_not_wait_for_ever(serve):
    async def test(client, one, two):
        await client.register()
        await one.register_worker()
        await two.register_worker("w2", 2)
        await ask_for(client, 2, when=b"before_close")
        await publish(client, b"f")
        assert len((await client.call("Lookup", parent=ROOT, name=b"f")).replicas) == 1

    serve(test, replicate_wait_s=0.05)


def test_draining(serve):
    async def test(client, one, two):
        await client.register()
        await one.register_worker()
        key = await publish(client, b"f")
        await two.register_worker("w2", 2)
        with pytest.raises(NotFound):
            await client.call("DrainWorker", worker_id="nobody")
        with pytest.raises(Busy):
            await client.call("DrainWorker", worker_id="w1", forget=True)
        await client.call("DrainWorker", worker_id="w1")
        made = await client.create(b"g", allocate=True, prefer_node="node-w1")
        assert made.blocks[0].worker.worker_id == "w2"
        assert (await client.call("Statfs")).available_bytes == GiB
        first = (await client.call("Status")).workers[0]
        assert (first.draining, first.replicas) == (True, 1)
        with pytest.raises(Busy):
            await client.call("DrainWorker", worker_id="w1", forget=True)
        await repairer(client).walk()
        await repairer(client).step()
        assert [each.block for each in (await two.beat("w2", 2)).copy] == [key.block]
        await two.beat("w2", 2, added=[held(key)], copied=[copied(key)])
        await repairer(client).step()
        assert [each.block for each in (await one.beat()).delete] == [key.block]
        await one.beat(removed=[key])
        assert (await client.call("Status")).workers[0].replicas == 0
        await client.call("DrainWorker", worker_id="w2")
        with pytest.raises(NoSpace, match="being drained"):
            await client.create(b"h", allocate=True)
        await client.call("DrainWorker", worker_id="w2", stop=True)
        await client.create(b"h", allocate=True)
        await client.call("DrainWorker", worker_id="w1", forget=True)
        assert [each.worker.worker_id for each in (await client.call("Status")).workers] == ["w2"]
        assert (await one.beat()).register

    serve(test)


def test_forgetting_a_lost_worker_gives_up_what_only_it_had(serve):
    async def test(client, one):
        await client.register()
        await one.register_worker()
        await publish(client, b"f")
        client.clock.advance(60)
        await client.master._upkeep.age_workers()
        await client.call("DrainWorker", worker_id="w1", forget=True)
        status = await client.call("Status")
        assert list(status.workers) == []
        await client.master._upkeep.count_unavailable()
        assert (await client.call("Status")).unavailable_files == 1
        records = [record async for record in client.stub.Dump(master_pb2.DumpRequest())]
        assert records[-1].end.problems == []

    serve(test)


def test_rebalancing_ends_when_workers_are_even(serve):
    async def test(client, one, two):
        def disks(used):
            return [master_pb2.Disk(path="/d", capacity_bytes=1000, used_bytes=used, available_bytes=1000 - used)]

        await client.register()
        await one.register_worker(disks=disks(900))
        keys = [await publish(client, b"f%d" % number) for number in range(8)]
        await two.register_worker("w2", 2, disks=disks(0))
        for bad in (51, 1000):
            with pytest.raises(InvalidArgument):
                await client.call("Rebalance", percent=bad)
        await client.call("Rebalance", percent=10)
        await repairer(client).walk()
        await repairer(client).step()
        assert (await client.call("Status")).rebalance_percent == 10
        orders = (await two.beat("w2", 2, disks=disks(0))).copy
        assert len(orders) == 4  # 350 bytes too many, in blocks of 100
        await two.beat("w2", 2, disks=disks(400), added=[held(each) for each in orders], copied=map(copied, orders))
        await repairer(client).step()
        assert len((await one.beat(disks=disks(500))).delete) == 4
        await repairer(client).step()
        await repairer(client).walk()
        client.clock.advance(4)
        await two.beat("w2", 2, disks=disks(400))
        await one.beat(disks=disks(500))
        await repairer(client).walk()
        assert (await client.call("Status")).rebalance_percent == 0
        assert {each.block for each in orders} < {each.block for each in keys}

    serve(test)


def test_recheck_doubts_replicas_and_wants_reports(serve):
    async def test(client, one):
        await client.register()
        await one.register_worker()
        await one.call("ReportBlocks", worker_id="w1", incarnation=1, start=True, end=True)
        key = await publish(client, b"f")
        assert not (await one.beat()).report_all
        wrong = master_pb2.Replica(block=key.block, generation=key.generation, worker_id="w1")
        await client.call("Recheck", replicas=[wrong], report_workers=["w1", "nobody"])
        reply = await one.beat()
        assert [each.block for each in reply.verify] == [key.block]
        assert reply.report_all
        with pytest.raises(TooBig):
            await client.call("Recheck", replicas=[wrong] * 5000)

    serve(test)


def test_workers_are_nudged_when_there_is_an_order(serve):
    async def test(client, one, two):
        await client.register()
        await one.register_worker()
        await two.register_worker("w2", 2)
        with pytest.raises(InvalidArgument):
            await read_all(client.stub.Nudges(master_pb2.NudgesRequest(worker_id="w2", incarnation=7)))
        await ask_for(client, 2)
        older = client.stub.Nudges(master_pb2.NudgesRequest(worker_id="w2", incarnation=2))
        await older.read()
        stream = client.stub.Nudges(master_pb2.NudgesRequest(worker_id="w2", incarnation=2))
        await stream.read()
        assert await older.read() in (master_pb2.Nudge(), grpc.aio.EOF)
        await publish(client, b"f")
        assert await asyncio.wait_for(stream.read(), TIMEOUT_S) == master_pb2.Nudge()
        assert len((await two.beat("w2", 2)).copy) == 1

    serve(test)


# ------------------------------------------------------------------ upkeep


def test_upkeep(serve):
    async def test(client, other, worker):
        upkeep, clock = client.master._upkeep, client.clock
        await client.register()
        await other.register()
        await worker.register_worker()
        await client.mutate(allocate=master_pb2.Allocate(count=1))
        clock.advance(301)
        await upkeep.expire_sessions()
        await asyncio.sleep(0.05)
        with pytest.raises(StaleSession):
            await client.call("Statfs")
        await other.register()
        with client.master.core.view() as view:
            assert [session.client_id for _, session in view.sessions()] == [other.client_id]
        await upkeep.clean_clients()
        with client.master.core.view() as view:
            assert len(list(view.working_blocks())) == 1
        clock.advance(61)
        await upkeep.clean_clients()
        with client.master.core.view() as view:
            assert list(view.working_blocks()) == []
            assert len(list(view.clients())) == 2
        clock.advance(3600)
        await upkeep.clean_clients()
        with client.master.core.view() as view:
            assert [number for number, _ in view.clients()] == [other.client_id]
        await upkeep.trim_journal()
        with client.master.core.view() as view:
            assert len(view.reader.scan("journal")) == 5
        await upkeep.clear_readers()
        await upkeep.age_workers()
        await upkeep.count_unavailable()
        assert client.master.health() == (True, "ok")

    serve(test, journal_retention_records=5)


def test_busy(serve, monkeypatch):
    async def test(client):
        await client.register()

        def full(request):
            raise Busy("full")

        monkeypatch.setattr(client.master.core.committer, "submit", full)
        with pytest.raises(Busy):
            await client.mkdir(b"d")

    serve(test)


def test_old_protocols_are_refused(serve, monkeypatch):
    monkeypatch.setattr("hearthfs.master.service.PROTOCOL", 3)

    async def test(client, worker):
        with pytest.raises(NotSupported, match="speaks 2 and 3"):
            await client.register()
        with pytest.raises(NotSupported):
            await worker.register_worker()

    serve(test)


def test_restart_on_the_same_directory(serve):
    seen = {}

    async def before(mount, client):
        await mount.register(holds_grants=True)
        await client.register()
        await client.mkdir(b"d")
        await mount.call("Getattr", inode=ROOT)
        seen["context"], seen["mount"] = client.context, mount.context

    async def after(mount, client):
        client.context = seen["context"]
        with pytest.raises(StaleEpoch):
            await client.call("Statfs")
        assert (await client.register()).epoch == 2
        client.request_id = 1
        assert (await client.call("Lookup", parent=ROOT, name=b"d")).attributes.nlink == 2
        with pytest.raises(Exists):
            await client.mkdir(b"d")
        # What the mount had cached is not known any more: it counts until it comes back or its lease is over.
        change = asyncio.create_task(client.mkdir(b"e"))
        await asyncio.sleep(0.05)
        assert not change.done()
        await mount.register(holds_grants=True)
        await change

    serve(before)
    serve(after)


def test_open_streams_do_not_hold_a_stopping_master(serve):
    async def test(mount):
        await mount.register(holds_grants=True)
        async with mount.watch() as stream:
            stopping = asyncio.create_task(mount.master.stop())
            with pytest.raises(Unavailable):
                await read_all(stream)
            await asyncio.wait_for(stopping, 4)

    serve(test, stop_grace_s=60)
