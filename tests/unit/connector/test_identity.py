import dataclasses
import json
from typing import Any

import pytest
from hearthfs.connector.identity import GroupIdentity, KvIdentity, chunk_key, chunk_name, place, tenant_directory
from hypothesis import given
from hypothesis import strategies as st

IDENTITY = KvIdentity(
    model="org/Model-8B",
    weights="0123456789abcdef",
    quantization="None",
    model_settings="0123",
    engine="vllm-0.32",
    platform="cpu/CPU_ATTN/x86_64/vec",
    dtype="float32/float32",
    kv_layout="LBHNC",
    groups=(GroupIdentity(0, 128, ("layers.0", "layers.1")),),
    block_bytes=2 << 20,
    blocks_per_chunk=1,
    tokens_per_hash=128,
    tensor_parallel=1,
    pipeline_parallel=1,
    prefill_context_parallel=1,
    decode_context_parallel=1,
    world_size=1,
    replicated=False,
    hash_algorithm="sha256",
    hash_seed="",
)
OTHER: dict[str, Any] = {
    "model": "org/Other",
    "weights": "fedcba9876543210",
    "quantization": "fp8",
    "model_settings": "4567",
    "engine": "vllm-0.33",
    "platform": "cpu/CPU_ATTN/x86_64/amx",
    "dtype": "fp8/float32",
    "kv_layout": "other",
    "groups": (GroupIdentity(0, 128, ("layers.0", "layers.1")), GroupIdentity(1, 128, ("layers.2",))),
    "block_bytes": 1 << 20,
    "blocks_per_chunk": 2,
    "tokens_per_hash": 16,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "prefill_context_parallel": 2,
    "decode_context_parallel": 2,
    "world_size": 2,
    "replicated": True,
    "hash_algorithm": "sha256_cbor",
    "hash_seed": "0",
}


def test_golden_directory() -> None:
    """Changes only together with ``FORMAT``: engines of one version must meet, those of another must not."""
    assert IDENTITY.directory(0) == "Model-8B-c3b2ecb6a8842282/d59ffa443f57a71cb4a5b14371901744/0"


def test_every_field_separates() -> None:
    assert set(OTHER) == {field.name for field in dataclasses.fields(KvIdentity)}
    seen = {IDENTITY.directory(0)}
    for field, value in OTHER.items():
        directory = dataclasses.replace(IDENTITY, **{field: value}).directory(0)
        assert directory not in seen, field
        seen.add(directory)
    assert IDENTITY.directory(1) not in seen


def test_tensor_parallel_sizes_do_not_meet_even_at_rank_0() -> None:
    assert dataclasses.replace(IDENTITY, tensor_parallel=2).directory(0) != IDENTITY.directory(0)


@given(st.text(max_size=300), st.text(max_size=300))
def test_model_names_are_told_apart_and_bounded(one: str, other: str) -> None:
    first = dataclasses.replace(IDENTITY, model=one, weights="a").model_directory
    second = dataclasses.replace(IDENTITY, model=other, weights="b").model_directory
    assert first != second
    for name in (first, second):
        assert 0 < len(name.encode()) < 255
        assert "/" not in name
        assert not name.startswith(".")


def test_replicated_bytes_are_kept_once() -> None:
    """MLA: each rank has the whole latent."""
    mla = dataclasses.replace(IDENTITY, tensor_parallel=4, world_size=4, replicated=True)
    assert {mla.directory(rank) for rank in range(4)} == {mla.directory(0)}
    assert list(mla.ranks()) == [0]
    sharded = dataclasses.replace(mla, replicated=False)
    assert len({sharded.directory(rank) for rank in sharded.ranks()} | {mla.directory(0)}) == 5


def test_tenants_have_directories_of_their_own() -> None:
    one, other = tenant_directory("one"), tenant_directory("other")
    assert len({one, other, tenant_directory(None), tenant_directory("")}) == 3
    assert place("m/l/0", chunk_name(b"a", one)) == (f"{one}/m/l/0", "61.kv")
    assert place("m/l/0", chunk_name(b"a")) == ("m/l/0", "61.kv")


def test_separators_in_names_do_not_collide() -> None:
    """R073: a slash that is written as a marker must not meet a name that has the marker."""
    one = dataclasses.replace(IDENTITY, groups=(GroupIdentity(0, 128, ("a", "b")),))
    other = dataclasses.replace(IDENTITY, groups=(GroupIdentity(0, 128, ("a,b",)),))
    assert one.directory(0) != other.directory(0)


def test_a_copy_of_the_model_elsewhere_is_the_same() -> None:
    assert dataclasses.replace(IDENTITY, model="/data/Model-8B/").directory(0) == IDENTITY.directory(0)


def test_manifest_is_readable() -> None:
    fields = json.loads(IDENTITY.manifest())
    assert (fields["model"], fields["tensor_parallel"]) == ("org/Model-8B", 1)


@given(st.binary(min_size=1, max_size=100))
def test_chunk_names_are_injective(key: bytes) -> None:
    assert chunk_key(chunk_name(key)) == key


def test_too_long_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255"):
        chunk_name(bytes(127))
