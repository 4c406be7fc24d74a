"""Whether loading a prefix is faster than computing it, from what this node has seen of both.

Two straight lines, fitted to measurements, older ones counting less:

    a step of the engine:  seconds = fixed + tokens / prefill rate
    a load:                seconds = latency + bytes / bandwidth

A hit of n tokens saves n / rate (the step takes place anyway) and costs a load. When loads run side by side each is
charged its share of the time, as steps compute several requests together: else a burst of loads, each of which seems to
take as long as the burst, would look slower than computing, one after the other, all of what they bring.
"""

from __future__ import annotations

import dataclasses
import enum

from ..common.clock import Clock, SystemClock

MEMORY = 0.96
"""Weight that a measurement keeps with each later one: about the last 25 count."""
ENOUGH = 3
"""Measurements of either kind before anything is skipped."""
OUTLIER = 5.0
"""A measurement that exceeds the prediction by more than this factor is taken for this factor."""
MIN_STEP_TOKENS = 16
"""Steps below this many tokens decode; they tell nothing about prefill."""
PROBE_INTERVAL_S = 30.0
"""How often a hit that would lose is loaded all the same: the store may have become faster."""


class Line:
    """Weighted least squares of y = fixed + slope * x; both at least 0."""

    def __init__(self) -> None:
        self.count = 0
        self._w = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        if self.count >= ENOUGH:
            y = min(y, OUTLIER * self.at(x))
        self.count += 1
        self._w = self._w * MEMORY + 1
        self._x = self._x * MEMORY + x
        self._y = self._y * MEMORY + y
        self._xx = self._xx * MEMORY + x * x
        self._xy = self._xy * MEMORY + x * y

    @property
    def fit(self) -> tuple[float, float]:
        """Fixed part and slope. Where all x were about the same nothing can be told apart: all is slope."""
        if not self.count:
            return 0.0, 0.0
        mean_x, mean_y = self._x / self._w, self._y / self._w
        spread = self._xx / self._w - mean_x**2
        through_origin = self._xy / self._xx if self._xx else 0.0
        if spread <= 0.0025 * mean_x**2:
            return 0.0, through_origin
        slope = (self._xy / self._w - mean_x * mean_y) / spread
        if slope <= 0:
            return mean_y, 0.0
        fixed = mean_y - slope * mean_x
        return (fixed, slope) if fixed >= 0 else (0.0, through_origin)

    def at(self, x: float) -> float:
        fixed, slope = self.fit
        return fixed + slope * x


class Decision(enum.Enum):
    LOAD = "load"
    LEARNING = "load, too little is known"
    PROBE = "load, to measure again"
    SKIP = "compute, the load would be slower"
    SMALL = "compute, below min_load_tokens"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A decision with what led to it; seconds as predicted."""

    decision: Decision
    tokens: int
    prefill_s: float
    load_s: float

    @property
    def loads(self) -> bool:
        return self.decision not in (Decision.SKIP, Decision.SMALL)


@dataclasses.dataclass(frozen=True)
class Rates:
    """What is known; 0 where nothing is."""

    prefill_tokens_per_s: float
    load_latency_s: float
    load_bytes_per_s: float
    break_even_tokens: float
    """Below it loads lose; infinite if they always do."""


@dataclasses.dataclass
class _Load:
    tokens: int
    begun: float
    """In shares, see ``BreakEven._share_s``."""


class BreakEven:
    """One engine's. Only the scheduler's thread uses it.

    Args:
        bytes_per_token: of KV, over all ranks.
        min_load_tokens: hits below it are never loaded.
        always: judge nothing, only measure.
    """

    def __init__(
        self, bytes_per_token: float, min_load_tokens: int = 0, always: bool = False, clock: Clock | None = None
    ) -> None:
        self._bytes_per_token = max(1.0, bytes_per_token)
        self._min_load_tokens = min_load_tokens
        self._always = always
        self._clock = clock or SystemClock()
        self._steps = Line()
        self._loads = Line()
        self._lookup_s = 0.0
        self._open: dict[str, _Load] = {}
        self._share_s = 0.0  # grows with time divided by the number of open loads
        self._at_s = self._clock.monotonic_s()
        self._probe_after_s = self._at_s + PROBE_INTERVAL_S

    def computed(self, tokens: int, seconds: float) -> None:
        """A step that computed ``tokens`` in all."""
        if tokens >= MIN_STEP_TOKENS and seconds > 0:
            self._steps.add(tokens, seconds)

    def looked_up(self, seconds: float) -> None:
        """How long a request waited for the answer."""
        self._lookup_s += 0.1 * (min(seconds, 1.0) - self._lookup_s)

    def load_began(self, request_id: str, tokens: int) -> None:
        self._tick()
        self._open[request_id] = _Load(tokens, self._share_s)

    def load_ended(self, request_id: str, tells_speed: bool) -> int:
        """Gives the load's tokens. ``tells_speed``: it ran to its end, or was given up for being slow."""
        self._tick()
        load = self._open.pop(request_id, None)
        if load is None:
            return 0
        if tells_speed:
            self._loads.add(load.tokens * self._bytes_per_token, self._share_s - load.begun)
        return load.tokens

    def load_tokens(self, request_id: str) -> int:
        """Of a load that is under way."""
        load = self._open.get(request_id)
        return 0 if load is None else load.tokens

    def judge(self, tokens: int, before_lookup: bool = False) -> Verdict:
        """About a hit of ``tokens``; ``before_lookup``: about the best that a lookup could find, its cost included."""
        prefill_s = self.prefill_s(tokens)
        load_s = self._loads.at(tokens * self._bytes_per_token) + (self._lookup_s if before_lookup else 0.0)
        return Verdict(self._decide(tokens, prefill_s, load_s, before_lookup), tokens, prefill_s, load_s)

    def prefill_s(self, tokens: int) -> float:
        """What computing ``tokens`` more takes; 0 if nothing is known."""
        return self._steps.fit[1] * tokens if self._steps.count >= ENOUGH else 0.0

    def rates(self) -> Rates:
        per_token_s = self.prefill_s(1)
        latency_s, per_byte_s = self._loads.fit
        gain_s = per_token_s - per_byte_s * self._bytes_per_token
        enough = self._steps.count >= ENOUGH and self._loads.count >= ENOUGH
        break_even = (latency_s / gain_s if gain_s > 0 else float("inf")) if enough else 0.0
        return Rates(
            1 / per_token_s if per_token_s else 0.0, latency_s, 1 / per_byte_s if per_byte_s else 0.0, break_even
        )

    def _decide(self, tokens: int, prefill_s: float, load_s: float, before_lookup: bool) -> Decision:
        if tokens < self._min_load_tokens:
            return Decision.SMALL
        if self._always:
            return Decision.LOAD
        if self._steps.count < ENOUGH or self._loads.count < ENOUGH:
            return Decision.LEARNING
        if load_s < prefill_s:
            return Decision.LOAD
        now = self._clock.monotonic_s()
        if now < self._probe_after_s:
            return Decision.SKIP
        if not before_lookup:
            self._probe_after_s = now + PROBE_INTERVAL_S
        return Decision.PROBE

    def _tick(self) -> None:
        now = self._clock.monotonic_s()
        if self._open:
            self._share_s += (now - self._at_s) / len(self._open)
        self._at_s = now
