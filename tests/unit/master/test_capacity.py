"""What the master asks, evicts and expires, from what heartbeats say; by a clock that stands still."""

import asyncio

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.common.errors import NoSpace, NotFound
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import capacity as module
from hearthfs.master import commands
from hearthfs.master.capacity import Capacity
from hearthfs.master.core import Core
from hearthfs.master.expiry import Expiry
from hearthfs.master.membership import DiskState, Member
from hearthfs.master.settings import MasterSettings
from hearthfs.master.settling import Settling
from hearthfs.master.tables import MemoryStore
from hearthfs.proto import master_pb2 as pb

ROOT = ROOT_INODE
CAPACITY = 1000


class World:
    """A master's core with workers w1 and w2 of 1000 bytes, and /kv, a cache directory."""

    def __init__(self, settings, store):
        self.clock = FakeClock()
        self.core = Core(settings, store, self.clock, asyncio.get_running_loop(), on_stop=pytest.fail)
        self.used = {"w1": 0, "w2": 0}
        self.kv = 0

    async def begin(self):
        await self.core.begin("test")
        self.capacity = Capacity(self.core)
        self.expiry = Expiry(self.core, lambda files, size: self.capacity.count("ttl", files, size))
        for worker_id in self.used:
            await self.core.submit_own(commands.RegisterWorker(worker_id, worker_id, "127.0.0.1:1", 1, ("/d",)))
            self.core.membership.register(
                Member(worker_id, worker_id, "127.0.0.1:1", 1, ("/d",), self.clock.monotonic_s())
            )
        with self.core.view() as view:
            known = view.find_dentry(ROOT, b"kv")
        self.kv = known.inode if known else await self.mkdir(b"kv", {b"hearth.cache": b"1"})
        return self

    async def mkdir(self, name, attributes=()):
        made = await self.do(commands.Mkdir(ROOT, name, 0o755, 0, 0))
        for key, value in dict(attributes).items():
            await self.do(commands.SetXattr(made.inode, key, value))
        return made.inode

    async def do(self, command):
        return (await self.core.submit_own(command)).result.reply

    async def file(self, name, size=100, worker="w1", directory=0, depth=0):
        """A file with a block; its number."""
        (block,) = (await self.do(commands.Allocate((worker,)))).blocks
        put = commands.PutMany(
            directory or self.kv, (name,), 0o644, 0, 0, (block.block,), (block.generation,), (size,), (7,), worker,
            depths=(depth,),
        )  # fmt: skip
        assert (await self.do(put)).errnos == (0,)
        self.used[worker] += size
        return block.block

    def member(self, worker):
        member = self.core.membership.find(worker)
        used = self.used[worker]
        disks = (DiskState("/d", CAPACITY, used, CAPACITY - used, failed=False, blocks=1),)
        self.core.membership.heartbeat(worker, 1, disks, self.clock.monotonic_s())
        return member

    async def beat(self, worker="w1", **fields):
        """One heartbeat; the reply. What it orders to be deleted is gone when the next one comes."""
        member = self.member(worker)
        await self.capacity.heard(member, pb.HeartbeatRequest(worker_id=worker, **fields))
        reply = pb.HeartbeatReply()
        with self.core.view() as view:
            for block, order in view.garbage(worker, 1000):
                reply.delete.add(block=block, generation=order.generation)
        self.capacity.reply(member, reply)
        return reply

    async def evict(self, worker="w1", in_use=()):
        """Answers the question of a reply, and what is ordered then: blocks."""
        asked = await self.beat(worker)
        reply = await self.beat(worker, answered=asked.question, in_use=in_use)
        return [key.block for key in reply.delete]

    def names(self, directory=0):
        with self.core.view() as view:
            return sorted(entry.name for _, entry in view.listing(directory or self.kv, 0, 1000))


@pytest.fixture
def run(tmp_path):
    """``run(test)`` awaits ``test(world)``; ``run(test, store)`` on tables that are there already."""

    def run(test, store=None, **settings):
        async def main():
            chosen = MasterSettings(data=tmp_path, **settings)
            world = await World(chosen, store or MemoryStore()).begin()
            try:
                await asyncio.wait_for(test(world), 60)
            finally:
                assert world.core.committer.close(10)

        asyncio.run(main())

    return run


def test_below_its_watermark_a_worker_is_asked_nothing(run):
    async def test(world):
        for number in range(9):
            await world.file(b"%d" % number)
        reply = await world.beat()
        assert (reply.question, list(reply.may_evict), list(reply.delete)) == (0, [], [])
        assert reply.reserve_bytes == 50

    run(test)


def test_above_it_files_go_until_the_lower_one(run):
    async def test(world):
        blocks = [await world.file(b"%d" % number) for number in range(10)]
        asked = await world.beat()
        assert [key.block for key in asked.may_evict] == blocks[:1]
        assert len(world.names()) == 10  # nothing goes before the worker has answered
        reply = await world.beat(answered=asked.question)
        assert [key.block for key in reply.delete] == blocks[:1]
        assert world.names() == [b"%d" % number for number in range(1, 10)]
        assert world.capacity.evicted_files == {"worker": 1}
        assert world.capacity.evicted_bytes == {"worker": 100}
        # What is being deleted is not counted twice, nor is it when it is gone.
        assert not (await world.beat()).question
        world.used["w1"] -= 100
        await world.do(commands.UpdateReplicas("w1", (), ((blocks[0], 1),)))
        assert not (await world.beat(removed=[pb.BlockKey(block=blocks[0])])).question

    run(test)


