"""vLLM's ``kv_connector_extra_config``, frozen once at the border into settings of our own."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from ..common.errors import SettingsError
from ..common.settings import Settings, parse_bytes

SPEC_DEFAULTS: Mapping[str, str] = {
    "spec_name": "HearthOffloadingSpec",
    "spec_module_path": "hearthfs.connector",
}
"""What vLLM's factory needs to find our spec; the connector adds it, the operator need not know."""

ENGINE_KEYS = frozenset(
    {
        "spec_name",
        "spec_module_path",
        "block_size",
        "blocks_per_chunk",
        "offload_prompt_only",
        "self_describing_kv_events",
    }
)
"""Keys of the same dict that vLLM itself reads."""

FOREIGN_KEYS: Mapping[str, str] = {
    "canonical_layout": "not supported; chunks are named by their exact layout. Remove it",
    "cpu_bytes_to_use": "belongs to vLLM's CPU tier, which this connector does not have. Remove it, or use HearthTier",
    "secondary_tiers": "belongs to vLLM's TieringOffloadingSpec. Remove it, or use HearthTier in OffloadingConnector",
    "store_threshold": "not supported; every chunk is stored when it is first seen. Remove it",
}
"""Keys that mean something to vLLM, but nothing here."""

Bytes = Annotated[int, pydantic.BeforeValidator(parse_bytes), pydantic.Field(gt=0)]
Seconds = Annotated[float, pydantic.Field(gt=0, le=600)]


class ConnectorSettings(Settings):
    """One engine's settings; every wait and every queue of the connector is bounded by one of them."""

    role: ClassVar[str] = "connector"

    root: str
    """Directory of all KV chunks: below a HearthFS mount, or anywhere with ``backend: plain``."""
    backend: Literal["hearthfs", "plain"] = "hearthfs"
    tenants: bool = False
    """Each cache salt has a directory of its own below the root."""
    weights_revision: str = ""
    """Stands in for the fingerprint that is read from the weight files."""

    load_when: Literal["faster", "always"] = "faster"
    """``faster``: a hit is loaded when that is expected to take less time than computing it."""
    min_load_tokens: Annotated[int, pydantic.Field(ge=0)] = 0
    """Hits below this are computed, whatever is expected."""

    lookup_timeout_s: Seconds = 0.5
    load_timeout_s: Seconds = 10.0
    """The longest that a load may take."""
    load_patience: Annotated[float, pydantic.Field(ge=1, le=1000)] = 3.0
    """A load may take this many times what computing the same tokens would take, once that is known; then it is
    given up and computed."""
    load_timeout_min_s: Seconds = 0.5
    """But at least this long."""
    store_timeout_s: Seconds = 30.0
    hit_ttl_s: Seconds = 2.0
    miss_ttl_s: Seconds = 0.25
    """Short: another engine may be storing the chunk right now."""
    failed_ttl_s: Seconds = 30.0
    """How long a chunk that failed to load counts as missing, unless it is stored again."""
    probe_interval_s: Seconds = 5.0
    """How often a cluster that did not answer is asked again; in between all lookups are misses."""
    breaker_failures: Annotated[int, pydantic.Field(ge=1, le=1000)] = 3
    """Batches of loads in a row that nobody answers, after which none is sent until a probe succeeds."""

    staging_bytes: Bytes = 256 << 20
    load_threads: Annotated[int, pydantic.Field(ge=1, le=64)] = 2
    store_threads: Annotated[int, pydantic.Field(ge=1, le=64)] = 1
    batch_chunks: Annotated[int, pydantic.Field(ge=1, le=1024)] = 8
    store_backlog_bytes: Bytes = 1 << 30
    """Stores that wait in front of the staging memory; beyond it they are dropped."""
    store_age_s: Seconds = 5.0
    """A store that could not start within this time is dropped."""
    flush_timeout_s: Seconds = 0.5
    """How long the engine waits for stores whose blocks it needs back; then they are dropped."""
    drain_timeout_s: Seconds = 3.0
    """How long a shutdown waits for stores that are under way."""


def read_extra_config(extra: Mapping[str, Any]) -> ConnectorSettings:
    """The settings in an engine's extra config. ``HEARTH_CONNECTOR_*`` variables stand in for keys that are not there.

    Raises:
        SettingsError: no root, a bad value, a key that nobody reads, settings that contradict each other. The text
            says what to write instead.
    """
    known = {*ConnectorSettings.model_fields, *ENGINE_KEYS}
    for key, value in extra.items():
        if key in FOREIGN_KEYS:
            if value:
                raise SettingsError(f"extra_config.{key}: {FOREIGN_KEYS[key]}")
        elif key not in known:
            raise SettingsError(_unknown_key(key, known))
    own = {key: value for key, value in extra.items() if key in ConnectorSettings.model_fields}
    if not own.get("root") and not os.environ.get("HEARTH_CONNECTOR_ROOT"):
        raise SettingsError("extra_config.root: missing; give the directory for KV chunks, such as /mnt/kvcache/kv")
    settings = ConnectorSettings.load(own)
    if not settings.root.startswith("/"):
        raise SettingsError(
            f"extra_config.root: {settings.root!r} is not an absolute path; write it as /{settings.root}"
        )
    if settings.load_timeout_min_s > settings.load_timeout_s:
        raise SettingsError(
            f"extra_config.load_timeout_min_s: {settings.load_timeout_min_s:g} is above load_timeout_s "
            f"({settings.load_timeout_s:g}); lower it, or raise load_timeout_s"
        )
    return settings


def check_memory(settings: ConnectorSettings, chunk_file_bytes: int) -> None:
    """
    Args:
        chunk_file_bytes: of the largest chunk of this engine.

    Raises:
        SettingsError: no chunk would fit.
    """
    least = 4 * chunk_file_bytes
    if settings.staging_bytes < least:
        raise SettingsError(
            f"extra_config.staging_bytes: {settings.staging_bytes} is less than two chunks each way of this model "
            f"({chunk_file_bytes} bytes each); set at least {least}, or a smaller block_size"
        )
    if settings.store_backlog_bytes < chunk_file_bytes:
        raise SettingsError(
            f"extra_config.store_backlog_bytes: {settings.store_backlog_bytes} is less than a chunk of this model "
            f"({chunk_file_bytes} bytes), so that nothing would be stored; set at least {8 * chunk_file_bytes}"
        )


def _unknown_key(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return f"extra_config.{key}: unknown key; {hint}"
