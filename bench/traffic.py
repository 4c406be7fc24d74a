"""Requests as users make them: lists of prompts, of token numbers, from a seed. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from .demo_model import VOCABULARY

Prompt = list[int]

DOCUMENT_TOKENS, QUESTION_TOKENS = 1024, 40
CHAT_TOKENS, LONG_TOKENS = 100, 700
"""Shorter than a chunk with its question; and a prompt that nobody asks twice."""


def text(seed: str, tokens: int) -> Prompt:
    """Random tokens, the same for the same arguments."""
    generator = random.Random(f"{seed} {tokens}")
    return [generator.randrange(VOCABULARY) for _ in range(tokens)]


def users(name: str, count: int, turn: int) -> list[Prompt]:
    """One question of each of ``count`` users, about a document of their own."""
    return [
        text(f"{name} document {user}", DOCUMENT_TOKENS) + text(f"{name} {turn} {user}", QUESTION_TOKENS)
        for user in range(count)
    ]


def never_seen(name: str, count: int, tokens: int) -> list[Prompt]:
    return [text(f"{name} {number}", tokens) for number in range(count)]


def mixed(seed: int, count: int, documents: int) -> list[Prompt]:
    """Half ask about one of ``documents`` shared ones, popular as 1/rank; three of ten are short chats; the others long
    and new."""
    generator = random.Random(seed)
    weights = [1 / rank for rank in range(1, documents + 1)]
    found = []
    for number in range(count):
        kind = generator.random()
        if kind < 0.5:
            (document,) = generator.choices(range(documents), weights)
            found.append(text(f"shared {document}", DOCUMENT_TOKENS) + text(f"q {seed} {number}", QUESTION_TOKENS))
        elif kind < 0.8:
            found.append(text(f"chat {seed} {number}", CHAT_TOKENS))
        else:
            found.append(text(f"long {seed} {number}", LONG_TOKENS))
    return found


def batches(prompts: list[Prompt], at_a_time: int) -> Iterator[list[Prompt]]:
    """
    >>> list(batches([[1], [2], [3]], 2))
    [[[1], [2]], [[3]]]
    """
    rest = iter(prompts)
    while batch := list(itertools.islice(rest, at_a_time)):
        yield batch
