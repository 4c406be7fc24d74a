"""Every fuzz target with random bytes, and with good inputs that were changed a little."""

import pytest
from hearthfs.tests.fuzz.targets import TARGETS, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = seeds()


@st.composite
def changed(draw, name):
    data = bytearray(draw(st.sampled_from(SEEDS[name])))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(("flip", "insert", "cut", "repeat")))
        if how == "flip" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 8))]
        else:
            data[at:at] = data[at : at + 16]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
@settings(max_examples=300)
def test_only_our_own_errors(name, data):
    TARGETS[name](data.draw(st.one_of(st.binary(max_size=300), changed(name))))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_good(name):
    assert SEEDS[name]
    for seed in SEEDS[name]:
        TARGETS[name](seed)
