"""Examples in docstrings are right."""

import doctest
import importlib
from pathlib import Path

import hearthfs
import pytest

ROOT = Path(hearthfs.__file__).parent
PARTS = ("bench", "cli", "client", "common", "connector", "fuse_client", "master", "worker")
MODULES = [
    f"hearthfs.{part}.{path.stem}"
    for part in PARTS
    for path in sorted((ROOT / part).glob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    assert MODULES
