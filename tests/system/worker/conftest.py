"""Parts of a worker with their ports and sockets, and whole workers, in this process, over a master that is a few lines
long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hearthfs.tests.unit.worker.parts import FakeMaster, StoreMaker, WorkerMaker
from hearthfs.worker.block_store import BlockStore
from hearthfs.worker.main import Worker
from hearthfs.worker.settings import WorkerSettings


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[StoreMaker]:
    maker = StoreMaker(tmp_path)
    yield maker
    for store in maker.open:
        store.close()


@pytest.fixture
def store(make_store: StoreMaker) -> BlockStore:
    return make_store()


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    yield fake
    fake.stop()


@pytest.fixture
def make_worker(tmp_path: Path, master: FakeMaster) -> Iterator[WorkerMaker]:
    started: list[Worker] = []

    def make(name: str = "w1", **more: Any) -> Worker:
        values = {
            "master": master.address,
            "disks": (str(tmp_path / name),),
            "listen": "127.0.0.1:0",
            "node_id": name,
            "free_floor": "0",
            "start_timeout_s": 0.5,
            "scrub_cycle_s": 0,
            **more,
        }
        worker = Worker(WorkerSettings(**values))
        worker.start()
        started.append(worker)
        return worker

    yield make
    for worker in started:
        worker.stop()
