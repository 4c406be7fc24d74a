"""The master's rules against a namespace of plain dictionaries: same results, errors and trees, no broken law."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from hearthfs.common.errors import HearthError
from hearthfs.master import check, commands, machine
from hearthfs.master.records import Reply
from hearthfs.master.tables import MemoryStore
from hearthfs.master.view import View
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

ROOT = 1
NAMES = st.sampled_from([b"a", b"b", b"c", b"\xff", b"x" * 255])
ODD_NAMES = st.sampled_from([b"", b".", b"..", b"a/b", b"\0", b"x" * 256])
ANY_NAME = st.one_of(NAMES, NAMES, NAMES, ODD_NAMES)
PICK = st.integers(0, 1 << 16)


class Refused(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class Node:
    kind: str  # "file", "dir", "link"
    names: dict[bytes, int] = field(default_factory=dict)
    size: int = 0
    content: int = 0  # which block; 0: none
    valid: int = 0
    links: int = 1


class Model:
    """What POSIX says, in as few words as possible."""

    def __init__(self) -> None:
        self.nodes = {ROOT: Node("dir")}

    def directory(self, number: int) -> Node:
        node = self.node(number)
        if node.kind != "dir":
            raise Refused(errno.ENOTDIR)
        return node

    def node(self, number: int) -> Node:
        if number not in self.nodes:
            raise Refused(errno.ESTALE)
        return self.nodes[number]

    def check(self, name: bytes) -> None:
        if len(name) > 255:
            raise Refused(errno.ENAMETOOLONG)
        if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
            raise Refused(errno.EINVAL)

    def add(self, parent: int, name: bytes, kind: str, number: int | None) -> None:
        self.check(name)
        directory = self.directory(parent)
        if name in directory.names:
            raise Refused(errno.EEXIST)
        if number is not None:
            directory.names[name] = number
            self.nodes[number] = Node(kind)

    def link(self, number: int, parent: int, name: bytes) -> None:
        self.check(name)
        directory = self.directory(parent)
        if name in directory.names:
            raise Refused(errno.EEXIST)
        node = self.node(number)
        if node.kind == "dir":
            raise Refused(errno.EPERM)
        directory.names[name] = number
        node.links += 1

    def find(self, parent: int, name: bytes) -> tuple[int, Node]:
        directory = self.directory(parent)
        if name not in directory.names:
            raise Refused(errno.ENOENT)
        return directory.names[name], self.nodes[directory.names[name]]

    def drop(self, number: int) -> None:
        node = self.nodes[number]
        node.links -= 1
        if not node.links:
            del self.nodes[number]

    def unlink(self, parent: int, name: bytes) -> None:
        self.directory(parent)
        self.check(name)
        number, node = self.find(parent, name)
        if node.kind == "dir":
            raise Refused(errno.EISDIR)
        del self.nodes[parent].names[name]
        self.drop(number)

    def rmdir(self, parent: int, name: bytes) -> None:
        self.check(name)
        number, node = self.find(parent, name)
        if node.kind != "dir":
            raise Refused(errno.ENOTDIR)
        if node.names:
            raise Refused(errno.ENOTEMPTY)
        del self.nodes[parent].names[name]
        del self.nodes[number]

    def is_below(self, number: int, ancestor: int) -> bool:
        """Whether a directory is the ancestor, or lies below it."""
        children = [n for n in self.nodes[ancestor].names.values() if self.nodes[n].kind == "dir"]
        return number == ancestor or any(self.is_below(number, child) for child in children)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        self.check(name)
        self.check(new_name)
        source_directory, target_directory = self.directory(parent), self.directory(new_parent)
        number, node = self.find(parent, name)
        old_number = target_directory.names.get(new_name)
        if old_number is not None and flags == commands.RENAME_NOREPLACE:
            raise Refused(errno.EEXIST)
        if old_number is None and flags == commands.RENAME_EXCHANGE:
            raise Refused(errno.ENOENT)
        if old_number == number:
            return
        if node.kind == "dir" and self.is_below(new_parent, number):
            raise Refused(errno.EINVAL)
        if old_number is not None:
            old = self.nodes[old_number]
            if flags == commands.RENAME_EXCHANGE:
                if old.kind == "dir" and self.is_below(parent, old_number):
                    raise Refused(errno.EINVAL)
                source_directory.names[name] = old_number
                target_directory.names[new_name] = number
                return
            if old.kind == "dir" and node.kind != "dir":
                raise Refused(errno.EISDIR)
            if old.kind != "dir" and node.kind == "dir":
                raise Refused(errno.ENOTDIR)
            if old.names:
                raise Refused(errno.ENOTEMPTY)
            self.drop(old_number)
        del source_directory.names[name]
        target_directory.names[new_name] = number

    def truncate(self, number: int, size: int) -> None:
        node = self.node(number)
        if node.kind != "file":
            raise Refused(errno.EISDIR if node.kind == "dir" else errno.EINVAL)
        node.size, node.valid = size, min(node.valid, size)
        node.content = node.content if node.valid else 0

    def publish(self, number: int, block: int, length: int) -> None:
        self.truncate(number, 0)
        node = self.nodes[number]
        node.size = node.valid = length
        node.content = block if length else 0


class MasterAgainstModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.store = MemoryStore()
        self.model = Model()
        self.request_id = 0
        self.working: list[tuple[int, int]] = []
        self.known = [ROOT]  # every inode that ever was
        self.cookies: dict[tuple[int, bytes], int] = {}
        self.apply(commands.BeginEpoch("test"))
        self.apply(commands.RegisterSession(1, 7, "n", "sdk", "x", False))
        self.apply(commands.RegisterWorker("w", "n", "a", 1, ()))
        self.request_id = 1

    def apply(self, command: commands.AnyCommand, repeat: bool = True) -> Reply:
        client_id = 7 if self.request_id else 0
        self.request_id += 1 if client_id else 0
        request = commands.Request(command, 1000 + self.request_id, client_id, self.request_id, self.request_id)
        for _ in range(2 if client_id and repeat else 1):  # a request that comes twice is applied once
            with self.store.batch() as batch:
                outcome = machine.apply(batch, request)
        error = machine.error_of(outcome.result)
        if error is not None:
            raise error
        return outcome.result.reply

    def both(self, command: commands.AnyCommand, model: Callable[[Reply | None], None]) -> Reply | None:
        """The master first; the model then gets its reply, or None if it refused, and must agree."""
        reply, number = None, 0
        try:
            reply = self.apply(command)
        except HearthError as error:
            number = error.number
        expected = 0
        try:
            model(reply)
        except Refused as refused:
            expected = refused.number
        assert number == expected, (command, errno.errorcode.get(number), errno.errorcode.get(expected))
        return reply

    def pick(self, number: int) -> int:
        """Any inode that ever was, mostly one that still is."""
        if number % 10 and self.model.nodes:
            alive = sorted(self.model.nodes)
            return alive[number % len(alive)]
        return self.known[number % len(self.known)]

    def add(self, command: commands.AnyCommand, parent: int, name: bytes, kind: str) -> None:
        reply = self.both(command, lambda reply: self.model.add(parent, name, kind, reply.inode if reply else None))
        if reply is not None:
            assert reply.inode not in self.known  # never used again
            self.known.append(reply.inode)

    @rule(parent=PICK, name=ANY_NAME)
    def create(self, parent: int, name: bytes) -> None:
        parent = self.pick(parent)
        self.add(commands.Create(parent, name, 0o644, 0, 0, exclusive=True), parent, name, "file")

    @rule(parent=PICK, name=ANY_NAME)
    def mkdir(self, parent: int, name: bytes) -> None:
        parent = self.pick(parent)
        self.add(commands.Mkdir(parent, name, 0o755, 0, 0), parent, name, "dir")

    @rule(parent=PICK, name=NAMES)
    def symlink(self, parent: int, name: bytes) -> None:
        parent = self.pick(parent)
        self.add(commands.Symlink(parent, name, b"t", 0, 0), parent, name, "link")

    @rule(inode=PICK, parent=PICK, name=ANY_NAME)
    def link(self, inode: int, parent: int, name: bytes) -> None:
        inode, parent = self.pick(inode), self.pick(parent)
        self.both(commands.Link(inode, parent, name), lambda _: self.model.link(inode, parent, name))

    @rule(parent=PICK, name=ANY_NAME)
    def unlink(self, parent: int, name: bytes) -> None:
        parent = self.pick(parent)
        self.both(commands.Unlink(parent, name), lambda _: self.model.unlink(parent, name))

    @rule(parent=PICK, name=ANY_NAME)
    def rmdir(self, parent: int, name: bytes) -> None:
        parent = self.pick(parent)
        self.both(commands.Rmdir(parent, name), lambda _: self.model.rmdir(parent, name))

    @rule(parent=PICK, name=ANY_NAME, new_parent=PICK, new_name=ANY_NAME, flags=st.sampled_from([0, 0, 1, 2]))
    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        parent, new_parent = self.pick(parent), self.pick(new_parent)
        command = commands.Rename(parent, name, new_parent, new_name, flags)
        self.both(command, lambda _: self.model.rename(parent, name, new_parent, new_name, flags))

    @rule(inode=PICK, size=st.sampled_from([0, 1, 50, 1000]))
    def truncate(self, inode: int, size: int) -> None:
        inode = self.pick(inode)
        self.both(commands.Setattr(inode, size_bytes=size), lambda _: self.model.truncate(inode, size))

    @rule()
    def allocate(self) -> None:
        working = self.apply(commands.Allocate(("w",))).blocks[0]
        self.working.append((working.block, working.generation))

    @precondition(lambda self: self.working)
    @rule(inode=PICK, length=st.sampled_from([0, 10, 100]))
    def publish(self, inode: int, length: int) -> None:
        inode = self.pick(inode)
        block, generation = self.working[-1]
        item = commands.Publication(inode, block, generation, length, 5, True, "w", length)
        if self.both(commands.Publish(item), lambda _: self.model.publish(inode, block, length)) is not None:
            self.working.pop()

    @precondition(lambda self: self.working)
    @rule(name=NAMES)
    def put(self, name: bytes) -> None:
        block, generation = self.working.pop()
        columns = ((block,), (generation,), (7,), (5,))
        reply = self.apply(commands.PutMany(ROOT, (name,), 0o644, 0, 0, *columns, "w"))
        old = self.model.nodes[ROOT].names.get(name)
        kind = self.model.nodes[old].kind if old else "file"
        if kind != "file":
            assert reply.errnos == (errno.EISDIR if kind == "dir" else errno.EEXIST,)
            self.working.append((block, generation))
            return
        assert reply.errnos == (0,)
        if old is None:
            self.model.add(ROOT, name, "file", reply.inodes[0])
            self.known.append(reply.inodes[0])
        self.model.publish(self.model.nodes[ROOT].names[name], block, 7)

    @rule()
    def restart(self) -> None:
        with self.store.batch() as batch:
            machine.apply(batch, commands.Request(commands.BeginEpoch("test"), 1))

    @invariant()
    def same_trees_and_no_broken_law(self) -> None:
        with self.store.snapshot() as reader:
            view = View(reader)
            assert check.problems(view) == []
            assert view.counters().inodes == len(self.model.nodes)
            for number, node in self.model.nodes.items():
                inode = view.inode(number)
                listing = view.listing(number, 0, 1000)
                assert {entry.name: entry.inode for _, entry in listing} == node.names
                if node.kind == "dir":
                    assert inode.is_directory
                    self.names_keep_their_cookies(number, {entry.name: cookie for cookie, entry in listing})
                    continue
                assert inode.nlink == node.links
                if node.kind == "file":
                    extent = inode.extents[0] if inode.extents else None
                    state = (inode.size_bytes, extent.block if extent else 0, extent.valid_bytes if extent else 0)
                    assert state == (node.size, node.content, node.valid)

    def names_keep_their_cookies(self, directory: int, now: dict[bytes, int]) -> None:
        for name, cookie in now.items():
            assert self.cookies.get((directory, name), cookie) == cookie
        self.cookies = {key: cookie for key, cookie in self.cookies.items() if key[0] != directory}
        self.cookies |= {(directory, name): cookie for name, cookie in now.items()}


TestMasterAgainstModel = MasterAgainstModel.TestCase
TestMasterAgainstModel.settings = settings(deadline=None)
