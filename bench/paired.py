"""What pairs of measurements, taken in turn, say of a ratio. Pure."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

STUDENT_975 = {9: 2.262, 14: 2.145, 19: 2.093, 23: 2.069, 29: 2.045, 39: 2.023, 59: 2.001}
"""97.5 % quantiles of Student's t by degrees of freedom; between two of them the larger one is used."""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The geometric mean of pairs' ratios, and where its 95 % confidence interval begins and ends."""

    mean: float
    low: float
    high: float
    pairs: int


def ratio(values: Sequence[tuple[float, float]]) -> Ratio:
    """Of the first of each pair to the second. Logarithms of ratios are taken as normally distributed.

    >>> ratio([(2.0, 1.0)] * 10)
    Ratio(mean=2.0, low=2.0, high=2.0, pairs=10)

    Raises:
        ValueError: fewer than 10 pairs: no interval is to be trusted.
    """
    freedom = len(values) - 1
    known = [degrees for degrees in STUDENT_975 if degrees <= freedom]
    if not known:
        raise ValueError(f"{len(values)} pairs; 10 are the least")
    logs = [math.log(one / other) for one, other in values]
    middle = statistics.fmean(logs)
    reach = STUDENT_975[max(known)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), len(values))
