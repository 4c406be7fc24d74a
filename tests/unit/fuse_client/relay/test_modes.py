import errno

import pytest
from hearthfs.fuse_client.relay.modes import Backing, Modes
from hearthfs.fuse_client.relay.wire import FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FOPEN_PASSTHROUGH
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


class Kernel:
    """fs/fuse/iomode.c: what it refuses with EIO is an AssertionError here."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.backing: dict[int, tuple[int, int]] = {}  # nodeid: backing id, opens
        self.cached: dict[int, int] = {}
        self.next = 1
        self.broken = False

    def register(self, fd: int) -> int:
        if self.broken:
            raise OSError(errno.ELOOP, "too many levels")
        self.ids.add(self.next)
        self.next += 1
        return self.next - 1

    def open(self, nodeid: int, flags: int, backing_id: int) -> None:
        if flags & FOPEN_PASSTHROUGH:
            assert not flags & FOPEN_KEEP_CACHE
            assert backing_id in self.ids
            assert not self.cached.get(nodeid)
            known, opens = self.backing.get(nodeid, (backing_id, 0))
            assert known == backing_id
            self.backing[nodeid] = backing_id, opens + 1
            return
        assert nodeid not in self.backing
        if not flags & FOPEN_DIRECT_IO:
            self.cached[nodeid] = self.cached.get(nodeid, 0) + 1

    def close(self, nodeid: int, flags: int) -> None:
        if flags & FOPEN_PASSTHROUGH:
            known, opens = self.backing.pop(nodeid)
            if opens > 1:
                self.backing[nodeid] = known, opens - 1
        elif not flags & FOPEN_DIRECT_IO:
            self.cached[nodeid] -= 1


class Opens(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel()
        self.modes = Modes(self.kernel.register, self.kernel.ids.remove)
        self.handles: list[tuple[int, int]] = []

    @rule(
        nodeid=st.integers(1, 3),
        flags=st.sampled_from([0, FOPEN_KEEP_CACHE]),
        writes=st.booleans(),
        backing=st.sampled_from([None, Backing(5), Backing(5, writes=True)]),
    )
    def open(self, nodeid: int, flags: int, writes: bool, backing: Backing | None) -> None:
        choice = self.modes.open(nodeid, flags, writes=writes, backing=backing)
        self.kernel.open(nodeid, choice.flags, choice.backing_id)
        if choice.flags & FOPEN_PASSTHROUGH:
            kernel_writes = backing is not None and backing.writes
            assert bool(choice.flags & FOPEN_DIRECT_IO) == (writes and not kernel_writes)
            assert bool(choice.flags & FOPEN_NOFLUSH) == (not writes and not kernel_writes)
        self.handles.append((nodeid, choice.flags))

    @precondition(lambda self: self.handles)
    @rule(pick=st.integers(0, 20))
    def close(self, pick: int) -> None:
        nodeid, flags = self.handles.pop(pick % len(self.handles))
        self.kernel.close(nodeid, flags)
        self.modes.closed(nodeid)

    @rule()
    def break_or_mend(self) -> None:
        self.kernel.broken = not self.kernel.broken

    @invariant()
    def no_id_is_left(self) -> None:
        assert self.kernel.ids == {known for known, _ in self.kernel.backing.values()}
        assert len(self.modes) == len({nodeid for nodeid, _ in self.handles})


Opens.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOpens = Opens.TestCase


@pytest.fixture
def modes() -> Modes:
    return Modes(lambda fd: 7, lambda number: None)


def test_a_file_that_asks_the_daemon_goes_on_so_until_it_is_closed(modes: Modes) -> None:
    assert modes.open(1, FOPEN_KEEP_CACHE, writes=True, backing=None) == (FOPEN_KEEP_CACHE, 0)
    assert modes.open(1, FOPEN_KEEP_CACHE, writes=False, backing=Backing(3)) == (FOPEN_KEEP_CACHE, 0)
    modes.closed(1)
    assert modes.open(1, 0, writes=False, backing=Backing(3)) == (0, 0)
    modes.closed(1)
    modes.closed(1)
    assert modes.open(1, 0, writes=False, backing=Backing(3)) == (FOPEN_PASSTHROUGH | FOPEN_NOFLUSH, 7)


def test_release_of_what_was_never_opened_is_harmless(modes: Modes) -> None:
    modes.closed(9)
    assert len(modes) == 0
