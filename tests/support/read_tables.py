"""Reads every row of a master's tables, in a process of its own: pages that are not there end a process.

    python -m hearthfs.tests.support.read_tables DATA

Prints one JSON object: ``{"rows": n, "digest": hex}`` or ``{"refused": message}``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import xxhash
from hearthfs.common.errors import HearthError
from hearthfs.master.store import LmdbStore
from hearthfs.master.tables import TABLES, rows


def read(data: Path) -> dict[str, object]:
    """Raises: HearthError."""
    store, digest, count = LmdbStore(data), xxhash.xxh3_64(), 0
    try:
        with store.snapshot() as reader:
            for table in TABLES:
                for key, value in rows(reader, table):
                    digest.update(b"%s\0%d\0%s%s" % (table.encode(), len(key), key, value))
                    count += 1
    finally:
        store.close()
    return {"rows": count, "digest": digest.hexdigest()}


if __name__ == "__main__":
    try:
        print(json.dumps(read(Path(sys.argv[1]))))
    except HearthError as error:
        print(json.dumps({"refused": str(error)}))
