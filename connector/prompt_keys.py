"""The chunks of a prompt, as an engine whose manifest is given would name them. Needs vLLM, whose hashes they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.errors import InvalidArgument, NotSupported
from .identity import chunk_name, tenant_directory


def chunk_names(tokens: Sequence[int], manifest: Mapping[str, Any], salt: str = "", tenants: bool = False) -> list[str]:
    """Names of the chunks of the first KV cache group that ``tokens`` fill, from the beginning. Prompts without LoRA
    and images only.

    Args:
        manifest: fields of a layout's ``manifest.json``.
        salt: the request's cache salt.
        tenants: whether the engine keeps each salt in a directory of its own.

    Raises:
        NotSupported: vLLM is not installed here.
        InvalidArgument: not such a manifest.
    """
    try:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils
    except ImportError as error:
        raise NotSupported(f"chunks are named by vLLM's hashes, and vLLM is not installed here: {error}") from None
    try:
        function = get_hash_fn_by_name(manifest["hash_algorithm"])
        seed, per_hash = manifest["hash_seed"], int(manifest["tokens_per_hash"])
        group = manifest["groups"][0]
        per_chunk = int(group["tokens_per_block"]) * int(manifest["blocks_per_chunk"])
        ending = int(group["group_id"]).to_bytes(4, "big")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the manifest does not say how tokens are hashed: {error!r}") from None
    before = os.environ.get("PYTHONHASHSEED")
    try:
        _set_seed(seed)
        kv_cache_utils.init_none_hash(function)
    finally:
        _set_seed(before or "")
    parent, names = None, []
    for end in range(per_hash, len(tokens) + 1, per_hash):
        extra = (("cache_salt", salt),) if salt and end == per_hash else None
        parent = kv_cache_utils.hash_block_tokens(function, parent, tokens[end - per_hash : end], extra)
        if end % per_chunk == 0:
            names.append(chunk_name(parent + ending, tenant_directory(salt) if tenants else ""))
    return names


def _set_seed(seed: str) -> None:
    if seed:
        os.environ["PYTHONHASHSEED"] = seed
    else:
        os.environ.pop("PYTHONHASHSEED", None)
