"""What we need to know about a vLLM engine, read from its configuration in one place."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from typing import Any

import vllm
from vllm.platforms import current_platform

from ..common.errors import SettingsError
from . import weights
from .identity import GroupIdentity, KvIdentity
from .notices import Notices
from .settings import ConnectorSettings


def check_engine(vllm_config: Any) -> None:
    """
    Raises:
        SettingsError: with this engine's settings nothing would ever be found.
    """
    if not vllm_config.cache_config.enable_prefix_caching:
        raise SettingsError(
            "HearthConnector finds chunks by vLLM's block hashes, and prefix caching, which makes them, is off. "
            "Start with --enable-prefix-caching"
        )
    role = vllm_config.kv_transfer_config.kv_role
    if role != "kv_both":
        raise SettingsError(f'kv_role {role!r}: HearthConnector loads and stores. Set "kv_role": "kv_both"')


def identity_of(vllm_config: Any, offloading_config: Any, settings: ConnectorSettings, notices: Notices) -> KvIdentity:
    """The identity of this engine's chunks; the same in its scheduler and in all its workers.

    Raises:
        SettingsError: the engine's block hashes differ from process to process, so no chunk would ever be found.
    """
    cache, parallel = offloading_config.cache, offloading_config.parallel
    algorithm, seed = _hashing(vllm_config.cache_config.prefix_caching_hash_algo, notices)
    return KvIdentity(
        model=offloading_config.model.name,
        weights=settings.weights_revision
        or weights_of(vllm_config.model_config.model, vllm_config.model_config.revision, notices),
        quantization=str(vllm_config.model_config.quantization),
        model_settings=_model_settings(vllm_config.model_config),
        engine=f"vllm-{'.'.join(vllm.__version__.split('.')[:2])}",
        platform=_platform(vllm_config),
        dtype=f"{offloading_config.model.dtype}/{vllm_config.model_config.dtype}",
        kv_layout=str(offloading_config.kv_cache_layout),
        groups=tuple(
            GroupIdentity(group.group_id, group.tokens_per_block, tuple(group.layer_names))
            for group in offloading_config.groups
        ),
        block_bytes=offloading_config.worker_kv_bytes_per_block,
        blocks_per_chunk=cache.blocks_per_chunk,
        tokens_per_hash=cache.tokens_per_hash,
        tensor_parallel=parallel.tp_size,
        pipeline_parallel=parallel.pp_size,
        prefill_context_parallel=parallel.pcp_size,
        decode_context_parallel=parallel.dcp_size,
        world_size=parallel.world_size,
        replicated=offloading_config.replicated_layout,
        hash_algorithm=algorithm,
        hash_seed=seed,
    )


def _hashing(algorithm: str, notices: Notices) -> tuple[str, str]:
    """vLLM starts sha256 and sha256_cbor from a constant, xxhash from a random one; all from PYTHONHASHSEED if set."""
    seed = hash_seed()
    if not seed and "sha256" not in algorithm:
        raise SettingsError(
            f"--prefix-caching-hash-algo {algorithm} gives every process its own block hashes, so that no engine would "
            f"find another's chunks. Use sha256_cbor (or sha256), or set PYTHONHASHSEED to one value for all engines"
        )
    if seed:
        notices.info(
            "PYTHONHASHSEED=%s is part of each block hash: only engines with the same value share chunks", seed
        )
    return algorithm, seed


def hash_seed() -> str:
    """Empty: vLLM's own."""
    return os.environ.get("PYTHONHASHSEED") or ""


def _model_settings(model_config: Any) -> str:
    settings = model_config.hf_config.to_dict()
    for volatile in ("_name_or_path", "transformers_version"):
        settings.pop(volatile, None)
    text = json.dumps([settings, str(model_config.hf_overrides or "")], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_of(model: str, revision: str | None, notices: Notices) -> str:
    """The fingerprint of a model's weights, by its directory or its name in the local cache of the hub."""
    directory = _model_directory(model, revision)
    if directory is None:
        notices.warn(
            "weights",
            "the weights of %s are not on this disk; chunks are told apart by its name and revision %s only. "
            "Set extra_config.weights_revision",
            model,
            revision,
        )
        return hashlib.sha256(f"{model}\0{revision}".encode()).hexdigest()[:16]
    return weights.fingerprint(directory)


def _model_directory(model: str, revision: str | None) -> str | None:
    if os.path.isdir(model):
        return model
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json", revision=revision)
    return os.path.dirname(cached) if isinstance(cached, str) else None


def _platform(vllm_config: Any) -> str:
    """Kernels arrange the bytes of a page each in their own way; the CPU ones by instruction set, too."""
    backend = getattr(vllm_config.attention_config, "backend", None)
    parts = [str(current_platform.device_type), str(getattr(backend, "name", backend))]
    if current_platform.is_cpu():
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        model = vllm_config.model_config
        block_size = vllm_config.cache_config.block_size
        parts += [platform.machine(), _get_attn_isa(model.dtype, block_size, model.get_head_size())]
    return "/".join(parts)
