import random

import msgspec
import pytest
from hearthfs.common.errors import DataDamaged, Exists, HearthError, InvalidArgument, NoSpace, NotFound
from hearthfs.common.types import ROOT_INODE
from hearthfs.master import commands, journal, machine
from hearthfs.master.store import LmdbStore
from hearthfs.master.tables import MemoryStore

ROOT = ROOT_INODE
OTHER = 9


def request(command, request_id, acked_below=0, client_id=OTHER, now_ns=5):
    return commands.Request(
        command, now_ns, client_id=client_id, request_id=request_id, acked_below=acked_below, session_id=90
    )


@pytest.fixture
def apply(tree):
    def apply(*arguments, **keywords):
        with tree.store.batch() as batch:
            return machine.apply(batch, request(*arguments, **keywords))

    return apply


def results(tree):
    return [key for key, _ in tree.dump()["results"]]


def test_every_command_has_a_rule():
    assert set(machine.RULES) == set(commands.AnyCommand.__args__)


def test_the_same_request_is_applied_once(tree, apply):
    create = commands.Create(ROOT, b"f", 0o600, 0, 0, exclusive=True)
    first = apply(create, 1)
    tree.do(commands.Unlink(ROOT, b"f"))
    before = tree.dump()
    again = apply(create, 1, now_ns=99)
    assert again.replayed
    assert not first.replayed
    assert again.result == first.result
    assert again.touched == ()
    assert tree.dump() == before


def test_a_failure_is_an_answer_too(tree, apply):
    unlink = commands.Unlink(ROOT, b"f")
    first = apply(unlink, 1)
    assert isinstance(machine.error_of(first.result), NotFound)
    tree.create(ROOT, b"f")
    again = apply(unlink, 1)
    assert again.replayed
    assert isinstance(machine.error_of(again.result), NotFound)
    assert tree.names(ROOT) == [b"f"]
    assert machine.error_of(apply(unlink, 2).result) is None


def test_answers_outlive_a_restart_and_a_session(tmp_path, make_tree):
    store = LmdbStore(tmp_path / "data")
    tree = make_tree(store)
    made = tree.create(ROOT, b"f")
    with pytest.raises(Exists):
        tree.mkdir(ROOT, b"f")
    store.close()
    tree.store = LmdbStore(tmp_path / "data")
    tree.own(commands.BeginEpoch("test"))
    tree.own(commands.RegisterSession(71, 7, "node", "sdk", "again", False))
    tree.request_id = 0
    assert tree.create(ROOT, b"f") == made
    with pytest.raises(Exists):
        tree.mkdir(ROOT, b"f")
    assert tree.names(ROOT) == [b"f"]
    tree.store.close()


def test_acknowledged_results_go(tree, apply):
    for number in range(1, 6):
        apply(commands.Create(ROOT, b"%d" % number, 0o600, 0, 0), number, acked_below=1)
    assert len(results(tree)) == 5
    apply(commands.Create(ROOT, b"6", 0o600, 0, 0), 6, acked_below=4)
    assert [key[-1] for key in results(tree)] == [4, 5, 6]
    with pytest.raises(InvalidArgument, match="acknowledged"):
        apply(commands.Create(ROOT, b"x", 0o600, 0, 0), 3)
    assert machine.error_of(apply(commands.Create(ROOT, b"5", 0o600, 0, 0), 5, acked_below=2).result) is None
    apply(commands.Create(ROOT, b"7", 0o600, 0, 0), 7, acked_below=7)
    assert [key[-1] for key in results(tree)] == [7]


def test_results_of_others_stay(tree, apply):
    apply(commands.Create(ROOT, b"1", 0o600, 0, 0), 1, client_id=OTHER)
    apply(commands.Create(ROOT, b"2", 0o600, 0, 0), 1, client_id=OTHER + 1)
    apply(commands.Create(ROOT, b"3", 0o600, 0, 0), 2, acked_below=2, client_id=OTHER)
    assert [(key[7], key[-1]) for key in results(tree)] == [(OTHER, 2), (OTHER + 1, 1)]


@pytest.mark.parametrize(("request_id", "acked_below"), [(0, 0), (1, 2), (machine.MAX_UNACKED + 2, 1)])
def test_numbers_that_make_no_sense(tree, apply, request_id, acked_below):
    before = tree.dump()
    with pytest.raises(InvalidArgument):
        apply(commands.Create(ROOT, b"f", 0o600, 0, 0), request_id, acked_below)
    assert tree.dump() == before


def test_a_number_stands_for_one_operation(tree, apply):
    apply(commands.Create(ROOT, b"f", 0o600, 0, 0), 1)
    with pytest.raises(InvalidArgument, match="was Create before and is Unlink now"):
        apply(commands.Unlink(ROOT, b"f"), 1)


def test_a_failing_command_leaves_only_its_result(tree, apply):
    tables = ("results", "journal", "clients", "meta")
    before = tree.dump(tables)
    names = (b"a", b"b")
    command = commands.PutMany(ROOT, names, 0, 0, 0, (1,), (1,), (1,), (1,), "w1")
    assert machine.error_of(apply(command, 1).result)
    assert tree.dump(tables) == before


def test_a_fault_in_a_rule_leaves_nothing(tree, apply, monkeypatch):
    def broken(change, command):
        change.delete_inode(ROOT)
        raise ZeroDivisionError

    before = tree.dump()
    monkeypatch.setitem(machine.RULES, commands.Mkdir, broken)
    with pytest.raises(ZeroDivisionError):
        apply(commands.Mkdir(ROOT, b"d", 0, 0, 0), 1)
    assert tree.dump() == before


