"""Chunk names for ``hearth kv prefix`` are those that an engine makes."""

import os
import warnings

import pytest
from hearthfs.common.errors import InvalidArgument
from hearthfs.connector.identity import chunk_key, chunk_name, tenant_directory

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM and torch warn about themselves while they are imported
    from hearthfs.connector.prompt_keys import chunk_names
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_offload.base import make_offload_key
    from vllm.v1.request import Request

MANIFEST = {
    "hash_algorithm": "sha256",
    "hash_seed": "",
    "tokens_per_hash": 16,
    "blocks_per_chunk": 2,
    "groups": [{"group_id": 3, "tokens_per_block": 32, "layers": []}],
}
TOKENS = list(range(300))


@pytest.mark.parametrize("salt", ["", "secret"])
@pytest.mark.parametrize("seed", ["", "7"])
@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_names_are_those_of_vllm(algorithm: str, seed: str, salt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    names = chunk_names(TOKENS, MANIFEST | {"hash_algorithm": algorithm, "hash_seed": seed}, salt)
    assert "PYTHONHASHSEED" not in os.environ
    if seed:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    function = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(function)
    request = Request(
        request_id="r",
        prompt_token_ids=TOKENS,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt=salt or None,
        block_hasher=kv_cache_utils.get_request_block_hasher(16, function),
    )
    wanted = [chunk_name(make_offload_key(block_hash, 3)) for block_hash in request.block_hashes[3::4]]
    assert names == wanted
    assert len(names) == 300 // 64


def test_tenants_and_bad_manifests() -> None:
    (name, *_) = chunk_names(TOKENS, MANIFEST, "salt", tenants=True)
    assert name.startswith(tenant_directory("salt") + "/")
    assert len(chunk_key(name)) == 36
    with pytest.raises(InvalidArgument, match="how tokens are hashed"):
        chunk_names(TOKENS, {})
