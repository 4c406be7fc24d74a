import random

import pytest
from hearthfs.bench.paired import ratio


def test_the_interval_holds_the_truth_as_often_as_it_says():
    generator = random.Random(1)
    held = 0
    for _ in range(400):
        found = ratio([(0.95 * generator.lognormvariate(0, 0.05), 1.0) for _ in range(20)])
        held += found.low <= 0.95 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_more_noise_is_a_lower_bound():
    calm = ratio([(1.0, 1.0 + 0.01 * (number % 2)) for number in range(24)])
    noisy = ratio([(1.0, 1.0 + 0.2 * (number % 2)) for number in range(24)])
    assert noisy.low < calm.low < calm.mean < calm.high


def test_slow_beside_fast_is_below_one():
    assert ratio([(9.0, 10.0), (8.0, 10.0)] * 10).high < 1


def test_few_pairs_say_nothing():
    with pytest.raises(ValueError, match="9 pairs"):
        ratio([(1.0, 1.0)] * 9)
