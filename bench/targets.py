"""What must be reached, as ratios of rows of one run. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from . import names_of_rows as names
from .rows import Row


@dataclasses.dataclass(frozen=True)
class Target:
    """HearthFS's (``of``'s) median over ``to``'s in the rows called ``row``, the worst of them where there are several;
    without ``to`` the median itself. ``at_most``: of what should be small."""

    what: str
    row: str
    bound: float
    to: str = ""
    of: str = "hearthfs"
    mib: float | None = None
    threads: int | None = None
    at_most: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    what: str
    bound: str
    measured: float | None
    reached: bool


TARGETS = (
    Target("mount, first load vs raw, 8 MiB", names.FIRST, 0.6, "raw", mib=8),
    Target("mount, first load vs raw, 64 MiB", names.FIRST, 0.85, "raw", mib=64),
    Target("mount, second load vs raw", names.SECOND, 0.9, "raw"),
    Target("mount, store vs raw, 8 MiB", names.STORE, 0.4, "raw", mib=8),
    Target("mount, store vs raw, 64 MiB", names.STORE, 0.75, "raw", mib=64),
    Target("mount, load with dropped caches vs raw disk, 64 MiB", names.COLD_LOAD, 0.9, "raw", mib=64),
    Target("mount, store with fsync vs raw disk, 64 MiB", names.SYNC_STORE, 0.9, "raw", mib=64),
    Target("mount, first load vs JuiceFS", names.FIRST, 4, "juicefs"),
    Target("mount, first load vs SeaweedFS", names.FIRST, 4, "seaweedfs"),
    Target("mount, store vs JuiceFS", names.STORE, 4, "juicefs"),
    Target("mount, store vs SeaweedFS", names.STORE, 4, "seaweedfs"),
    Target("mount, block on the other node, first load vs JuiceFS", names.REMOTE_FIRST, 1.2, "juicefs"),
    Target("SDK get_many vs bare preadv", names.GET, 0.7, "raw"),
    Target("SDK get_many vs preadv + xxh3", names.GET, 0.9, "raw + xxh3"),
    Target("SDK put_many vs a pwrite loop", names.PUT, 0.65, "raw"),
    Target("SDK put_many vs pwrite + xxh3", names.PUT, 0.85, "raw + xxh3"),
    Target("SDK get_many vs Mooncake get_into, one process", names.GET, 0.9, "mooncake"),
    Target("SDK put_many vs Mooncake put_from, one process", names.PUT, 2, "mooncake"),
    Target("SDK get_many from the other node vs Mooncake, two processes", names.REMOTE_GET, 0.9, "mooncake"),
    Target("SDK get_many from the other node vs a bare grpc-python stream", names.REMOTE_GET, 0.8, "raw"),
    Target("connector, share of store + load outside raw I/O and memcpy, %", names.OVERHEAD, 20, at_most=True),
    Target("lookup of 3,600 keys vs os.path.exists on raw, time", names.LOOKUP, 0.15, "raw", at_most=True),
    Target("lookup of 3,600 keys vs Mooncake, time", names.LOOKUP, 4, "mooncake", at_most=True),
    Target("stat of known names vs raw", names.STAT_KNOWN, 0.8, "raw"),
    Target("stat right after a read, us", names.STAT_AFTER_READ, 200, at_most=True),
    Target("first miss in a directory vs JuiceFS", names.FIRST_MISS, 1, "juicefs"),
    Target("repeated miss vs JuiceFS", names.REPEATED_MISS, 1.5, "juicefs"),
    Target("single create vs JuiceFS", names.CREATE, 0.8, "juicefs"),
    Target("batch create and publish vs Mooncake batch put", names.BATCH_PUT, 0.5, "mooncake"),
    Target("batch create and publish vs JuiceFS one by one", names.BATCH_PUT, 10, "juicefs"),
    Target("64 sessions, one stopped: publish p99 once it is fenced, ms", names.PUBLISH_FENCED, 20, at_most=True),
    Target("master, start until the first answer, s", names.MASTER_START, 2, at_most=True),
    Target("master, memory for each inode that is not the map, bytes", names.MASTER_ANON, 16, at_most=True),
    Target("ls -f of 100,000 names, s", names.LS_100K, 2, at_most=True),
    Target("find of 1,000,000 names, s", names.FIND, 120, at_most=True),
    Target("hearth rm -r of 100,000 names, s", names.RM_100K, 10, at_most=True),
)


def verdicts(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """In the order of the targets; those that no row is about are left out."""
    return [verdict for target in targets if (verdict := judge(target, rows)) is not None]


def judge(target: Target, rows: Sequence[Row]) -> Verdict | None:
    """The worst of the rows that the target is about counts."""
    measured = [
        _measure(target, row)
        for row in rows
        if row.name == target.row and target.mib in (None, row.mib) and target.threads in (None, row.threads)
    ]
    if not measured:
        return None
    known = [value for value in measured if value is not None]
    bound = f"{'≤ ' if target.at_most else ''}{target.bound:g}"
    if not known:
        return Verdict(target.what, bound, None, False)
    worst = max(known) if target.at_most else min(known)
    return Verdict(target.what, bound, worst, worst <= target.bound if target.at_most else worst >= target.bound)


def _measure(target: Target, row: Row) -> float | None:
    if target.to:
        return row.ratio(target.to, target.of)
    figure = row.figures.get(target.of)
    return figure.median if figure else None
