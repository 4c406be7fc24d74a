"""The demo's report, which needs no engine."""

import dataclasses
import json

import pytest
from hearthfs.bench.demo_report import ChatRow, PromptRow, Report, reusable

GOOD = Report(
    prompts=[
        PromptRow(500, 200, 30, 60, 384, 384, True),
        PromptRow(2500, 1100, 50, 90, 2432, 2432, True),
    ],
    chat=[ChatRow(1, 500, 510, 1, True), ChatRow(2, 700, 90, 1, True)],
    gap_over_noise=300,
    engine="vLLM",
    model="Llama",
    machine="2 cores",
    took_s=100,
)


def test_good_claims_hold() -> None:
    assert GOOD.broken_claims() == []
    assert "All claims hold." in GOOD.as_markdown()
    assert "no figure for a GPU" in GOOD.as_markdown()


def test_reusable_tokens_leave_one_to_compute() -> None:
    assert [reusable(n) for n in (500, 1000, 1925, 2500, 3000, 256)] == [384, 896, 1920, 2432, 2944, 128]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prompts": [PromptRow(2500, 1100, 50, 90, 2432, 2304, True)]}, "2304 of 2432 reusable"),
        ({"prompts": [PromptRow(500, 200, 30, 60, 384, 384, False)]}, "output differs"),
        ({"prompts": [PromptRow(2500, 100, 50, 101, 2432, 2432, True)]}, "101 ms warm, 100 ms cold"),
        ({"chat": [ChatRow(1, 500, 510, 0, True)]}, "no block of generated tokens"),
        ({"chat": [ChatRow(1, 1, 1, 1, True), ChatRow(2, 90, 91, 1, True)]}, "turn 2: 91 ms warm"),
        ({"chat": [ChatRow(1, 1, 1, 1, False)]}, "turn 1: the output differs"),
        ({"gap_over_noise": 99.0}, "equal output proves nothing"),
    ],
)
def test_each_claim_can_break(change: dict[str, object], text: str) -> None:
    report = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]
    assert any(text in one for one in report.broken_claims())
    assert "do NOT hold" in report.as_markdown()


def test_json_has_the_documented_fields() -> None:
    fields = json.loads(GOOD.as_json())
    assert set(fields["prompts"][0]) == {
        "tokens",
        "cold_ms",
        "warm_same_node_ms",
        "warm_other_node_ms",
        "reusable_tokens",
        "hit_tokens",
        "output_equal",
    }
    assert {"turn", "cold_ms", "warm_ms", "decode_blocks_stored"} <= set(fields["chat"][0])
    assert {"engine", "model", "machine"} <= set(fields)


def test_table_columns_line_up() -> None:
    table = [line for line in GOOD.as_markdown().splitlines() if line.startswith("|")]
    assert len({len(line) for line in table[:4]}) == 1
