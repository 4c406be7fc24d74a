"""What a benchmark measured: one row for each thing that was done, with a figure for each who did it. Pure.

rows = [make("metadata", "stat, known names", "us", {"hearthfs": [81.0, 80.2], "raw": [70.0, 69.8]}, threads=1)]
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("hearthfs", "raw", "juicefs", "seaweedfs", "mooncake", "vllm_fs")
"""Who has a key of its own in every row of bench.json. Others (a best mode, a bare loop) go by a label of theirs."""
SMALLER_IS_BETTER = frozenset({"us", "ms", "s", "MiB", "B", "%"})
"""Units of time and of what is used up. Of all others (GB/s, /s) more is better."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed (nearest rank).

    >>> percentile([3.0, 1.0, 2.0], 0.5), percentile([1.0, 2.0], 0.99), percentile([5.0], 0.0)
    (2.0, 2.0, 5.0)
    """
    if not values:
        raise ValueError("no values; a percentile needs at least one")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclasses.dataclass(frozen=True)
class Figure:
    """Over the rounds, in the row's unit; ``p50_ms`` and ``p99_ms``: of single calls, where they were timed."""

    median: float
    min: float
    max: float
    rounds: int
    p50_ms: float | None = None
    p99_ms: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], calls_s: Sequence[float] = ()) -> Figure:
        """``values``: one for each round; ``calls_s``: what single calls took, all rounds together."""
        p50, p99 = (percentile(calls_s, share) * 1e3 if calls_s else None for share in (0.5, 0.99))
        return cls(statistics.median(values), min(values), max(values), len(values), p50, p99)


@dataclasses.dataclass(frozen=True)
class Row:
    """``section``: what --section chooses. ``mib``: size of a file, ``threads``: of the caller; None where there is no
    such thing. ``note``: what the reader must know to believe it."""

    section: str
    name: str
    unit: str
    figures: Mapping[str, Figure]
    mib: float | None = None
    threads: int | None = None
    note: str = ""

    def ratio(self, to: str, of: str = "hearthfs") -> float | None:
        """``of``'s median over ``to``'s; None when one of them is missing.

        >>> make("x", "load", "GB/s", {"hearthfs": [3.0], "raw": [4.0]}).ratio("raw")
        0.75
        """
        one, other = self.figures.get(of), self.figures.get(to)
        return one.median / other.median if one and other and other.median else None

    def as_json(self) -> dict[str, Any]:
        """Medians by column, null when missing; ``min`` and ``max`` are HearthFS's; ``figures`` has all of everyone."""
        medians = {who: self.figures[who].median if who in self.figures else None for who in COLUMNS}
        ours = self.figures.get("hearthfs")
        return {
            "section": self.section,
            "name": self.name,
            "mib": self.mib,
            "threads": self.threads,
            "unit": self.unit,
            **medians,
            "min": ours.min if ours else None,
            "max": ours.max if ours else None,
            "note": self.note,
            "figures": {who: dataclasses.asdict(figure) for who, figure in self.figures.items()},
        }


def from_json(found: Mapping[str, Any]) -> Row:
    """What ``Row.as_json`` gave."""
    figures = {who: Figure(**figure) for who, figure in found["figures"].items()}
    return Row(found["section"], found["name"], found["unit"], figures, found["mib"], found["threads"], found["note"])


def make(
    section: str,
    name: str,
    unit: str,
    rounds: Mapping[str, Sequence[float]],
    *,
    calls_s: Mapping[str, Sequence[float]] | None = None,
    mib: float | None = None,
    threads: int | None = None,
    note: str = "",
) -> Row:
    """A row of what each contender measured in each round. Who has no values is missing from it."""
    calls = calls_s or {}
    figures = {who: Figure.of(values, calls.get(who, ())) for who, values in rounds.items() if values}
    return Row(section, name, unit, figures, mib, threads, note)
