"""Two mounts and the SDK of one cluster against a plain directory and the model of promises.

Each step does one thing to HearthFS and the same to plain files, and compares results and errnos. The plain side has
two halves: a tree of *names* (empty files; names, modes, links, xattrs, errnos of everything by path), and one file for
each view (``promises.View``), the twin of what is open in one mount (bytes, offsets, errnos of everything by
descriptor). Which view an open joins, and what others see when, the model says.

Behind a relay the mount does not see what is done to a mapping, unless the file was opened to be read and written when
nobody in the mount had it: msync may publish or not, and such mappings end before their descriptors.

Left out: eviction that chooses by itself (a rule evicts what it names),
times, owners, permissions (all runs as root), SEEK_DATA and SEEK_HOLE, locks,
two calls at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from errno import errorcode
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hearthfs.client import packed_names
from hearthfs.client.client import Client
from hearthfs.proto import master_pb2 as pb
from hearthfs.tests.support.cluster import Cluster
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from .handles import Description, Descriptor, Mapped, direct_read, direct_write, read_file, whole
from .memory import Mapping, rename2
from .promises import File, View, resized

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(1800),
    pytest.mark.leaks("the SDK's client lives as long as the module"),
]

MIB = 1 << 20
PUBLISHED_S = 10.0
FSCK_S = 30.0
DAEMONS = ["master", "worker1", "worker2", "mount1", "mount2"]
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
RENAMES = {0: "", RENAME_NOREPLACE: "[NOREPLACE]", RENAME_EXCHANGE: "[EXCHANGE]"}

MOUNTS = st.sampled_from([1, 2])
NAMES = ["a", "b", "c", "d", "e", "d/a", "d/b", "d/e", "e/a"]
AT = st.integers(0, 39)
"""A path: see ``MountsAndSdk.path``."""
TEXTS = st.sampled_from(["a", "d", "d/a", "../a", "b", "missing"])
PICK = st.integers(0, 7)
OFFSETS = st.sampled_from([0, 0, 1, 100, 4095, 4096, 8192, 10_000, 20_000, MIB - 1, MIB])
LENGTHS = st.sampled_from([0, 1, 10, 100, 4096, 5000, 20_000, 200_000, MIB + 1])
SIZES = st.sampled_from([0, 0, 1, 50, 4096, 4097, 9000, MIB + 5])
ACCESS = st.sampled_from([os.O_RDWR, os.O_RDWR, os.O_WRONLY, os.O_RDONLY])
CREATE = st.sampled_from([0, os.O_CREAT, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_EXCL])
MORE_FLAGS = st.sampled_from(
    [
        0,
        0,
        0,
        0,
        os.O_TRUNC,
        os.O_TRUNC,
        os.O_APPEND,
        os.O_APPEND | os.O_TRUNC,
        os.O_NOFOLLOW,
        os.O_DIRECTORY,
        os.O_SYNC,
    ]
)
MODES = st.sampled_from([0o600, 0o644, 0o755, 0o400, 0o777])
XATTRS = st.sampled_from(["user.x", "user.y"])
VALUES = st.sampled_from([b"", b"1", b"value\0\xff", b"v" * 300])
FLAG_NAMES = {
    name: getattr(os, name)
    for name in ("O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_NOFOLLOW", "O_DIRECTORY", "O_SYNC")
}


class World(NamedTuple):
    cluster: Cluster
    client: Client
    plain: str
    numbers: Iterator[int]
    relay: bool


class Outcome(NamedTuple):
    error: str
    value: Any

    def __str__(self) -> str:
        return self.error or short(self.value)


def short(value: object) -> str:
    if isinstance(value, bytes) and len(value) > 40:
        return f"{len(value)} bytes {value[:20]!r}…"
    return repr(value)


def outcome(do: Callable[[], Any]) -> Outcome:
    try:
        return Outcome("", do())
    except OSError as error:
        return Outcome(errorcode.get(error.errno or 0, str(error)), None)


def difference(ours: object, plain: object) -> str:
    """
    >>> difference(b"abc", b"abd")
    'differ from offset 2: b"c", not b"d"'
    """
    if not (isinstance(ours, bytes) and isinstance(plain, bytes)):
        return f"{short(ours)}, not {short(plain)}"
    at = next((i for i, (x, y) in enumerate(zip(ours, plain, strict=False)) if x != y), min(len(ours), len(plain)))
    lengths = f"{len(ours)} bytes instead of {len(plain)}, " if len(ours) != len(plain) else ""
    return f"{lengths}differ from offset {at}: {ours[at : at + 20]!r}, not {plain[at : at + 20]!r}".replace("'", '"')


def flag_names(flags: int) -> str:
    access = {os.O_RDONLY: "O_RDONLY", os.O_WRONLY: "O_WRONLY", os.O_RDWR: "O_RDWR"}[flags & os.O_ACCMODE]
    return "|".join([access, *(name for name, bit in FLAG_NAMES.items() if flags & bit == bit)])


@dataclass(eq=False)
class Known:
    """A file's model, and its inode in the tree of names: an open descriptor keeps the number from being used again."""

    file: File
    anchor: int

    @property
    def named(self) -> bool:
        return os.fstat(self.anchor).st_nlink > 0


