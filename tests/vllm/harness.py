"""What the tests with real engines share: prompts, waiting for stores, damage to chunk files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from hearthfs.bench.engine import BLOCK_TOKENS, Engine, Generation
from hearthfs.bench.traffic import text
from hearthfs.connector import chunk_format
from hearthfs.connector.identity import CHUNK_ENDING

TOKENS = 8
"""Generated per prompt: enough that another KV shows."""


def prompt(seed: int, tokens: int) -> list[int]:
    """Random tokens, the same for the same arguments."""
    return text(f"prompt {seed}", tokens)


def reusable(tokens: int, chunk_tokens: int = BLOCK_TOKENS) -> int:
    """Whole chunks before the last token, which is always computed."""
    return (tokens - 1) // chunk_tokens * chunk_tokens


def chunks(root: Path) -> set[Path]:
    return {path for path in root.rglob("*" + CHUNK_ENDING) if path.is_file()}


def block_hashes() -> list[str]:
    """vLLM's hashes of a block that follows another, with a LoRA and a salt, by its two ways of hashing."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    found = []
    for name in ("sha256", "sha256_cbor"):
        function = get_hash_fn_by_name(name)
        kv_cache_utils.init_none_hash(function)
        first = kv_cache_utils.hash_block_tokens(function, None, [1, 2, 3], None)
        keys = (("lora", "a", "b"), ("cache_salt", "s"))
        found.append(kv_cache_utils.hash_block_tokens(function, first, [4, 5, 6], keys).hex())
    return found


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def run_cold(engine: Engine, tokens: list[int], root: Path, new_chunks: int) -> tuple[Generation, list[Path]]:
    """Computes a prompt that nobody has seen, waits until its chunks are stored; gives them."""
    before = chunks(root)
    cold = engine.generate(tokens, TOKENS)
    assert cold.cached_tokens == 0
    wait_until(lambda: len(chunks(root) - before) >= new_chunks, f"{new_chunks} chunks of a prompt stored")
    engine.forget()
    return cold, sorted(chunks(root) - before)


def is_whole(path: Path) -> bool:
    """Whether a reader would accept the chunk."""
    try:
        data = path.read_bytes()
        payload = int.from_bytes(data[-chunk_format.TRAILER_BYTES :][16:24], "little")
        chunk_format.open_sealed(data, payload, path.name, "/".join(path.parts[-4:-1]))
    except OSError:
        return False
    return True


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


def forge(target: Path, source: Path) -> None:
    """Makes ``target`` a chunk that passes every check and holds ``source``'s bytes: what no fault may lead to."""
    data = bytearray(source.read_bytes())
    payload = len(data) - chunk_format.TRAILER_BYTES
    directory = "/".join(target.parts[-4:-1])
    chunk_format.seal(data, payload, target.name, directory)
    target.write_bytes(data)
