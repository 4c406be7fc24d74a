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

Bytes = Annotated[int, pydantic.BeforeValidator(parse_bytes), pydantic.Field(gt=0)]
Seconds = Annotated[float, pydantic.Field(gt=0, le=600)]


class ConnectorSettings(Settings):
    """One engine's settings; every wait and every queue of the connector is bounded by one of them."""

    role: ClassVar[str] = "connector"

    root: str
    """Directory of all KV chunks: below a HearthFS mount, or anywhere with ``backend: plain``."""
    backend: Literal["hearthfs", "plain"] = "hearthfs"
    weights_revision: str = ""
    """Stands in for the fingerprint that is read from the weight files."""

    lookup_timeout_s: Seconds = 0.5
    load_timeout_s: Seconds = 10.0
    store_timeout_s: Seconds = 30.0
    hit_ttl_s: Seconds = 2.0
    miss_ttl_s: Seconds = 0.25
    """Short: another engine may be storing the chunk right now."""
    failed_ttl_s: Seconds = 30.0
    """How long a chunk that failed to load counts as missing, unless it is stored again."""
    probe_interval_s: Seconds = 5.0
    """How often a cluster that did not answer is asked again; in between all lookups are misses."""

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


def read_extra_config(extra: Mapping[str, Any]) -> tuple[ConnectorSettings, list[str]]:
    """The settings in an engine's extra config, and one warning per key that nobody reads.

    ``HEARTH_CONNECTOR_*`` variables stand in for keys that are not there.

    Raises:
        SettingsError: no root, a bad value, or a vLLM option that this connector cannot honour.
    """
    if extra.get("canonical_layout"):
        raise SettingsError("extra_config.canonical_layout: not supported; chunks are named by their exact layout")
    own = {key: value for key, value in extra.items() if key in ConnectorSettings.model_fields}
    if not own.get("root") and not os.environ.get("HEARTH_CONNECTOR_ROOT"):
        raise SettingsError("extra_config.root: missing; give the directory for KV chunks, such as /mnt/kvcache/kv")
    known = {*ConnectorSettings.model_fields, *ENGINE_KEYS}
    warnings = [_unknown_key(key, known) for key in extra if key not in known]
    settings = ConnectorSettings.load(own)
    if not settings.root.startswith("/"):
        raise SettingsError(f"extra_config.root: {settings.root!r} is not an absolute path")
    return settings, warnings


def _unknown_key(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return f"extra_config.{key}: unknown key, ignored; {hint}"
