"""One root, engines that differ: weights, dtype, tensor-parallel size, hash seed. None may find another's chunks.

Each start costs half a minute, so each engine is started once, one after the other, and asked for the same prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hearthfs.bench.demo_model import llama_config, make_model
from hearthfs.bench.engine import Engine
from hearthfs.tests.vllm.conftest import ALWAYS
from hearthfs.tests.vllm.harness import TOKENS, chunks, prompt, reusable, run_cold

LENGTH = 400
CHUNKS = LENGTH // 128

CHANGES: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "weights": ({}, {}, "weights"),
    "dtype": ({"dtype": "bfloat16"}, {}, "dtype"),
    "tensor parallel": ({"tensor_parallel_size": 2}, {}, "tensor_parallel"),
    "seed": ({}, {"PYTHONHASHSEED": "7"}, "hash_seed"),
}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_changed_is_never_mixed_up_and_told(small_model: Path, tmp_path: Path) -> None:
    root = tmp_path / "kv"
    root.mkdir()
    extra = ALWAYS | {"root": str(root), "backend": "plain"}
    tokens = prompt(1, LENGTH)
    with Engine(small_model, extra, tmp_path / "first.log") as engine:
        first, stored = run_cold(engine, tokens, root, CHUNKS)
    kept = {path: path.read_bytes() for path in stored}
    for number, (change, (options, environment, field)) in enumerate(CHANGES.items()):
        model = small_model
        if change == "weights":
            model = make_model(tmp_path / "other" / small_model.name, llama_config(hidden=256, layers=4), seed=7)
        log = tmp_path / f"{number}.log"
        with Engine(model, extra, log, options, environment) as engine:
            run_cold(engine, tokens, root, CHUNKS)
        told = [line for line in log.read_text(errors="replace").splitlines() if "cannot use are in the root" in line]
        assert any(field in line for line in told), (change, told)
    assert {path: path.read_bytes() for path in stored} == kept
    assert len({path.parent for path in chunks(root)}) == 1 + len(CHANGES) + 1, "each its own; two ranks of one"
    with Engine(small_model, extra, tmp_path / "again.log") as engine:
        again = engine.generate(tokens, TOKENS)
    assert (again.cached_tokens, again.tokens) == (reusable(LENGTH), first.tokens)
