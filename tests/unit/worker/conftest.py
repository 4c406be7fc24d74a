from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hearthfs.tests.unit.worker.parts import StoreMaker
from hearthfs.worker.block_store import BlockStore


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[StoreMaker]:
    maker = StoreMaker(tmp_path)
    yield maker
    for store in maker.open:
        store.close()


@pytest.fixture
def store(make_store: StoreMaker) -> BlockStore:
    return make_store()