def test_a_question_is_asked_until_it_is_answered(run):
    async def test(world):
        for number in range(10):
            await world.file(b"%d" % number)
        first, again = await world.beat(), await world.beat()
        assert first.question == again.question > 0
        assert first.may_evict == again.may_evict
        await world.beat(answered=first.question + 5)  # somebody else's
        assert len(world.names()) == 10
        world.clock.advance(module.ANSWER_S + 1)
        world.member("w1")
        await world.capacity.give_up_waiting()
        assert len(world.names()) == 9

    run(test)


def test_what_is_in_use_stays_and_the_next_goes(run):
    async def test(world):
        blocks = [await world.file(b"%d" % number) for number in range(10)]
        assert await world.evict(in_use=blocks[:1]) == []
        assert len(world.names()) == 10
        world.clock.advance(module.REST_S)
        assert await world.evict() == [blocks[1]]
        assert b"0" in world.names()

    run(test)


def test_what_was_just_read_or_looked_up_stays(run):
    async def test(world):
        blocks = [await world.file(b"%d" % number) for number in range(10)]
        world.capacity.note_lookup(world.kv, [], blocks[:1])
        world.capacity.note_lookup(world.kv, [b"1", b"missing"], [])
        asked = await world.beat(read_blocks=blocks[2:3])
        world.capacity.note_lookup(world.kv, [b"3"], [])  # while the question is on its way
        assert [key.block for key in asked.may_evict] == [blocks[3]]
        await world.beat(answered=asked.question)
        assert len(world.names()) == 10
        for _ in range(2):
            await world.capacity.turn_reads()
        world.clock.advance(module.REST_S)
        assert await world.evict() == [blocks[4]]  # those four have been asked for

    run(test)


def test_only_files_of_cache_directories_go(run):
    async def test(world):
        plain = await world.mkdir(b"plain")
        for number in range(9):
            await world.file(b"%d" % number, directory=plain)
        last = await world.file(b"last")
        assert await world.evict() == [last]
        world.used["w1"] = 1000
        world.clock.advance(module.REST_S)
        assert not (await world.beat()).question
        assert len(world.names(plain)) == 9
        # Unless somebody says that they may.
        await world.do(commands.SetXattr(plain, b"user.hearth.cache", b"1"))
        world.clock.advance(module.REST_S)
        assert len(await world.evict()) >= 1

    run(test)


def test_pinned_files_stay_until_they_are_no_more(run):
    async def test(world):
        for number in range(10):
            await world.file(b"%d" % number)
        await world.do(commands.SetXattr(world.kv, b"hearth.pin", b"1"))
        assert await world.evict() == []
        await world.do(commands.RemoveXattr(world.kv, b"hearth.pin"))
        world.clock.advance(module.REST_S)
        assert len(await world.evict()) == 1

    run(test)


def test_a_master_that_starts_anew_takes_the_oldest_from_the_tables(run):
    store, blocks = MemoryStore(), []

    async def before(world):
        plain = await world.mkdir(b"plain")
        for number in range(5):
            await world.file(b"p%d" % number, 1, directory=plain)
            blocks.append(await world.file(b"%d" % number, depth=number))

    async def after(world):
        world.used["w1"] = 1000
        assert await world.evict() == [blocks[4]]  # all of one minute: the deepest

    run(before, store)
    run(after, store)


def test_all_workers_that_hold_a_file_are_asked(run):
    async def test(world):
        blocks = [await world.file(b"%d" % number) for number in range(10)]
        await world.do(commands.UpdateReplicas("w2", (commands.HeldBlock(blocks[0], 1, 100, 7),)))
        world.member("w2")
        asked = await world.beat("w1")
        assert [key.block for key in asked.may_evict] == blocks[:1]
        await world.beat("w1", answered=asked.question)
        assert len(world.names()) == 10
        other = await world.beat("w2")
        assert [key.block for key in other.may_evict] == blocks[:1]
        await world.beat("w2", answered=other.question, in_use=blocks[:1])
        assert len(world.names()) == 10

    run(test)


def test_the_cluster_has_a_watermark_of_its_own(run):
    async def test(world):
        for number in range(5):
            await world.file(b"a%d" % number, worker="w1")
            await world.file(b"b%d" % number, worker="w2")
        world.member("w2")
        await world.evict("w1")
        await world.evict("w2")
        assert len(world.names()) == 8
        assert world.capacity.evicted_files == {"cluster": 2}

    run(test, evict_cluster_above=0.45, evict_cluster_to=0.4)


