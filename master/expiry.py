"""Removes what has outlived the time that its directory gives it: by and by, a bounded number of files in each step.

Ages are told by a clock that begins with the wall clock at the start of the master and then only runs on: a jump of
the system's time expires nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..common.errors import NotADirectory, Stale
from . import commands, machine
from .committer import Applied
from .core import Core
from .directory_policy import TTL
from .evicting import is_over
from .tables import PAGE_ROWS, from_u64
from .view import View

STEP_FILES = 1000
PASS_SHARE = 0.05
PASS_MIN_S, PASS_MAX_S = 1.0, 60.0
"""All files are looked at this often: after a share of the shortest time that a directory gives, in these bounds."""


class Expiry:
    """``count(files, size_bytes)`` is told what went. Everything runs in the loop's thread."""

    def __init__(self, core: Core, count: Callable[[int, int], None]) -> None:
        self._core = core
        self._count = count
        self._began_ns = core.clock.wall_ns() - int(core.clock.monotonic_s() * 1e9)
        self._lives_s: dict[int, int] = {}  # directory -> time to live
        self._changed: set[int] = set()
        self._left: deque[tuple[int, int]] = deque()  # of this pass: directory, cookie to go on after
        self._next_pass_s = 0.0
        core.observers.append(self._committed)

    async def load(self) -> None:
        """Finds the directories that give their files a time. New ones are heard of."""
        start = b""
        while True:
            with self._core.view() as view:
                page = view.reader.scan("xattrs", start=start)
            self._changed.update(from_u64(key[:8]) for key, _ in page if key[8:] == TTL)
            if len(page) < PAGE_ROWS:
                return
            start = page[-1][0] + b"\0"
            await asyncio.sleep(0)

    def _committed(self, applied: list[Applied]) -> None:
        for request, outcome in applied:
            changes = isinstance(request.command, commands.Mkdir | commands.SetXattr | commands.RemoveXattr)
            if changes and isinstance(outcome, machine.Outcome) and not outcome.result.error:
                self._changed.add(outcome.result.reply.inode)

    async def step(self) -> None:
        """Looks at so many files at most."""
        self._take_changes()
        now_s = self._core.clock.monotonic_s()
        if not self._left and now_s >= self._next_pass_s and self._lives_s:
            self._left.extend((directory, 0) for directory in self._lives_s)
            shortest_s = min(self._lives_s.values())
            self._next_pass_s = now_s + min(PASS_MAX_S, max(PASS_MIN_S, PASS_SHARE * shortest_s))
        budget = STEP_FILES
        while self._left and budget > 0:
            directory, after = self._left.popleft()
            looked_at, last = await self._look(directory, after, budget)
            budget -= max(1, looked_at)
            if last:
                self._left.appendleft((directory, last))

    def _take_changes(self) -> None:
        changed, self._changed = self._changed, set()
        if not changed:
            return
        with self._core.view() as view:
            for directory in changed:
                inode = view.find_inode(directory)
                policy = view.policy(directory) if inode is not None and inode.is_directory else None
                if policy is not None and policy.ttl_s:
                    self._lives_s[directory] = policy.ttl_s
                else:
                    self._lives_s.pop(directory, None)

    async def _look(self, directory: int, after: int, limit: int) -> tuple[int, int]:
        """(files looked at, cookie to go on after or 0)."""
        as_of_ns = self._began_ns + int(self._core.clock.monotonic_s() * 1e9)
        with self._core.view() as view:
            try:
                view.directory(directory)
            except (Stale, NotADirectory):
                self._lives_s.pop(directory, None)
                return 0, 0
            page = view.listing(directory, after, limit)
            over = dict(item for _, entry in page if (item := _over(view, entry.inode, as_of_ns)) is not None)
        if over:
            outcome = await self._core.submit_own(commands.Expire(tuple(over), as_of_ns))
            gone = outcome.result.reply.inodes
            self._count(len(gone), sum(over[number] for number in gone))
        return len(page), page[-1][0] if len(page) == limit else 0


def _over(view: View, number: int, as_of_ns: int) -> tuple[int, int] | None:
    inode = view.find_inode(number)
    if inode is None or not is_over(view, number, inode, as_of_ns):
        return None
    return number, sum(extent.length_bytes for extent in inode.extents)
