"""Who is measured when: everybody once in each round, each round in another order, so that a machine that slows down
or speeds up does so for all. Pure but for what the visits themselves do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from .rows import Row, make


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one contender did once: ``value`` in the row's unit, ``calls_s`` the seconds of its single calls."""

    value: float
    calls_s: Sequence[float] = ()


Visit = Callable[[int], Mapping[str, Sample]]
"""Measures one contender in a round (its number is the argument): a sample for each step, by the step's name."""


def order(names: Sequence[str], round_number: int) -> list[str]:
    """Each comes first in turn, and after another one as the direction changes.

    >>> order("abc", 0), order("abc", 1), order("abc", 2)
    (['a', 'b', 'c'], ['b', 'a', 'c'], ['c', 'a', 'b'])
    """
    if not names:
        return []
    at = round_number % len(names)
    turned = [*names[at:], *names[:at]]
    return turned if round_number % 2 == 0 else [turned[0], *reversed(turned[1:])]


class Results:
    """Samples by step and contender, and why a contender gave none."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, list[Sample]]] = {}
        self.failures: dict[str, str] = {}

    def add(self, who: str, samples: Mapping[str, Sample]) -> None:
        for step, sample in samples.items():
            self.samples.setdefault(step, {}).setdefault(who, []).append(sample)

    def drop(self, who: str, reason: str) -> None:
        """Forgets all of a contender: half of its rounds would compare with nothing."""
        self.failures[who] = reason
        for by_contender in self.samples.values():
            by_contender.pop(who, None)

    def reasons(self) -> list[str]:
        """One sentence for each contender that failed."""
        return [f"{who} failed: {why}" for who, why in self.failures.items()]

    def row(self, section: str, step: str, unit: str, **more: object) -> Row:
        """The row of one step. ``more``: as ``rows.make`` takes it."""
        found = self.samples.get(step, {})
        values = {who: [sample.value for sample in samples] for who, samples in found.items()}
        calls = {who: [call for sample in samples for call in sample.calls_s] for who, samples in found.items()}
        return make(section, step, unit, values, calls_s=calls, **more)  # type: ignore[arg-type]  # make names them


def interleave(visits: Mapping[str, Visit], rounds: int, *, required: str = "hearthfs", warm_up: int = 1) -> Results:
    """``rounds`` rounds of all visits, after ``warm_up`` ones that do not count (numbered below zero).

    A contender that fails is left out from then on, with its reason; but what ``required`` raises is raised.
    """
    results = Results()
    names = list(visits)
    for number in range(-warm_up, rounds):
        for who in order(names, max(0, number)):
            if who in results.failures:
                continue
            try:
                samples = visits[who](number)
            except Exception as error:
                if who == required:
                    raise
                results.drop(who, f"{type(error).__name__}: {error}")
                continue
            if number >= 0:
                results.add(who, samples)
    return results