@dataclass(eq=False)
class Shadow:
    """A view's bytes in the plain filesystem. ``stored``: into a mapping, and nobody asked yet for it to be written.
    ``unseen``: what is done to its mappings."""

    path: str
    stored: bool = False
    unseen: bool = False
    known: Known | None = field(default=None)


class MountsAndSdk(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.cluster, self.client, self.relay = world.cluster, world.client, world.relay
        example = f"example{next(world.numbers)}"
        self.name = f"{example}/names"  # with a directory above of its own: there are symlinks to ``../a``
        self.plain = os.path.join(world.plain, example)
        self.names, self.shadows = os.path.join(self.plain, "names"), os.path.join(self.plain, "views")
        os.makedirs(self.names)
        os.mkdir(self.shadows)
        self.client.mkdir(f"/{example}")
        self.client.mkdir(f"/{self.name}")
        self.client.setxattr(f"/{self.name}", "hearth.cache", b"1")
        self.steps: list[str] = []
        self.number = itertools.count(1)
        self.known: dict[int, Known] = {}
        self.shadow: dict[View, Shadow] = {}
        self.descriptors: list[Descriptor] = []
        self.mapped: list[Mapped] = []

    # ------------------------------------------------------------ paths, comparing

    def path(self, at: int, *, files: bool = False) -> str:
        """One of ``NAMES``, or, three times out of four, one of the paths (or files) that are there."""
        there = []
        for directory, directories, others in os.walk(self.names):
            chosen = others if files else directories + others
            there += [os.path.relpath(os.path.join(directory, name), self.names) for name in chosen]
        if there and at > 9:
            return sorted(there)[at % len(there)]
        return NAMES[at % len(NAMES)]

    def in_mount(self, mount: int, path: str) -> str:
        return os.path.join(self.cluster.directory, f"mnt{mount}", self.name, path)

    def in_names(self, path: str) -> str:
        return os.path.join(self.names, path)

    def in_sdk(self, path: str) -> str:
        return f"/{self.name}/{path}".rstrip("/")

    def fail(self, reason: str) -> None:
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.steps, 1))
        raise AssertionError(f"{reason}\nsteps in /{self.name}:\n{steps}\nthe last one: {reason}")

    def both(self, step: str, ours: Callable[[], Any], plain: Callable[[], Any], *, values: bool = True) -> Outcome:
        """Does both, compares errnos and, if asked to, values; returns what the plain side said."""
        self.steps.append(step)
        expected, got = outcome(plain), outcome(ours)
        self.steps[-1] += f" -> {expected if values or expected.error else 'ok'}"
        if got.error != expected.error:
            self.fail(f"{step}: {got.error or 'no error'}, not {expected.error or 'success'}")
        if values and got.value != expected.value:
            self.fail(f"{step}: {difference(got.value, expected.value)}")
        return expected

    def data(self, size: int) -> bytes:
        """Different for each step, so that a wrong byte tells where it came from."""
        token = b"<%d>" % len(self.steps)
        return (token * (size // len(token) + 1))[:size]

    # ------------------------------------------------------------ the model's side of it

    def know(self, status: os.stat_result, path_or_fd: str | int) -> Known:
        known = self.known.get(status.st_ino)
        if known is None:
            anchor = os.dup(path_or_fd) if isinstance(path_or_fd, int) else os.open(path_or_fd, os.O_PATH)
            known = self.known[status.st_ino] = Known(File(), anchor)
        return known

    def at(self, path: str) -> Known:
        """The file that a path leads to."""
        return self.know(os.stat(self.in_names(path)), self.in_names(path))

    def path_of(self, known: Known) -> str | None:
        """Some name of the file."""
        number = next(number for number, each in self.known.items() if each is known)
        for directory, _, names in os.walk(self.names):
            for name in names:
                path = os.path.join(directory, name)
                if os.lstat(path).st_ino == number:
                    return os.path.relpath(path, self.names)
        return None

    def version(self, known: Known) -> int:
        """The number that the master gave to what is published now; 0 for a file without a name."""
        path = self.path_of(known)
        return self.client.stat(self.in_sdk(path)).version if path else 0

    def bytes_of(self, view: View) -> bytes:
        return read_file(self.shadow[view].path)

    def seen(self, mount: int, path: str) -> bytes:
        """What a read by path gives in this mount."""
        file = self.at(path).file
        view = file.view(mount)
        return file.published if view is None else self.bytes_of(view)

    def joined(self, known: Known, mount: int, flags: int) -> View:
        view = known.file.open(mount)
        if view not in self.shadow:
            path = os.path.join(self.shadows, str(next(self.number)))
            with open(path, "wb") as file:
                file.write(known.file.versions[view.version])
            unseen = self.relay and flags & os.O_ACCMODE != os.O_RDWR
            self.shadow[view] = Shadow(path, unseen=unseen, known=known)
        return view

    def publish(self, view: View) -> bool:
        shadow = self.shadow[view]
        shadow.stored = False
        assert shadow.known is not None
        return view.publish(self.bytes_of(view), named=shadow.known.named)

    def let_go(self, description: Description) -> None:
        """A descriptor or mapping of it is gone."""
        description.refs -= 1
        if not description.refs:
            os.close(description.name_fd)
            description.view.close()

    def pick(self, number: int) -> Descriptor:
        return self.descriptors[number % len(self.descriptors)]

    # ------------------------------------------------------------ descriptors

    @initialize(size=LENGTHS, opens=st.lists(MOUNTS, max_size=3))
    def begin(self, size: int, opens: list[int]) -> None:
        """Most examples have a file that both mounts have open: that is where it gets interesting."""
        self.by_path(1, "mkdir", os.mkdir, "d")
        self.write_by_sdk("a", size)
        for mount in opens:
            self.open_path(mount, "a", os.O_RDWR, 0)

    @rule(mount=MOUNTS, at=AT, access=ACCESS, create=CREATE, more=MORE_FLAGS, mode=MODES)
    def open(self, mount: int, at: int, access: int, create: int, more: int, mode: int) -> None:
        self.open_path(mount, self.path(at, files=True), access | create | more, mode)

    def open_path(self, mount: int, path: str, flags: int, mode: int) -> None:
        fds: list[int] = []
        number = next(self.number)
        step = f"fd{number} = mount{mount} open({path!r}, {flag_names(flags)})"

        def ours() -> None:
            fds.append(os.open(self.in_mount(mount, path), flags, mode))

        name_fds: list[int] = []

        def plain() -> None:
            name_fds.append(os.open(self.in_names(path), flags, mode))

        try:
            self.both(step, ours, plain)
        except AssertionError:
            for fd in fds + name_fds:
                os.close(fd)
            raise
        if not fds:
            return
        status = os.fstat(name_fds[0])
        if stat.S_ISDIR(status.st_mode):
            os.close(fds[0])
            os.close(name_fds[0])
            return
        existed = status.st_ino in self.known
        view = self.joined(self.know(status, name_fds[0]), mount, flags)
        twin = os.open(self.shadow[view].path, flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        if flags & os.O_TRUNC and existed:
            view.dirty = True
        description = Description(number, view, name_fds[0], bool(flags & os.O_SYNC), refs=1)
        self.descriptors.append(Descriptor(number, description, fds[0], twin))

    def wrote(self, d: Descriptor, some: bool) -> None:
        d.of.view.dirty |= some
        if some and d.of.synchronous:
            self.publish(d.of.view)

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, size=LENGTHS)
    def write(self, pick: int, size: int) -> None:
        d, data = self.pick(pick), self.data(size)
        done = self.both(f"write({d}, {short(data)})", lambda: os.write(d.fd, data), lambda: os.write(d.twin, data))
        self.wrote(d, bool(done.value))

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, size=LENGTHS, offset=OFFSETS, direct=st.booleans())
    def pwrite(self, pick: int, size: int, offset: int, direct: bool) -> None:
        d, data = self.pick(pick), self.data(size)
        put = direct_write if direct else os.pwrite
        step = f"{put.__name__}({d}, {short(data)}, {offset})"
        done = self.both(step, lambda: put(d.fd, data, offset), lambda: os.pwrite(d.twin, data, offset))
        self.wrote(d, bool(done.value))

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, size=LENGTHS, offset=OFFSETS, direct=st.booleans())
    def pread(self, pick: int, size: int, offset: int, direct: bool) -> None:
        d = self.pick(pick)
        get = direct_read if direct else os.pread
        step = f"{get.__name__}({d}, {size}, {offset})"
        self.both(step, lambda: get(d.fd, size, offset), lambda: os.pread(d.twin, size, offset))

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, offset=st.sampled_from([0, 5, 5000, -1, -100]), whence=st.integers(0, 2), size=LENGTHS)
    def seek_and_read(self, pick: int, offset: int, whence: int, size: int) -> None:
        d = self.pick(pick)
        step = f"lseek({d}, {offset}, {('SEEK_SET', 'SEEK_CUR', 'SEEK_END')[whence]})"
        self.both(step, lambda: os.lseek(d.fd, offset, whence), lambda: os.lseek(d.twin, offset, whence))
        self.both(f"read({d}, {size})", lambda: os.read(d.fd, size), lambda: os.read(d.twin, size))

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK)
    def dup(self, pick: int) -> None:
        d = self.pick(pick)
        number = next(self.number)
        self.steps.append(f"fd{number} = dup({d})")
        d.of.refs += 1
        self.descriptors.append(Descriptor(number, d.of, os.dup(d.fd), os.dup(d.twin)))

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        d = self.pick(pick)
        self.descriptors.remove(d)
        if self.shadow[d.of.view].unseen and not any(other.of is d.of for other in self.descriptors):
            for number, m in reversed(list(enumerate(self.mapped))):
                if m.of is d.of:
                    self.unmap(number)
        self.both(f"close({d})", lambda: os.close(d.fd), lambda: os.close(d.twin))
        self.publish(d.of.view)
        self.let_go(d.of)

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, only_data=st.booleans())
    def fsync(self, pick: int, only_data: bool) -> None:
        d = self.pick(pick)
        sync = os.fdatasync if only_data else os.fsync
        self.both(f"{sync.__name__}({d})", lambda: sync(d.fd), lambda: sync(d.twin))
        self.publish(d.of.view)

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, size=SIZES)
    def ftruncate(self, pick: int, size: int) -> None:
        """Published at once if nobody changed the file here, or with the next close: an implementation may choose."""
        d = self.pick(pick)
        view = d.of.view
        before = self.version(self.known_of(view))
        step = f"ftruncate({d}, {size})"
        done = self.both(step, lambda: os.ftruncate(d.fd, size), lambda: os.ftruncate(d.twin, size))
        if not done.error:
            self.cut(view, size, before, step, may_wait=True)

    def known_of(self, view: View) -> Known:
        known = self.shadow[view].known
        assert known is not None
        return known

    def cut(self, view: View, size: int, before: int, step: str, *, may_wait: bool) -> None:
        at_once = self.version(self.known_of(view)) != before
        if not (view.dirty or may_wait or at_once) and self.known_of(view).named:
            self.fail(f"{step}: not published, though nobody changed the file here")
        if at_once and view.dirty and not self.shadow[view].stored:
            self.fail(f"{step}: published, though its writer did not close")
        if at_once:
            self.steps[-1] += ", published at once"
            view.resized(size)
        else:
            view.dirty = True

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, mode=st.one_of(st.none(), MODES))
    def attributes(self, pick: int, mode: int | None) -> None:
        d = self.pick(pick)
        if mode is not None:
            step = f"fchmod({d}, {mode:o})"
            self.both(step, lambda: os.fchmod(d.fd, mode), lambda: os.fchmod(d.of.name_fd, mode))
        self.both(f"fstat({d}).st_size", lambda: os.fstat(d.fd).st_size, lambda: os.fstat(d.twin).st_size)
        if not d.of.view.replaced:  # else it shows the attributes of when it was

            def attributes(fd: int) -> tuple[str, int]:
                status = os.fstat(fd)  # a file without a name has its own mode in each mount
                return stat.filemode(status.st_mode) if status.st_nlink else "", status.st_nlink

            self.both(f"fstat({d}) mode, nlink", lambda: attributes(d.fd), lambda: attributes(d.of.name_fd))

    # ------------------------------------------------------------ mappings

    @precondition(lambda self: self.descriptors)
    @rule(pick=PICK, length=st.sampled_from([1, 4096, 100_000, MIB + 5000]), writable=st.booleans())
    def map(self, pick: int, length: int, writable: bool) -> None:
        d = self.pick(pick)
        number = next(self.number)
        made: list[Mapping] = []

        def plain() -> None:
            made.append(Mapping(d.twin, length, writable=writable))

        def ours() -> None:
            made.append(Mapping(d.fd, length, writable=writable))

        step = f"map{number} = mmap({d}, {length}, {'PROT_WRITE' if writable else 'PROT_READ'})"
        if not self.both(step, ours, plain).error:
            d.of.refs += 1
            self.mapped.append(Mapped(number, d.of, made[1], made[0]))

    def part(self, m: Mapped, offset: int, size: int) -> tuple[int, int]:
        """Of the mapping only what is file: beyond its end is SIGBUS, or nothing's."""
        end = min(m.memory.length, os.stat(self.shadow[m.of.view].path).st_size)
        offset = min(offset, max(0, end - 1))
        return offset, min(size, end - offset)

    @precondition(lambda self: self.mapped)
    @rule(pick=PICK, offset=OFFSETS, size=LENGTHS)
    def load(self, pick: int, offset: int, size: int) -> None:
        m = self.mapped[pick % len(self.mapped)]
        offset, size = self.part(m, offset, size)
        step = f"{m}[{offset}:{offset + size}]"
        self.both(step, lambda: m.memory.load(offset, size), lambda: m.twin.load(offset, size))

    @precondition(lambda self: any(m.memory.writable for m in self.mapped))
    @rule(pick=PICK, offset=OFFSETS, size=st.sampled_from([1, 10, 5000]))
    def store(self, pick: int, offset: int, size: int) -> None:
        writable = [m for m in self.mapped if m.memory.writable]
        m = writable[pick % len(writable)]
        offset, size = self.part(m, offset, size)
        data = self.data(size)
        step = f"{m}[{offset}:{offset + size}] = {short(data)}"
        done = self.both(step, lambda: m.memory.store(offset, data), lambda: m.twin.store(offset, data))
        if done.value:
            m.of.view.dirty = self.shadow[m.of.view].stored = True

    @precondition(lambda self: self.mapped)
    @rule(pick=PICK)
    def sync_mapping(self, pick: int) -> None:
        self.msync(self.mapped[pick % len(self.mapped)])

    def msync(self, m: Mapped) -> None:
        view = m.of.view
        before = self.version(self.known_of(view))
        self.both(f"msync({m})", m.memory.sync, m.twin.sync)
        if not self.shadow[view].unseen or self.version(self.known_of(view)) != before:
            self.publish(view)

    @precondition(lambda self: self.mapped)
    @rule(pick=PICK)
    def unmap(self, pick: int) -> None:
        m = self.mapped[pick % len(self.mapped)]
        self.mapped.remove(m)
        known = self.known_of(m.of.view)
        last = m.of.refs == 1
        before = self.version(known) if last else 0
        self.both(f"munmap({m})", m.memory.close, m.twin.close)
        if last and self.publish(m.of.view):  # the kernel does not wait for the end of an open file
            deadline = time.monotonic() + PUBLISHED_S
            while self.version(known) == before:
                if time.monotonic() > deadline:
                    self.fail(f"munmap({m}): not published within {PUBLISHED_S:g} s")
        self.let_go(m.of)

    # ------------------------------------------------------------ names

    def by_path(self, mount: int, call: str, do: Callable[..., Any], *paths: str, values: bool = True) -> Outcome:
        step = f"mount{mount} {call}({', '.join(map(repr, paths))})"
        return self.both(
            step,
            lambda: do(*(self.in_mount(mount, path) for path in paths)),
            lambda: do(*map(self.in_names, paths)),
            values=values,
        )

    @rule(
        mount=MOUNTS,
        call=st.sampled_from(["unlink", "rename", "rename", "link", "symlink", "mkdir", "rmdir"]),
        at=AT,
        other=AT,
        flags=st.sampled_from([0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]),
        mode=MODES,
        text=TEXTS,
    )
    def change_names(self, mount: int, call: str, at: int, other: int, flags: int, mode: int, text: str) -> None:
        path, new = self.path(at), self.path(other)
        if call == "mkdir":
            self.by_path(mount, f"mkdir[{mode:o}]", lambda p: os.mkdir(p, mode), new)
        elif call == "symlink":
            self.by_path(mount, f"symlink[{text}]", lambda p: os.symlink(text, p), new)
        elif call == "link":
            self.by_path(mount, "link", lambda a, b: os.link(a, b, follow_symlinks=False), path, new)
        elif call == "rename":
            name = f"rename{RENAMES[flags]}"
            self.by_path(mount, name, lambda a, b: rename2(a, b, flags), path, new)
        else:
            self.by_path(mount, call, getattr(os, call), path)

    @rule(mount=MOUNTS, at=AT, listed=st.booleans(), follow=st.booleans())
    def look(self, mount: int, at: int, listed: bool, follow: bool) -> None:
        path = self.path(at)
        self.stat(mount, path, follow=follow)
        if listed:
            self.listdir(mount, os.path.dirname(path))
        elif not follow:
            self.by_path(mount, "readlink", os.readlink, path)
        else:
            self.xattrs(mount, path)

    def listdir(self, mount: int, path: str) -> None:
        self.by_path(mount, "listdir", lambda p: sorted(os.listdir(p)), path)

    def stat(self, mount: int, path: str, *, follow: bool) -> None:
        self.both(
            f"mount{mount} {'stat' if follow else 'lstat'}({path!r})",
            lambda: facts(os.stat(self.in_mount(mount, path), follow_symlinks=follow)),
            lambda: self.expected_facts(mount, path, follow=follow),
        )

    def expected_facts(self, mount: int, path: str, *, follow: bool) -> tuple[str, int, int]:
        """kind and mode, links, size."""
        status = os.stat(self.in_names(path), follow_symlinks=follow)
        kind, links, size = facts(status)
        if stat.S_ISREG(status.st_mode):
            size = len(self.seen(mount, path))
        return kind, links, size

    def xattrs(self, mount: int, path: str) -> None:
        self.by_path(mount, "xattrs", attributes, path)

    @rule(
        mount=MOUNTS,
        at=AT,
        mode=st.one_of(st.none(), MODES),
        name=XATTRS,
        value=st.one_of(st.none(), VALUES),
        flags=st.sampled_from([0, 0, os.XATTR_CREATE, os.XATTR_REPLACE]),
    )
    def change_attributes(
        self, mount: int, at: int, mode: int | None, name: str, value: bytes | None, flags: int
    ) -> None:
        path = self.path(at)
        if mode is not None:
            self.by_path(mount, f"chmod[{mode:o}]", lambda p: os.chmod(p, mode), path)
        if value is None:
            self.by_path(mount, f"removexattr[{name}]", lambda p: os.removexattr(p, name), path)
        else:
            how = {0: "", os.XATTR_CREATE: ", XATTR_CREATE", os.XATTR_REPLACE: ", XATTR_REPLACE"}[flags]
            call = f"setxattr[{name} = {short(value)}{how}]"
            self.by_path(mount, call, lambda p: os.setxattr(p, name, value, flags), path)

    # ------------------------------------------------------------ whole files by path

    @rule(mount=MOUNTS, at=AT, direct=st.booleans())
    def read_file(self, mount: int, at: int, direct: bool) -> None:
        self.read_path(mount, self.path(at, files=True), direct=direct)

    def read_path(self, mount: int, path: str, *, direct: bool) -> None:
        """Opens, reads, closes, as ``cat`` does."""
        path_here = self.in_mount(mount, path)

        def ours() -> bytes:
            fd = os.open(path_here, os.O_RDONLY)
            try:
                return whole(fd, direct_read if direct and os.path.isfile(path_here) else os.pread)
            finally:
                os.close(fd)

        def plain() -> bytes:
            read_file(self.in_names(path))
            return self.seen(mount, path)

        done = self.both(f"mount{mount} {'direct ' if direct else ''}read of {path!r}", ours, plain)
        view = self.at(path).file.view(mount) if not done.error else None
        if view is not None:
            self.publish(view)  # a descriptor was closed

    @rule(mount=MOUNTS, at=AT, size=SIZES)
    def truncate(self, mount: int, at: int, size: int) -> None:
        path = self.path(at, files=True)
        known = view = None
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(self.in_names(path)).st_mode):
                known = self.at(path)
                view = known.file.view(mount)
        before = self.version(known) if known and view else 0
        step = f"mount{mount} truncate({path!r}, {size})"
        done = self.both(
            step,
            lambda: os.truncate(self.in_mount(mount, path), size),
            lambda: os.truncate(self.in_names(path), 0) if size == 0 else self.may_be_cut(path),
        )
        if done.error:
            return
        assert known is not None
        if view is None:
            known.file.publish(resized(known.file.published, size))
            return
        os.truncate(self.shadow[view].path, size)
        self.cut(view, size, before, step, may_wait=False)

    def may_be_cut(self, path: str) -> None:
        """The errnos of truncate; the files of names stay empty."""
        os.truncate(self.in_names(path), os.stat(self.in_names(path)).st_size)

    # ------------------------------------------------------------ SDK

    @rule(at=AT, size=LENGTHS)
    def sdk_write(self, at: int, size: int) -> None:
        self.write_by_sdk(self.path(at, files=True), size)

    def write_by_sdk(self, path: str, size: int) -> None:
        data = self.data(size)

        def plain() -> None:
            with open(self.in_names(path), "wb"):
                pass

        step = f"SDK write_bytes({path!r}, {short(data)})"
        if not self.both(step, lambda: self.client.write_bytes(self.in_sdk(path), data), plain).error:
            self.at(path).file.publish(data)

    @rule(at=AT, call=st.sampled_from(["read", "stat", "listdir"]), follow=st.booleans())
    def sdk_look(self, at: int, call: str, follow: bool) -> None:
        path = self.path(at)
        if call == "read":
            self.read_by_sdk(path)
        elif call == "stat":
            self.stat_by_sdk(path, follow=follow)
        else:
            self.listdir_by_sdk(os.path.dirname(path) if follow else path)

    def read_by_sdk(self, path: str) -> None:
        def plain() -> bytes:
            read_file(self.in_names(path))
            return self.at(path).file.published

        self.both(f"SDK read_bytes({path!r})", lambda: self.client.read_bytes(self.in_sdk(path)), plain)

    def stat_by_sdk(self, path: str, *, follow: bool) -> None:
        look = self.client.stat if follow else self.client.lstat
        self.both(
            f"SDK {'stat' if follow else 'lstat'}({path!r})",
            lambda: facts(look(self.in_sdk(path))),
            lambda: self.expected_facts(0, path, follow=follow),
        )

    def listdir_by_sdk(self, path: str) -> None:
        self.both(
            f"SDK listdir({path!r})",
            lambda: sorted(self.client.listdir(self.in_sdk(path))),
            lambda: sorted(os.listdir(self.in_names(path))),
        )

    @rule(at=AT, other=AT, flags=st.sampled_from([None, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]))
    def sdk_change(self, at: int, other: int, flags: int | None) -> None:
        path, new = self.path(at), self.path(other)
        if flags is None:
            self.both(
                f"SDK unlink({path!r})",
                lambda: self.client.unlink(self.in_sdk(path)),
                lambda: os.unlink(self.in_names(path)),
            )
            return
        target = os.path.realpath(self.in_names(new))
        if os.path.realpath(self.in_names(os.path.dirname(path))).startswith(target):
            return  # onto a directory above: every filesystem refuses, the errno depends on the order of its checks
        self.both(
            f"SDK rename{RENAMES[flags]}({path!r}, {new!r})",
            lambda: self.client.rename(self.in_sdk(path), self.in_sdk(new), flags),
            lambda: rename2(self.in_names(path), self.in_names(new), flags),
        )

    @rule(at=AT)
    def evict(self, at: int) -> None:
        """As the master does when room is short: all names of a file at once, whoever has it open."""
        path = self.path(at, files=True)
        if os.path.islink(self.in_names(path)):
            return

        def ours() -> None:
            directory, name = os.path.split(self.in_sdk(path))
            names = packed_names.pack([name.encode()])
            evict = pb.EvictMany(directory=self.client.directory(directory), names=names)
            core = self.client.core
            (number,) = core.metadata.mutate(pb.MutateRequest(evict_many=evict), core.deadline()).errnos
            if number:
                raise OSError(number, os.strerror(number))

        self.both(f"evict({path!r})", ours, lambda: self.unlink_everywhere(path))

    def unlink_everywhere(self, path: str) -> None:
        number = os.stat(self.in_names(path)).st_ino
        os.unlink(self.in_names(path))
        for directory, _, names in os.walk(self.names):
            for name in names:
                if os.lstat(other := os.path.join(directory, name)).st_ino == number:
                    os.unlink(other)

    # ------------------------------------------------------------ daemons

    @rule(daemon=st.sampled_from(DAEMONS), chance=st.integers(0, 23))
    def restart(self, daemon: str, chance: int) -> None:
        """``kill -9``, now and then, when all is published. Files that are open in a mount die with it."""
        if chance != 7 or (daemon.startswith("mount") and (self.descriptors or self.mapped)):
            return
        self.publish_all()
        self.steps.append(f"kill -9 {daemon}, restart")
        self.cluster.kill(daemon)
        self.cluster.restart(daemon)

    def publish_all(self) -> None:
        """Starting a daemon forks, and the child's copies of our descriptors are closed before it runs: each is a close
        that publishes, and would wait for the daemon that is not there yet."""
        for d in self.descriptors:
            if d.of.view.dirty:
                self.both(f"fsync({d})", lambda d=d: os.fsync(d.fd), lambda: None)
                self.publish(d.of.view)
        for m in self.mapped:
            if m.of.view.dirty:
                self.msync(m)

    # ------------------------------------------------------------ the end

    def teardown(self) -> None:
        sound = sys.exc_info()[0] is None
        try:
            if sound:
                while self.mapped:
                    self.unmap(0)
                while self.descriptors:
                    self.close(0)
                self.compare_all("")
        finally:
            self.release()

    def compare_all(self, directory: str) -> None:
        """Every name, through both mounts and the SDK."""
        for mount in (1, 2):
            self.listdir(mount, directory)
        self.listdir_by_sdk(directory)
        for name in sorted(os.listdir(self.in_names(directory))):
            path = os.path.join(directory, name)
            mode = os.lstat(self.in_names(path)).st_mode
            for mount in (1, 2):
                self.stat(mount, path, follow=False)
                self.xattrs(mount, path)
                if stat.S_ISREG(mode):
                    self.read_path(mount, path, direct=False)
                elif stat.S_ISLNK(mode):
                    self.by_path(mount, "readlink", os.readlink, path)
            self.stat_by_sdk(path, follow=False)
            if stat.S_ISREG(mode):
                self.read_by_sdk(path)
            elif stat.S_ISDIR(mode):
                self.compare_all(path)

    def release(self) -> None:
        """Whatever is still open after a failure."""
        fds = [known.anchor for known in self.known.values()]
        for d in self.descriptors:
            fds += [d.fd, d.twin]
        for m in self.mapped:
            m.memory.close()
            m.twin.close()
        fds += {d.of.name_fd for d in [*self.descriptors, *self.mapped]}
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        shutil.rmtree(self.plain, ignore_errors=True)


