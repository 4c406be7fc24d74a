"""Lets what was below a directory before it got or lost a quota count where it should: see ``quotas``."""

from __future__ import annotations

import asyncio
import stat

from ..common.errors import NotADirectory, Stale
from .commands import FinishQuota, SettleQuota
from .core import Core

STEP_INODES = 500


class Settling:
    """One quota after the other; begun anew after a restart, which does no harm."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def step(self) -> None:
        """Walks through all that is below the first directory that waits for it."""
        with self._core.view() as view:
            waiting = next(((number, quota) for number, quota in view.quotas() if not quota.settled), None)
        if waiting is None:
            return
        number, quota = waiting
        pending = [quota.directory]
        while pending:
            directory = pending.pop()
            after = 0
            while True:
                with self._core.view() as view:
                    try:
                        view.directory(directory)
                    except (Stale, NotADirectory):
                        break
                    page = view.listing(directory, after, STEP_INODES)
                if not page:
                    break
                await self._core.submit_own(SettleQuota(tuple(entry.inode for _, entry in page)))
                pending += [entry.inode for _, entry in page if entry.type == stat.S_IFDIR]
                after = page[-1][0]
                await asyncio.sleep(0)
        await self._core.submit_own(FinishQuota(number))
