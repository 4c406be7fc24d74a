"""Two ranks: each has its own half of every chunk, and a hit is a hit on both or none."""

from hearthfs.tests.vllm import harness
from hearthfs.tests.vllm.conftest import Served
from hearthfs.tests.vllm.harness import TOKENS, prompt, reusable, run_cold, wait_until

LENGTH = 700


def test_every_rank_stores_and_both_are_found(parallel: Served) -> None:
    tokens = prompt(1, LENGTH)
    cold, stored = run_cold(parallel.engine, tokens, parallel.root, 10)
    assert {path.parent.name for path in stored} == {"0", "1"}
    warm = parallel.engine.generate(tokens, TOKENS)
    assert warm.cached_tokens == reusable(LENGTH)
    assert warm.tokens == cold.tokens
    parallel.engine.forget()


def test_one_rank_lacks_a_chunk(parallel: Served) -> None:
    """R066: the hit is the shortest over the ranks; nothing fails."""
    tokens = prompt(2, LENGTH)
    cold, stored = run_cold(parallel.engine, tokens, parallel.root, 10)
    of_rank_1 = {path for path in stored if path.parent.name == "1"}
    for path in of_rank_1:
        path.unlink()
    warm = parallel.engine.generate(tokens, TOKENS)
    assert (warm.cached_tokens, warm.tokens) == (0, cold.tokens)
    parallel.engine.forget()


def test_one_rank_fails_to_load(parallel: Served) -> None:
    tokens = prompt(3, LENGTH)
    cold, stored = run_cold(parallel.engine, tokens, parallel.root, 10)
    victim = max(path for path in stored if path.parent.name == "1")
    harness.flip(victim)
    assert parallel.engine.generate(tokens, TOKENS).tokens == cold.tokens
    wait_until(lambda: harness.is_whole(victim), "the bad half stored again")
    parallel.engine.forget()
    warm = parallel.engine.generate(tokens, TOKENS)
    assert (warm.cached_tokens, warm.tokens) == (reusable(LENGTH), cold.tokens)
