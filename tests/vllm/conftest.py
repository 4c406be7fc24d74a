"""Models and engines; each engine is started once, since a start costs half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hearthfs.bench.demo_model import hybrid_config, llama_config, make_model
from hearthfs.bench.engine import ONE_PROCESS, Engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)


ALWAYS = {"load_when": "always", "load_timeout_min_s": 5}
"""These models compute faster than anything loads; and a busy machine is no fault."""


@dataclass(frozen=True)
class Served:
    """An engine and the root of its chunks."""

    engine: Engine
    root: Path


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("small") / "small", llama_config(hidden=256, layers=4))


@pytest.fixture(scope="session")
def hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hybrid") / "hybrid", hybrid_config())


@pytest.fixture(scope="module")
def hybrid(hybrid_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Plain files; two KV cache groups; two blocks per chunk; decode tokens are stored; few blocks, so that a
    handful of requests fills the engine."""
    directory = tmp_path_factory.mktemp("hybrid-engine")
    root = directory / "kv"
    root.mkdir()
    extra = ALWAYS | {"root": str(root), "backend": "plain", "blocks_per_chunk": 2, "offload_prompt_only": False}
    options = {"num_gpu_blocks_override": 80, "prefix_cache_retention_interval": 256}
    with Engine(hybrid_model, extra, directory / "log", options, ONE_PROCESS) as engine:
        yield Served(engine, root)


@pytest.fixture(scope="module")
def parallel(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Plain files; tensor parallel over two worker processes."""
    directory = tmp_path_factory.mktemp("parallel-engine")
    root = directory / "kv"
    root.mkdir()
    extra = ALWAYS | {"root": str(root), "backend": "plain", "failed_ttl_s": 3}
    with Engine(small_model, extra, directory / "log", {"tensor_parallel_size": 2}) as engine:
        yield Served(engine, root)
