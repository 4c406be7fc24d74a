"""What all tests share: seeds that a failure can be repeated with, hypothesis profiles, the leak check, clusters."""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from hearthfs.common.credentials import TOKEN_FILE_VARIABLE
from hearthfs.tests.support import cluster as cluster_support
from hearthfs.tests.support.cluster import Cluster

SEED_VARIABLE = "HEARTH_TEST_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))

# Small, so that unit tests take seconds; the bigger ones run in CI.
hypothesis.settings.register_profile("dev", max_examples=10, stateful_step_count=20, deadline=None)
hypothesis.settings.register_profile("pr", max_examples=100, stateful_step_count=50, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=1000, stateful_step_count=200, deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
hypothesis.settings.load_profile(PROFILE)

# What gRPC keeps for the life of the process once it was used.
KEPT_FDS = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]", "anon_inode:[timerfd]")
LEAK_GRACE_S = 5.0
LEAK_ROUND_S = 0.002
COLLECT_EVERY_ROUNDS = 5  # most of what is slow to end needs time, not a collection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=2, help="rounds of each test that kills daemons (20 for the record)")
    parser.addoption("--full", action="store_true", help="also what takes minutes by itself (make test-full)")
    parser.addoption("--seed", type=int, default=None, help="seed of tests/faults; default: another one each time")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaks(reason): may leave file descriptors or threads behind")
    # One token for all daemons and clients of this run, not that of the user who runs it.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        directory = tempfile.mkdtemp(prefix="hearth-token-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        os.environ[TOKEN_FILE_VARIABLE] = f"{directory}/token"
    os.environ[SEED_VARIABLE] = str(SEED)  # workers of pytest-xdist have the seed that the header names
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported stays: the leak check's collections need not walk it (0.1 s each otherwise)


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed")
    return f"seed: {SEED_VARIABLE}={SEED}, --hypothesis-seed={seed}; hypothesis profile {PROFILE}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(SEED)
    if item.get_closest_marker("full") and not item.config.getoption("--full"):
        pytest.skip("takes minutes by itself: make test-full")
    if item.get_closest_marker("mount") and not (os.geteuid() == 0 and Path("/dev/fuse").exists()):
        pytest.fail("this test mounts: run it as root on a kernel with FUSE (/dev/fuse; modprobe fuse)", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # a generator returns what its hook does
    report = yield
    if report.failed and call.when in ("setup", "call"):
        for cluster in cluster_support.OPEN:
            report.sections.append(("Logs of the cluster", cluster.logs()))
    return report


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """``make_cluster(workers=2, mounts=2, …)``: a running cluster that ends with the test."""
    with contextlib.ExitStack() as stack:
        count = 0

        def make(**options: object) -> Cluster:
            nonlocal count
            count += 1
            return stack.enter_context(Cluster(tmp_path / f"cluster{count}", **options))  # type: ignore[arg-type]

        yield make


def _open_fds() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: target for fd, target in found.items() if target not in KEPT_FDS and not target.endswith("/fd")}


def _threads() -> set[threading.Thread]:
    """Without those that trio keeps for the next 10 s, whoever started them."""
    return {
        thread for thread in threading.enumerate() if thread.is_alive() and not thread.name.startswith("Trio thread")
    }


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test after which more file descriptors are open, or more threads run, than before."""
    if request.node.get_closest_marker("leaks"):
        yield
        return
    fds, threads = _open_fds(), _threads()
    yield
    deadline = time.monotonic() + LEAK_GRACE_S
    for round_ in itertools.count():  # closing is asynchronous in gRPC: give what is about to end its time
        now = _open_fds()
        leaked, new_threads = max(0, len(now) - len(fds)), _threads() - threads
        if not leaked and not new_threads:
            return
        if time.monotonic() > deadline:
            break
        if round_ % COLLECT_EVERY_ROUNDS == COLLECT_EVERY_ROUNDS - 1:
            gc.collect()
        time.sleep(LEAK_ROUND_S)
    if leaked:
        new_fds = {fd: target for fd, target in now.items() if fds.get(fd) != target}
        pytest.fail(f"{leaked} file descriptors leaked; new ones: {new_fds}")
    pytest.fail(f"threads leaked: {sorted(thread.name for thread in new_threads)}")
