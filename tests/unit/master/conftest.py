"""A machine over a store, driven command by command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hearthfs.master import check, commands, machine
from hearthfs.master.records import Reply
from hearthfs.master.tables import TABLES, MemoryStore, Store, rows
from hearthfs.master.view import View

CLIENT = 7
SESSION = 70


class Tree:
    """Applies commands as one client, one nanosecond after another."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_ns = 1_000
        self.request_id = 0
        self.touched: tuple[object, ...] = ()
        self.moved: tuple[object, ...] = ()
        self.own(commands.BeginEpoch("test"))
        self.own(commands.RegisterSession(SESSION, CLIENT, "node", "sdk", "test", False))
        for worker in ("w1", "w2"):
            self.own(commands.RegisterWorker(worker, f"node-{worker}", "127.0.0.1:1", 1, ("/disk",)))

    def own(self, command: commands.AnyCommand) -> Reply:
        return self.request(commands.Request(command, self._tick()))

    def do(self, command: commands.AnyCommand, client_id: int = CLIENT) -> Reply:
        """The reply, or the error raised."""
        self.request_id += 1
        return self.request(
            commands.Request(command, self._tick(), client_id=client_id, request_id=self.request_id, session_id=SESSION)
        )

    def request(self, request: commands.Request) -> Reply:
        with self.store.batch() as batch:
            outcome = machine.apply(batch, request)
        self.touched, self.moved = outcome.touched, outcome.moved
        error = machine.error_of(outcome.result)
        if error is not None:
            raise error
        return outcome.result.reply

    def _tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    @contextmanager
    def view(self) -> Iterator[View]:
        with self.store.snapshot() as reader:
            yield View(reader)

    def problems(self) -> list[str]:
        with self.view() as view:
            return check.problems(view)

    # ---------------------------------------------------------------- shorthands

    def mkdir(self, parent: int, name: bytes, mode: int = 0o755) -> int:
        return self.do(commands.Mkdir(parent, name, mode, 0, 0)).inode

    def create(self, parent: int, name: bytes) -> int:
        return self.do(commands.Create(parent, name, 0o644, 0, 0)).inode

    def names(self, parent: int) -> list[bytes]:
        with self.view() as view:
            return [entry.name for _, entry in view.listing(parent, 0, 1000)]

    def inode(self, number: int):
        with self.view() as view:
            return view.find_inode(number)

    def allocate(self, worker: str = "w1", client_id: int = CLIENT) -> tuple[int, int]:
        block = self.do(commands.Allocate((worker,)), client_id).blocks[0]
        return block.block, block.generation

    def publish(self, inode: int, length: int = 100, worker: str = "w1", **changes: object) -> int:
        """Allocates a block, publishes it, returns its number."""
        block, generation = self.allocate(worker)
        self.do(commands.Publish(publication(inode, block, generation, length, worker_id=worker, **changes)))
        return block

    def garbage(self, worker: str = "w1") -> list[int]:
        with self.view() as view:
            return [block for block, _ in view.garbage(worker, 1000)]

    def dump(self, without: tuple[str, ...] = ()) -> dict[str, list[tuple[bytes, bytes]]]:
        with self.store.snapshot() as reader:
            return {table: list(rows(reader, table)) for table in TABLES if table not in without}


def publication(inode: int, block: int, generation: int, length: int, **changes: object) -> commands.Publication:
    values: dict[str, object] = {
        "digest": 1234,
        "sealed": True,
        "worker_id": "w1",
        "size_bytes": length,
    }
    return commands.Publication(
        inode=inode,
        block=block,
        generation=generation,
        length_bytes=length,
        **values | changes,  # type: ignore[arg-type]
    )


@pytest.fixture
def tree() -> Iterator[Tree]:
    """A machine with root, one client and two workers; its tables are checked at the end of the test."""
    tree = Tree(MemoryStore())
    yield tree
    assert tree.problems() == []


@pytest.fixture
def make_publication():
    return publication


@pytest.fixture(scope="session")
def make_tree():
    return Tree