def test_a_writer_waits_for_room_that_eviction_makes(run):
    async def test(world):
        for number in range(9):
            await world.file(b"%d" % number)
        request = pb.MutateRequest(allocate=pb.Allocate(count=2, size_hint_bytes=150, prefer_node="w1"))
        tried = []

        def place():
            tried.append(world.used["w1"])
            if CAPACITY - world.used["w1"] < 300:
                raise NoSpace
            return "placed"

        world.member("w1")
        waiting = asyncio.create_task(world.capacity.with_room(request, place))
        await asyncio.sleep(0)
        gone = await world.evict()
        assert len(gone) == 2
        world.used["w1"] -= 100 * len(gone)
        await world.beat(removed=[pb.BlockKey(block=block) for block in gone])
        assert await waiting == "placed"
        assert len(tried) >= 2
        assert not world.capacity._worker("w1").wanted

    run(test)


def test_and_not_where_nothing_can_go(run):
    def full():
        raise NoSpace

    async def test(world):
        world.member("w1")
        await world.beat()
        for pool in ("w1", "w2"):
            world.capacity.pool(pool).cold_from = module.COLD_END
        for size in (10, 5000):
            request = pb.MutateRequest(allocate=pb.Allocate(count=1, size_hint_bytes=size))
            with pytest.raises(NoSpace):
                await world.capacity.with_room(request, full)
        await world.file(b"f")
        request = pb.MutateRequest(allocate=pb.Allocate(count=1, size_hint_bytes=950))
        with pytest.raises(NoSpace):  # one that no eviction makes room for evicts nothing
            await world.capacity.with_room(request, full)

    run(test)


def test_a_quota_in_a_cache_directory_makes_room_for_itself(run):
    async def test(world):
        await world.file(b"outside", directory=await world.mkdir(b"other", {b"hearth.cache": b"1"}))
        await world.do(commands.SetXattr(world.kv, b"hearth.quota", b"300"))
        for number in range(3):
            await world.file(b"%d" % number)
        await world.capacity.watch_quotas()
        asked = await world.beat()
        assert len(asked.may_evict) == 1
        await world.beat(answered=asked.question)
        assert world.names() == [b"1", b"2"]
        assert world.capacity.evicted_files == {"quota": 1}
        await world.do(commands.RemoveXattr(world.kv, b"hearth.quota"))
        for _ in range(2):
            await Settling(world.core).step()
        await world.capacity.watch_quotas()
        with world.core.view() as view:
            assert list(view.quotas()) == []

    run(test)


def test_what_was_there_before_a_quota_is_counted_by_and_by(run):
    async def test(world):
        await world.file(b"f", 100)
        below = (await world.do(commands.Mkdir(world.kv, b"below", 0o755, 0, 0))).inode
        await world.file(b"g", 50, directory=below)
        await world.do(commands.SetXattr(world.kv, b"hearth.quota", b"1000"))
        await Settling(world.core).step()
        with world.core.view() as view:
            ((_, quota),) = view.quotas()
        assert (quota.used_bytes, quota.settled) == (150, True)

    run(test)


def test_files_expire_by_the_clock_that_only_runs_on(run):
    async def test(world):
        await world.file(b"before")
        await world.do(commands.SetXattr(world.kv, b"hearth.ttl", b"1m"))
        await world.file(b"f")
        world.clock.jump_wall(3600)  # somebody sets the time
        await world.expiry.step()
        assert world.names() == [b"before", b"f"]
        world.clock.advance(59)
        await world.expiry.step()
        assert len(world.names()) == 2
        world.clock.advance(4)
        await world.expiry.step()
        assert world.names() == []
        assert world.capacity.evicted_files == {"ttl": 2}

    run(test)


def test_expiry_finds_its_directories_after_a_start_and_forgets_those_that_are_gone(run):
    store = MemoryStore()

    async def before(world):
        await world.do(commands.SetXattr(world.kv, b"hearth.ttl", b"1m"))
        await world.do(commands.Mkdir(world.kv, b"below", 0o755, 0, 0))
        await world.file(b"f")

    async def after(world):
        await world.expiry.load()
        world.clock.advance(120)
        await world.expiry.step()
        assert world.names() == [b"below"]
        await world.do(commands.Rmdir(world.kv, b"below"))
        world.clock.advance(120)
        await world.expiry.step()
        assert list(world.expiry._lives_s) == [world.kv]

    run(before, store)
    run(after, store)


def test_a_large_directory_is_looked_at_in_steps(run, monkeypatch):
    monkeypatch.setattr("hearthfs.master.expiry.STEP_FILES", 2)

    async def test(world):
        await world.do(commands.SetXattr(world.kv, b"hearth.ttl", b"1m"))
        for number in range(5):
            await world.file(b"%d" % number)
        world.clock.advance(100)
        left = []
        for _ in range(4):
            await world.expiry.step()
            left.append(len(world.names()))
        assert left == [3, 1, 0, 0]

    run(test)


def test_no_file_is_missed_by_who_evicts_by_name(run):
    async def test(world):
        await world.file(b"f")
        reply = await world.do(commands.EvictMany(world.kv, (b"f", b"g")))
        assert reply.errnos == (0, NotFound.number)
        assert len(world.capacity.pool("w1")) == 0

    run(test)
