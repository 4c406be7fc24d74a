"""What the demo found: claims it must meet, and its table as text, Markdown and JSON. Pure: no engine, no clock."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

BLOCK_TOKENS = 128
MIN_GAP_OVER_NOISE = 100.0
HONEST_FROM_TOKENS = 1900
"""From this prompt length on the demo claims to be faster; below, it only shows what it measured."""
CAVEAT = (
    "Prefill on a CPU is slow: the ratio of cold to warm says that the KV arrives in milliseconds, "
    "it is no figure for a GPU."
)


def reusable(tokens: int) -> int:
    """Whole blocks before the last token, which is always computed.

    >>> reusable(1925), reusable(129), reusable(128)
    (1920, 128, 0)
    """
    return (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


@dataclasses.dataclass(frozen=True)
class PromptRow:
    """Medians over several prompts of one length; ``hit_tokens``: the fewest that any of them reused."""

    tokens: int
    cold_ms: float
    warm_same_node_ms: float
    warm_other_node_ms: float
    reusable_tokens: int
    hit_tokens: int
    output_equal: bool


@dataclasses.dataclass(frozen=True)
class ChatRow:
    turn: int
    cold_ms: float
    warm_ms: float
    decode_blocks_stored: int
    output_equal: bool


@dataclasses.dataclass(frozen=True)
class Report:
    prompts: list[PromptRow]
    chat: list[ChatRow]
    gap_over_noise: float
    """Smallest distance between the two best logits, over the largest difference that another order of adding made."""
    engine: str
    model: str
    machine: str
    took_s: float

    def broken_claims(self) -> list[str]:
        """What does not hold; empty when the demo may call itself a success."""
        broken = []
        for row in self.prompts:
            if row.hit_tokens != row.reusable_tokens:
                broken.append(f"{row.tokens} tokens: {row.hit_tokens} of {row.reusable_tokens} reusable ones were hits")
            if not row.output_equal:
                broken.append(f"{row.tokens} tokens: the output differs from that of a cold run")
            slowest = max(row.warm_same_node_ms, row.warm_other_node_ms)
            if row.tokens >= HONEST_FROM_TOKENS and slowest >= row.cold_ms:
                broken.append(f"{row.tokens} tokens: {slowest:.0f} ms warm, {row.cold_ms:.0f} ms cold")
        for turn in self.chat:
            if not turn.output_equal:
                broken.append(f"turn {turn.turn}: the output differs from that of a cold run")
            if turn.turn > 1 and turn.warm_ms >= turn.cold_ms:
                broken.append(f"turn {turn.turn}: {turn.warm_ms:.0f} ms warm, {turn.cold_ms:.0f} ms cold")
        if not any(turn.decode_blocks_stored for turn in self.chat):
            broken.append("no block of generated tokens was stored")
        if self.gap_over_noise < MIN_GAP_OVER_NOISE:
            broken.append(
                f"the two best logits are only {self.gap_over_noise:.0f} times the numerical noise apart: "
                "equal output proves nothing"
            )
        return broken

    def as_json(self) -> str:
        fields: dict[str, Any] = dataclasses.asdict(self)
        return json.dumps(fields | {"note": CAVEAT, "broken_claims": self.broken_claims()}, indent=1) + "\n"

    def as_markdown(self) -> str:
        prompts = [
            [
                f"{row.tokens:,}",
                f"{row.cold_ms:.0f}",
                f"{row.warm_same_node_ms:.0f}",
                f"{row.warm_other_node_ms:.0f}",
                f"{row.cold_ms / row.warm_other_node_ms:.1f}x",
                f"{row.hit_tokens:,} of {row.reusable_tokens:,}",
                "yes" if row.output_equal else "NO",
            ]
            for row in self.prompts
        ]
        chat = [
            [
                str(row.turn),
                f"{row.cold_ms:.0f}",
                f"{row.warm_ms:.0f}",
                str(row.decode_blocks_stored),
                "yes" if row.output_equal else "NO",
            ]
            for row in self.chat
        ]
        head = ["prompt tokens", "cold ms", "same node ms", "other node ms", "cold / other", "tokens reused", "equal"]
        broken = self.broken_claims()
        verdict = ["All claims hold."] if not broken else ["These claims do NOT hold:", *(f"- {one}" for one in broken)]
        return "\n".join(
            [
                "# HearthFS demo: time to first token",
                "",
                *_table(head, prompts),
                "",
                "Medians. Same node: the engine's own prefix cache was emptied. Other node: an engine that never saw",
                "the prompt.",
                "",
                "A chat whose turns alternate between the two nodes:",
                "",
                *_table(["turn", "cold ms", "warm ms", "blocks of generated tokens stored", "equal"], chat),
                "",
                CAVEAT,
                "",
                f"Engine: {self.engine}. Model: {self.model}. Machine: {self.machine}.",
                f"The two best logits are at least {self.gap_over_noise:,.0f} times the numerical noise apart.",
                f"Took {self.took_s:.0f} s.",
                "",
                *verdict,
                "",
            ]
        )


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *map(line, rows)]
