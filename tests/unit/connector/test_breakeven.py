import math
import random

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.connector.breakeven import ENOUGH, PROBE_INTERVAL_S, BreakEven, Decision, Line

KIB = 1024


class Node:
    """A node with given speeds: teaches a guard what it would measure."""

    def __init__(self, rate: float, latency_s: float, bandwidth: float, **options: object) -> None:
        self.clock = FakeClock()
        self.guard = BreakEven(KIB, clock=self.clock, **options)  # type: ignore[arg-type]
        self.rate, self.latency_s, self.bandwidth = rate, latency_s, bandwidth

    def teach(self, *tokens: int) -> None:
        for count in tokens:
            self.guard.computed(count, 0.010 + count / self.rate)
            self.guard.load_began("r", count)
            self.clock.advance(self.latency_s + count * KIB / self.bandwidth)
            self.guard.load_ended("r", tells_speed=True)

    def decide(self, tokens: int) -> Decision:
        return self.guard.judge(tokens).decision


def test_a_line_is_recovered_from_points_on_it() -> None:
    line = Line()
    for x in (100, 2000, 500, 1000):
        line.add(x, 0.05 + x / 1e4)
    assert line.fit == pytest.approx((0.05, 1e-4))
    assert line.at(3000) == pytest.approx(0.35)


def test_equal_sizes_tell_nothing_apart_and_noise_gives_no_negative_speed() -> None:
    line = Line()
    for _ in range(5):
        line.add(100, 0.2)
    assert line.fit == pytest.approx((0.0, 0.002))
    falling = Line()
    for x, y in ((100, 0.3), (200, 0.2), (300, 0.1)):
        falling.add(x, y)
    assert falling.fit[1] == 0
    assert falling.fit[0] == pytest.approx(0.2, rel=0.1)


def test_one_outlier_does_not_turn_the_line_but_a_change_does() -> None:
    line = Line()
    for x in (100, 200, 300) * 5:
        line.add(x, x / 1e3)
    line.add(200, 60.0)
    assert line.at(200) < 0.3
    for x in (100, 200, 300) * 40:
        line.add(x, x / 1e2)
    assert line.at(200) == pytest.approx(2.0, rel=0.1)


def test_little_is_known_so_it_loads() -> None:
    node = Node(1e4, 0.05, 1e8)
    assert node.decide(10) is Decision.LEARNING
    node.teach(*[500] * (ENOUGH - 1))
    assert node.decide(10) is Decision.LEARNING


def test_below_break_even_it_computes_and_above_it_loads() -> None:
    """Prefill 10,000 tokens/s, load 50 ms + 10 us a token: 500 tokens cost 50 ms more or less either way at 555."""
    node = Node(rate=1e4, latency_s=0.05, bandwidth=KIB * 1e5)
    node.teach(200, 1000, 400, 3000)
    assert [node.decide(tokens) for tokens in (100, 500, 600, 4000)] == [
        Decision.SKIP,
        Decision.SKIP,
        Decision.LOAD,
        Decision.LOAD,
    ]
    rates = node.guard.rates()
    assert rates.break_even_tokens == pytest.approx(555.6, rel=0.01)
    assert rates.prefill_tokens_per_s == pytest.approx(1e4, rel=0.01)
    assert rates.load_latency_s == pytest.approx(0.05, rel=0.01)
    assert rates.load_bytes_per_s == pytest.approx(KIB * 1e5, rel=0.01)


def test_a_store_slower_than_computing_never_wins() -> None:
    node = Node(rate=1e4, latency_s=0.01, bandwidth=KIB * 5e3)
    node.teach(200, 1000, 400)
    assert node.decide(100_000) is Decision.SKIP
    assert math.isinf(node.guard.rates().break_even_tokens)


def test_what_loses_is_tried_now_and_then_and_a_store_that_got_faster_is_noticed() -> None:
    node = Node(rate=1e4, latency_s=1.0, bandwidth=KIB * 1e5)
    node.teach(200, 1000, 400)
    assert node.decide(500) is Decision.SKIP
    node.latency_s = 0.001
    probes = 0
    for _ in range(60):
        node.clock.advance(PROBE_INTERVAL_S)
        if node.decide(500) is Decision.LOAD:
            break
        assert node.decide(500) is Decision.SKIP, "one probe an interval"
        probes += 1
        node.teach(500)
    assert 1 <= probes < 50


def test_asking_costs_too() -> None:
    node = Node(rate=1e4, latency_s=0.0, bandwidth=KIB * 1e5)
    node.teach(200, 1000, 400)
    for _ in range(100):
        node.guard.looked_up(0.02)
    assert node.guard.judge(150).decision is Decision.LOAD
    assert node.guard.judge(150, before_lookup=True).decision is Decision.SKIP
    assert node.guard.judge(1000, before_lookup=True).decision is Decision.LOAD


def test_settings_come_first() -> None:
    node = Node(1e4, 10.0, 1e3, min_load_tokens=1000, always=True)
    node.teach(200, 1000, 400)
    assert node.decide(999) is Decision.SMALL
    assert node.decide(1000) is Decision.LOAD


def test_loads_side_by_side_share_the_time() -> None:
    """Ten loads that together take a second are a tenth of a second each, as computing ten requests would be."""
    node = Node(1e4, 0, 1)
    order = [str(n) for n in range(10)]
    for _ in range(ENOUGH):
        for request in order:
            node.guard.load_began(request, 1000)
        node.clock.advance(1.0)
        for request in order:
            node.guard.load_ended(request, tells_speed=True)
        node.guard.computed(1000, 0.11)
    assert node.guard.judge(1000).load_s == pytest.approx(0.1)


def test_a_failed_load_tells_nothing_and_a_late_one_does() -> None:
    node = Node(1e4, 0.001, KIB * 1e5)
    node.teach(500, 1000, 2000)
    before = node.guard.judge(1000).load_s
    node.guard.load_began("r", 1000)
    node.clock.advance(9)
    assert node.guard.load_ended("r", tells_speed=False) == 1000
    assert node.guard.judge(1000).load_s == before
    node.guard.load_began("r", 1000)
    node.clock.advance(9)
    node.guard.load_ended("r", tells_speed=True)
    assert node.guard.judge(1000).load_s > before
    assert node.guard.load_ended("unknown", tells_speed=True) == 0


def test_decode_steps_do_not_count_as_prefill() -> None:
    guard = BreakEven(KIB)
    for _ in range(10):
        guard.computed(1, 0.05)
    assert guard.prefill_s(1000) == 0


def test_never_much_slower_than_the_better_choice_whatever_the_node() -> None:
    """Over random nodes and noisy measurements: within 10 % of always choosing right, once it has learned."""
    source = random.Random(5)
    for _ in range(40):
        node = Node(10 ** source.uniform(3, 5), 10 ** source.uniform(-3, -0.5), KIB * 10 ** source.uniform(3.5, 6))
        for _ in range(20):
            tokens = source.randrange(100, 5000)
            node.guard.computed(tokens, (0.01 + tokens / node.rate) * source.uniform(0.95, 1.05))
            node.guard.load_began("r", tokens)
            node.clock.advance((node.latency_s + tokens * KIB / node.bandwidth) * source.uniform(0.95, 1.05))
            node.guard.load_ended("r", tells_speed=True)
        spent = best = 0.0
        for tokens in range(100, 5000, 50):
            prefill_s, load_s = tokens / node.rate, node.latency_s + tokens * KIB / node.bandwidth
            spent += load_s if node.guard.judge(tokens).loads else prefill_s
            best += min(prefill_s, load_s)
        assert spent < 1.1 * best