@pytest.mark.parametrize("error", [NoSpace, DataDamaged])
def test_a_failure_of_the_store_is_not_remembered(tree, apply, monkeypatch, error):
    real = machine.RULES[commands.Mkdir]

    def fails(change, command):
        raise DataDamaged("x")

    def full(txn, request, *_):
        raise NoSpace("x")

    if error is DataDamaged:
        monkeypatch.setitem(machine.RULES, commands.Mkdir, fails)
    else:
        monkeypatch.setattr(journal, "append", full)
    before = tree.dump()
    with pytest.raises(error):
        apply(commands.Mkdir(ROOT, b"d", 0, 0, 0), 1)
    assert tree.dump() == before
    monkeypatch.undo()
    assert machine.RULES[commands.Mkdir] is real
    assert machine.error_of(apply(commands.Mkdir(ROOT, b"d", 0, 0, 0), 1).result) is None


def test_forgotten_clients(tree):
    tree.create(ROOT, b"f")
    tree.own(commands.ForgetClients((7,)))
    assert len(results(tree)) == 1  # it has a session
    tree.own(commands.EndSessions((70,)))
    tree.own(commands.ForgetClients((7, 12345)))
    assert results(tree) == []
    assert tree.dump()["clients"] == []


# ------------------------------------------------------------------ replay


def busy(tree, seed):
    """Some hundred commands of all kinds, many of which fail."""
    chance = random.Random(seed)
    names = [b"a", b"b", b"c", b"d"]
    blocks: list[tuple[int, int]] = []

    def inode():
        return chance.randrange(1, 20)

    def name():
        return chance.choice(names)

    def publication():
        block, generation = blocks.pop() if blocks and chance.random() < 0.8 else (chance.randrange(50), 1)
        return commands.Publication(inode(), block, generation, 10, 1, True, "w1", chance.choice([10, 20]))

    makers = [
        lambda: commands.Create(inode(), name(), 0o644, 0, 0, chance.random() < 0.3),
        lambda: commands.Mkdir(inode(), name(), 0o755, 0, 0),
        lambda: commands.Symlink(inode(), name(), b"x", 0, 0),
        lambda: commands.Link(inode(), inode(), name()),
        lambda: commands.Unlink(inode(), name()),
        lambda: commands.Rmdir(inode(), name()),
        lambda: commands.Rename(inode(), name(), inode(), name(), chance.choice([0, 0, 1, 2])),
        lambda: commands.Setattr(inode(), size_bytes=chance.choice([None, 0, 5, 100]), mode=0o600),
        lambda: commands.SetXattr(inode(), b"user." + name(), b"v"),
        lambda: commands.RemoveXattr(inode(), b"user." + name()),
        lambda: commands.Allocate(("w1", "w2")),
        lambda: commands.Publish(publication()),
        lambda: commands.PublishMany((publication(), publication())),
        lambda: commands.CreateMany(inode(), (name(), name()), 0o644, 0, 0),
        lambda: commands.UnlinkMany(inode(), (name(), name())),
        lambda: commands.Discard((chance.randrange(50),)),
        lambda: commands.ReportBadReplica(chance.randrange(50), 1, "w1"),
        lambda: commands.PutMany(1, (name(),), 0o644, 0, 0, (chance.randrange(50),), (1,), (9,), (3,), "w2"),
    ]
    for _ in range(300):
        command = chance.choice(makers)()
        try:
            reply = tree.do(command)
            blocks += [(b.block, b.generation) for b in reply.blocks]
        except HearthError:
            pass
        if chance.random() < 0.1:
            block = chance.randrange(50)
            held = commands.HeldBlock(block, 1, 10, 1)
            tree.own(commands.UpdateReplicas("w2", (held,), ((chance.randrange(50), 1),)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replayed_journal_makes_the_same_tables(make_tree, seed):
    tree = make_tree(MemoryStore())
    busy(tree, seed)
    tree.own(commands.EndSessions((70,)))
    tree.own(commands.BeginEpoch("test"))
    assert tree.problems() == []
    copy = MemoryStore()
    with tree.store.snapshot() as reader:
        records = list(journal.iterate(reader))
    assert sum(bool(record.error) for record in records) > 20
    assert sum(not record.error for record in records) > 100
    with copy.batch() as batch:
        for record in records:
            machine.replay(batch, record)
    expected = tree.dump()
    tree.store = copy
    assert tree.dump() == expected


def test_a_replay_that_ends_otherwise_is_damage(tree):
    record = journal.Record(1, request(commands.Unlink(ROOT, b"f"), 1))
    with (
        pytest.raises(DataDamaged, match="ended with NotFound, in the journal with success"),
        tree.store.batch() as batch,
    ):
        machine.replay(batch, record)


def test_commands_survive_encoding(tree):
    for command in (
        commands.Setattr(1, mode=0, size_bytes=0),
        commands.Rename(1, b"\xff", (1 << 64) - 1, b"b", 2),
        commands.PutMany(1, (b"a",), 1, 2, 3, ((1 << 64) - 1,), (1,), (1,), (1,), "w", True, ("w",)),
    ):
        encoded = msgspec.msgpack.encode(request(command, 1))
        assert msgspec.msgpack.decode(encoded, type=commands.Request).command == command
