"""Several KV cache groups, several blocks per chunk: hits, and every way in which a chunk can be bad."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hearthfs.tests.vllm import harness
from hearthfs.tests.vllm.conftest import Served
from hearthfs.tests.vllm.harness import TOKENS, chunks, prompt, reusable, run_cold, wait_until

CHUNK_TOKENS = 256
GROUPS = 2
LENGTH = 1100


def files_of(length: int) -> int:
    """Chunk files that a prompt is stored in: every group keeps every whole chunk."""
    return GROUPS * (length // CHUNK_TOKENS)


def group_of(path: Path) -> int:
    return int(path.stem[-8:], 16)


def test_hits_all_whole_chunks_with_equal_output(hybrid: Served) -> None:
    for seed, length in enumerate((300, 600, LENGTH, 1537)):
        tokens = prompt(seed, length)
        cold, stored = run_cold(hybrid.engine, tokens, hybrid.root, files_of(length))
        assert {group_of(path) for path in stored} == {0, 1}
        warm = hybrid.engine.generate(tokens, TOKENS)
        assert warm.cached_tokens == reusable(length, CHUNK_TOKENS)
        assert warm.tokens == cold.tokens
        hybrid.engine.forget()


def test_gap_between_best_logits_is_far_above_the_noise(hybrid: Served) -> None:
    """Else equal output would prove nothing, and different output neither."""
    gaps, noise = [], []
    for seed in range(10, 14):
        tokens = prompt(seed, LENGTH)
        cold, _ = run_cold(hybrid.engine, tokens, hybrid.root, files_of(LENGTH))
        warm = hybrid.engine.generate(tokens, TOKENS)
        hybrid.engine.forget()
        gaps += cold.gaps
        noise += [abs(one - other) for one, other in zip(cold.best, warm.best, strict=True)]
    assert min(gaps) > 100 * max(noise)


@pytest.mark.parametrize("damage", [harness.flip, harness.truncate, harness.empty, harness.remove])
@pytest.mark.parametrize("group", [0, 1])
def test_a_damaged_chunk_is_never_delivered(hybrid: Served, damage: Callable[[Path], None], group: int) -> None:
    seed = 100 + 10 * group + len(damage.__name__)
    tokens = prompt(seed, LENGTH)
    cold, stored = run_cold(hybrid.engine, tokens, hybrid.root, files_of(LENGTH))
    assert all(map(harness.is_whole, stored))
    for path in stored:
        if group_of(path) == group:
            damage(path)
    assert hybrid.engine.generate(tokens, TOKENS).tokens == cold.tokens
    hybrid.engine.forget()

    def healed() -> bool:
        warm = hybrid.engine.generate(tokens, TOKENS)
        hybrid.engine.forget()
        assert warm.tokens == cold.tokens
        return warm.cached_tokens == reusable(LENGTH, CHUNK_TOKENS)

    wait_until(healed, "the chunks that are needed stored again")


def test_a_chunk_of_another_prompt_under_our_name_is_refused(hybrid: Served) -> None:
    tokens, other = prompt(30, LENGTH), prompt(31, LENGTH)
    cold, stored = run_cold(hybrid.engine, tokens, hybrid.root, files_of(LENGTH))
    _, others = run_cold(hybrid.engine, other, hybrid.root, files_of(LENGTH))
    for mine, theirs in zip(stored, others, strict=True):
        mine.write_bytes(theirs.read_bytes())
    assert hybrid.engine.generate(tokens, TOKENS).tokens == cold.tokens
    hybrid.engine.forget()


def test_a_forged_chunk_changes_the_output(hybrid: Served) -> None:
    """The oracle can fail: where no check can notice, other KV gives another output."""
    tokens, other = prompt(40, LENGTH), prompt(41, LENGTH)
    cold, stored = run_cold(hybrid.engine, tokens, hybrid.root, files_of(LENGTH))
    _, others = run_cold(hybrid.engine, other, hybrid.root, files_of(LENGTH))
    for group in (0, 1):
        mine = [path for path in stored if group_of(path) == group]
        theirs = [path for path in others if group_of(path) == group]
        for target, source in zip(mine, theirs, strict=False):
            harness.forge(target, source)
    wrong = hybrid.engine.generate(tokens, TOKENS)
    assert wrong.cached_tokens == reusable(LENGTH, CHUNK_TOKENS)
    assert wrong.tokens != cold.tokens
    hybrid.engine.forget()


def test_generated_tokens_are_stored_and_found_in_the_next_turn(hybrid: Served) -> None:
    first = prompt(50, 400)
    before = hybrid.engine.metrics().get("vllm:hearth_kv_stored_decode_chunks", 0)
    known = chunks(hybrid.root)
    answer = hybrid.engine.generate(first, 150)
    wait_until(lambda: len(chunks(hybrid.root) - known) >= 4, "two chunks for each of two groups stored")
    hybrid.engine.forget()
    second = first + answer.tokens + prompt(51, 20)
    turn = hybrid.engine.generate(second, TOKENS)
    assert turn.cached_tokens == 512
    assert hybrid.engine.metrics()["vllm:hearth_kv_stored_decode_chunks"] > before
    hybrid.engine.forget()


def test_more_requests_than_memory(hybrid: Served) -> None:
    """R043, R058: preemption with loads and stores under way; all outputs as when run alone."""
    prompts = [prompt(seed, 1400) for seed in range(60, 68)]
    alone = []
    for tokens in prompts[:4]:
        alone.append(hybrid.engine.generate(tokens, 40).tokens)
        hybrid.engine.forget()
    together = [one.tokens for one in hybrid.engine.generate_all(prompts + prompts[:2], 40)]
    hybrid.engine.forget()
    assert together[:4] == alone
    assert together[8:] == alone[:2]
    again = [one.tokens for one in hybrid.engine.generate_all(prompts, 40)]
    assert again == together[:8]
    hybrid.engine.forget()


def test_the_engine_still_lives_and_says_what_happened(hybrid: Served) -> None:
    metrics = hybrid.engine.metrics()
    failed = {name: count for name, count in metrics.items() if name.startswith("vllm:hearth_kv_failed_load_chunks")}
    assert sum(failed.values()) >= 1
    assert "vllm:hearth_kv_failed_load_chunks{reason=BlockCorrupt}" in failed
    assert metrics["vllm:hearth_kv_lookups{result=present}"] >= 20
    log = hybrid.engine.log.read_text(errors="replace")
    assert "a load of request" in log
    assert "EngineDeadError" not in log
