"""The vLLM connector: KV chunks of an engine as files of HearthFS.

``--kv-transfer-config`` names it: ``kv_connector: HearthConnector``, ``kv_connector_module_path: hearthfs.connector``.
Importing this package needs no vLLM; only the classes that subclass vLLM's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import HearthConnector as HearthConnector
    from .offload_spec import HearthOffloadingSpec as HearthOffloadingSpec
    from .tier import HearthTier as HearthTier

_HOMES = {"HearthConnector": "connector", "HearthOffloadingSpec": "offload_spec", "HearthTier": "tier"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
