"""What tests of faults share: how many rounds, which seed, and what has to hold after every fault."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hearthfs.tests.support.cluster import Cluster

FSCK_S = 30.0
T = TypeVar("T")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    chosen = request.config.getoption("--seed")
    if chosen is None:
        chosen = random.SystemRandom().randrange(1 << 32)
    print(f"repeat with --seed {chosen}")  # shown with a failure
    return int(chosen)


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))


def check_sound(cluster: Cluster, *, warnings: bool = False) -> None:
    """``warnings``: those are allowed, for a worker is dead or a block was destroyed."""
    deadline = time.monotonic() + FSCK_S
    while True:  # what the fault left behind is cleaned up by the next reports of blocks
        found = [each for each in cluster.fsck() if not (warnings and each["severity"] == "warning")]
        if not found:
            break
        assert time.monotonic() < deadline, f"fsck: {found}"
    if not warnings:
        done = cluster.hearth("fsck", "--repair")
        assert (done.returncode, done.stdout) == (0, "clean\n"), done.stdout + done.stderr
    check_logs(cluster)


def check_logs(cluster: Cluster) -> None:
    for log in sorted((cluster.directory / "log").glob("*.log")):
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, f"{log.name}:\n{text[-8000:]}"


def wait_for(what: str, check: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Polls until ``check`` gives something true."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.01)


def block_files(cluster: Cluster, node: int) -> list[Path]:
    """Committed block files of a worker."""
    return sorted(path for path in (cluster.disk(node) / "blocks").glob("??/*") if path.is_file())


def outcome(do: Callable[[], object]) -> str:
    """ "ok", or the name of the errno."""
    try:
        do()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def timed(do: Callable[[], T]) -> tuple[T, float]:
    """What it returned, and the seconds it took."""
    begin = time.monotonic()
    result = do()
    return result, time.monotonic() - begin