def facts(status: Any) -> tuple[str, int, int]:
    """Kind and mode, links, size. Directories: each filesystem has sizes and link counts of its own."""
    directory = stat.S_ISDIR(status.st_mode)
    return stat.filemode(status.st_mode), 0 if directory else status.st_nlink, 0 if directory else status.st_size


def attributes(path: str) -> dict[str, bytes]:
    """Without those by which a directory says how its files are kept: no other filesystem has them."""
    names = (name for name in os.listxattr(path) if not name.startswith("hearth."))
    return {name: os.getxattr(path, name) for name in sorted(names)}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="hearth-model-") as directory:
        plain = os.path.join(directory, "plain")
        os.mkdir(plain)
        with Cluster(os.path.join(directory, "cluster"), workers=2, mounts=2) as cluster:
            children = Path(f"/proc/{(pid := cluster.pid('mount1'))}/task/{pid}/children")
            yield World(cluster, cluster.client(1), plain, itertools.count(1), relay=bool(children.read_text()))
            assert findings(cluster) == []


def findings(cluster: Cluster) -> list[dict[str, Any]]:
    """What fsck finds once the next reports of blocks have come."""
    deadline = time.monotonic() + FSCK_S
    while (found := cluster.fsck()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def test_mounts_and_sdk_keep_the_promises(world: World) -> None:
    run_state_machine_as_test(
        lambda: MountsAndSdk(world),
        settings=settings(deadline=None, suppress_health_check=list(HealthCheck)),
    )
    for log in (world.cluster.directory / "log").glob("*.log"):
        assert "Traceback" not in log.read_text(errors="replace"), log.name
