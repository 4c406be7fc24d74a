"""Which chunks an engine may share: the directory that holds them, and the names in it.

A directory is ``<root>/[<tenant>/]<model>-<fingerprint>/<layout>/<rank>``. Two engines meet in one only if every byte
of a chunk means the same to both: same model and weights, dtype, page layout, parallel sizes and rank, block and chunk
size, and the same way of hashing tokens. All of it goes into a digest over one canonical JSON text, so no two sets of
values can run together by way of separators, and no name can be too long.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

FORMAT = 2
"""Version of the layout of chunks and names; another one never reads this one's files."""
MAX_NAME_BYTES = 255
MANIFEST = "manifest.json"
CHUNK_ENDING = ".kv"
TENANT = "tenant-"


@dataclasses.dataclass(frozen=True)
class GroupIdentity:
    """One KV cache group: its layers share block tables."""

    group_id: int
    tokens_per_block: int
    layers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class KvIdentity:
    """Everything that decides whether two engines' chunks are interchangeable."""

    model: str
    weights: str
    """Fingerprint of the weight files, or what the operator calls them."""
    quantization: str
    model_settings: str
    """Digest of the model's configuration as it was loaded: overrides, rope scaling."""
    engine: str
    platform: str
    """Platform, attention backend and whatever else arranges bytes within a page."""
    dtype: str
    kv_layout: str
    groups: tuple[GroupIdentity, ...]
    block_bytes: int
    """Of one block in all layers of one worker: heads, head size and padding show in it."""
    blocks_per_chunk: int
    tokens_per_hash: int
    tensor_parallel: int
    pipeline_parallel: int
    prefill_context_parallel: int
    decode_context_parallel: int
    world_size: int
    replicated: bool
    """All ranks hold the same bytes (MLA): they are kept once."""
    hash_algorithm: str
    hash_seed: str

    @property
    def model_directory(self) -> str:
        """``<readable model name>-<weights>``; the readable part is for people, the digest tells models apart."""
        readable = readable_name(self.model)
        return f"{readable}-{_digest({'model': readable, 'weights': self.weights})[:16]}"

    @property
    def layout(self) -> str:
        """32 hex digits over all fields but the model's name and weights."""
        fields = dataclasses.asdict(self) | {"format": FORMAT}
        del fields["model"], fields["weights"]
        return _digest(fields)[:32]

    def directory(self, rank: int) -> str:
        """Relative to the root, of the chunks of one worker."""
        return f"{self.model_directory}/{self.layout}/{0 if self.replicated else rank}"

    def ranks(self) -> range:
        """Those with a directory of their own."""
        return range(1 if self.replicated else self.world_size)

    def manifest(self) -> bytes:
        """What the digests in the path stand for: for people, ``hearth kv`` and ``neighbours``."""
        fields = dataclasses.asdict(self) | {"format": FORMAT, "model_name": readable_name(self.model)}
        return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def readable_name(model: str) -> str:
    """Of a model's path or repository.

    >>> readable_name("org/Model 8B/")
    'Model_8B'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", model.rstrip("/").rpartition("/")[2])[:80].strip(".") or "model"


def tenant_directory(salt: str | None) -> str:
    """Of a tenant, below the root; empty for requests without a cache salt. The salt, which may be a secret, cannot be
    told from it.

    >>> tenant_directory("secret"), tenant_directory(None)
    ('tenant-4ceb6c8301da20af', '')
    """
    return f"{TENANT}{hashlib.sha256(b'hearthfs tenant' + bytes([0]) + salt.encode()).hexdigest()[:16]}" if salt else ""


def chunk_name(key: bytes, tenant: str = "") -> str:
    """The file name of a chunk: its key, which is a hash and a group number, in hex; after ``<tenant>/``, if any.

    Raises:
        ValueError: the name would be longer than a file system takes.
    """
    name = key.hex() + CHUNK_ENDING
    if len(name) > MAX_NAME_BYTES:
        raise ValueError(f"a key of {len(key)} bytes makes a file name of {len(name)}; at most {MAX_NAME_BYTES}")
    return f"{tenant}/{name}" if tenant else name


def chunk_key(name: str) -> bytes:
    """The key that ``chunk_name`` made ``name`` from.

    >>> chunk_key(chunk_name(b"abc")), chunk_key(chunk_name(b"abc", "tenant-1"))
    (b'abc', b'abc')
    """
    return bytes.fromhex(name.rpartition("/")[2].removesuffix(CHUNK_ENDING))


def place(directory: str, name: str) -> tuple[str, str]:
    """Where a chunk of a rank's directory lies: directory below the root, and file name.

    >>> place("model/layout/0", "ab.kv")
    ('model/layout/0', 'ab.kv')
    >>> place("model/layout/0", "tenant-1/ab.kv")
    ('tenant-1/model/layout/0', 'ab.kv')
    """
    tenant, _, file = name.rpartition("/")
    return (f"{tenant}/{directory}" if tenant else directory), file


def _digest(fields: dict[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
