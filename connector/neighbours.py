"""Chunks beside ours that we cannot use, and why: what an operator needs who expected hits and sees none.

Each layout directory has a manifest that says what its digest stands for. Those of the same model that differ from ours
in a few fields only are told, with these fields: another hash seed, other weights under the same name, another
tensor-parallel size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

MAX_MANIFESTS = 64
MAX_TOLD = 5
MAX_FIELDS = 4
"""An engine that differs in more has little to do with this one."""

_ADVICE = {
    "hash_seed": "start all engines with the same PYTHONHASHSEED, or all without",
    "hash_algorithm": "start all engines with the same --prefix-caching-hash-algo",
    "blocks_per_chunk": "set the same block_size in kv_connector_extra_config",
    "weights": "the files of the weights differ, or weights_revision does",
}


def explain(mine: bytes, others: Iterable[bytes]) -> list[str]:
    """One line for each neighbour worth telling, nearest first. What is no manifest is left out."""
    ours = _fields(mine)
    found = []
    for other in others:
        theirs = _fields(other)
        if not theirs or theirs.get("model_name") != ours.get("model_name"):
            continue
        different = sorted(
            key for key in {*ours, *theirs} - {"model", "model_name"} if ours.get(key) != theirs.get(key)
        )
        if 0 < len(different) <= MAX_FIELDS:
            found.append((len(different), _line(different, ours, theirs)))
    return [line for _, line in sorted(found)[:MAX_TOLD]]


def _line(different: list[str], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    what = ", ".join(f"{key} {_short(theirs.get(key))} (here {_short(ours.get(key))})" for key in different)
    advice = "; ".join(_ADVICE[key] for key in different if key in _ADVICE)
    return f"{what}" + (f": {advice}" if advice else "")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields(manifest: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(manifest)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
