import asyncio
import contextlib
import threading

import pytest
from hearthfs.common.errors import Busy, DataDamaged, Internal, NoSpace, NotFound, Unavailable
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, machine
from hearthfs.master.commands import Request
from hearthfs.master.committer import Committer
from hearthfs.master.store import StoreFailed
from hearthfs.master.tables import MemoryStore

FOUND = Request(commands.BeginEpoch("test"), 1)


def mkdir(name):
    return Request(commands.Mkdir(ROOT_INODE, name, 0o755, 0, 0), 2)


class Store(MemoryStore):
    """One whose commits can be held, failed, counted."""

    def __init__(self):
        super().__init__()
        self.room = True
        self.commit_error = None
        self.gate = threading.Event()
        self.gate.set()
        self.commits = 0

    def has_room(self):
        assert self.gate.wait(5)
        return self.room

    def batch(self):
        if self.commit_error is not None:
            raise self.commit_error
        self.commits += 1
        return super().batch()


@pytest.fixture
def run():
    """Runs ``test(committer, store, fatal)`` in a loop, on a store that has a root."""

    def run(test, **options):
        async def main():
            store, fatal = Store(), []
            committer = Committer(
                store,
                asyncio.get_running_loop(),
                queue_commands=options.get("queue_commands", 100),
                on_commit=lambda applied, version: [one.outcome for one in applied],
                on_fatal=fatal.append,
            )
            await committer.submit(FOUND)
            try:
                await test(committer, store, fatal)
            finally:
                store.gate.set()
                assert await asyncio.to_thread(committer.close, 5)

        asyncio.run(main())

    return run


def test_what_waits_shares_a_commit(run):
    async def test(committer, store, fatal):
        store.gate.clear()
        futures = [committer.submit(mkdir(b"%d" % number)) for number in range(20)]
        store.gate.set()
        outcomes = await asyncio.gather(*futures)
        assert [outcome.result.reply.inode for outcome in outcomes] == list(range(2, 22))
        assert store.commits <= 3

    run(test)


def test_a_failure_by_the_rules_is_an_outcome(run):
    async def test(committer, store, fatal):
        outcome = await committer.submit(Request(commands.Unlink(ROOT_INODE, b"x"), 3))
        assert isinstance(machine.error_of(outcome.result), NotFound)

    run(test)


def test_a_poison_command_fails_alone(run, monkeypatch):
    def poison(change, command):
        raise ZeroDivisionError

    monkeypatch.setitem(machine.RULES, commands.Rmdir, poison)

    async def test(committer, store, fatal):
        store.gate.clear()
        futures = [
            committer.submit(mkdir(b"a")),
            committer.submit(Request(commands.Rmdir(ROOT_INODE, b"a"), 3)),
            committer.submit(mkdir(b"b")),
        ]
        store.gate.set()
        first, second, third = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(second, Internal)
        assert machine.error_of(first.result) is machine.error_of(third.result) is None
        assert fatal == []

    run(test)


def test_damage_fails_alone(run, monkeypatch):
    def damaged(change, command):
        raise DataDamaged("x")

    monkeypatch.setitem(machine.RULES, commands.Rmdir, damaged)

    async def test(committer, store, fatal):
        with pytest.raises(DataDamaged):
            await committer.submit(Request(commands.Rmdir(ROOT_INODE, b"a"), 3))
        await committer.submit(mkdir(b"b"))

    run(test)


def test_without_room_only_what_frees_goes_on(run):
    async def test(committer, store, fatal):
        await committer.submit(mkdir(b"a"))
        store.room = False
        with pytest.raises(NoSpace):
            await committer.submit(mkdir(b"b"))
        outcome = await committer.submit(Request(commands.Rmdir(ROOT_INODE, b"a"), 3))
        assert machine.error_of(outcome.result) is None
        store.room = True
        await committer.submit(mkdir(b"b"))

    run(test)


def test_a_commit_without_room_fails_its_group_and_not_the_next(run):
    async def test(committer, store, fatal):
        store.commit_error = NoSpace("full")
        with pytest.raises(NoSpace):
            await committer.submit(mkdir(b"a"))
        store.commit_error = None
        await committer.submit(mkdir(b"a"))
        assert fatal == []

    run(test)


def test_a_failed_sync_ends_everything(run):
    async def test(committer, store, fatal):
        store.gate.clear()
        store.commit_error = StoreFailed("commit failed: Input/output error")
        futures = [committer.submit(mkdir(b"%d" % number)) for number in range(3)]
        store.gate.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)
        await asyncio.sleep(0)
        assert fatal == ["commit failed: Input/output error"]
        store.commit_error = None
        with pytest.raises(Unavailable, match="Input/output error"):
            committer.submit(mkdir(b"x"))

    run(test)


def test_the_queue_is_bounded(run):
    async def test(committer, store, fatal):
        store.gate.clear()
        futures = [committer.submit(mkdir(b"%d" % number)) for number in range(10)]
        await asyncio.sleep(0.01)  # the writer takes what it finds, and waits at the gate
        for number in range(10):
            with contextlib.suppress(Busy):
                futures.append(committer.submit(mkdir(b"more %d" % number)))
        with pytest.raises(Busy):
            committer.submit(mkdir(b"x"))
        store.gate.set()
        await asyncio.gather(*futures)

    run(test, queue_commands=10)


def test_a_caller_that_has_gone(run):
    async def test(committer, store, fatal):
        store.gate.clear()
        gone = committer.submit(mkdir(b"a"))
        kept = committer.submit(mkdir(b"b"))
        gone.cancel()
        store.gate.set()
        outcome = await kept
        assert outcome.result.reply.inode == 3  # the other was applied all the same

    run(test)


def test_upkeep_runs_in_the_writer(run):
    async def test(committer, store, fatal):
        def job(batch):
            with batch.step() as txn:
                txn.put("meta", b"x", b"1")
            return threading.current_thread().name

        assert await committer.run(job) == "committer"

        def broken(batch):
            raise ZeroDivisionError

        with pytest.raises(Internal):
            await committer.run(broken)

    run(test)


def test_close_commits_what_is_queued_and_takes_nothing_more(run):
    async def test(committer, store, fatal):
        store.gate.clear()
        future = committer.submit(mkdir(b"a"))
        closing = asyncio.create_task(asyncio.to_thread(committer.close, 5))
        await asyncio.sleep(0.01)
        store.gate.set()
        assert await closing
        await future
        with pytest.raises(Unavailable, match="stopping"):
            committer.submit(mkdir(b"b"))

    run(test)
