"""LMCache, installed beside the environment by ``make setup``: it asks for other versions of what vLLM brings."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def environment(prefix: Path = Path(sys.prefix)) -> dict[str, str] | None:
    """Variables for an agent of kind ``lmcache``; None where LMCache is not installed."""
    place = prefix / "lmcache"
    if not (place / "lmcache").is_dir():
        return None
    paths = filter(None, [os.fspath(place), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(paths), "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}
