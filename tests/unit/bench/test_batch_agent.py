"""An agent is a real process here, as it has no other interface; raw files need neither a cluster nor a rival."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hearthfs.bench.agents import Agent, AgentError, SharedMemory

SIZE, COUNT = 8192, 3


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    shared = SharedMemory(SIZE * COUNT)
    yield shared
    shared.close()


def test_what_was_put_is_got(tmp_path: Path, memory: SharedMemory) -> None:
    contents = memory.contents(SIZE, COUNT)
    with Agent("raw", {"directory": str(tmp_path / "raw"), "checksum": True}, memory, tmp_path / "log") as agent:
        assert agent.call("put", "a", COUNT, SIZE, threads=2)["seconds"] > 0
        assert memory.wrong(contents) == [0, 1, 2]
        agent.call("get", "a", COUNT, SIZE, threads=2)
        assert memory.wrong(contents) == []
        memory.forget(SIZE)
        assert memory.wrong(contents) == [0]
        assert agent.call("exists", "a", COUNT)["found"] == COUNT
        agent.call("remove", "a", COUNT)
        with pytest.raises(AgentError, match="FileNotFoundError"):
            agent.call("get", "a", COUNT, SIZE)


def test_a_contender_that_cannot_start_says_why(tmp_path: Path, memory: SharedMemory) -> None:
    with pytest.raises(AgentError, match="no kind 'tape'"):
        Agent("tape", {}, memory, tmp_path / "log")
