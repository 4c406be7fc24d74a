import os
import threading
from typing import Any

import pytest
from hearthfs.client.channels import Channels, check_process
from hearthfs.common.errors import NotSupported, Unavailable


class FakeChannel:
    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Connector:
    def __init__(self) -> None:
        self.made: list[FakeChannel] = []

    def __call__(self, address: str) -> Any:
        self.made.append(FakeChannel(address))
        return self.made[-1]


def test_one_channel_for_each_address() -> None:
    connect = Connector()
    channels = Channels(4, connect)
    for _ in range(3):
        with channels.use("a"), channels.use("b"):
            pass
    assert [channel.address for channel in connect.made] == ["a", "b"]


def test_the_one_unused_longest_goes_first() -> None:
    connect = Connector()
    channels = Channels(2, connect)
    for address in ("a", "b", "a", "c"):
        with channels.use(address):
            pass
    assert [channel.address for channel in connect.made if channel.closed] == ["b"]
    assert len(channels) == 2


def test_a_channel_in_use_is_not_closed() -> None:
    connect = Connector()
    channels = Channels(1, connect)
    with channels.use("a") as first:
        with channels.use("b"):
            assert not first.closed  # type: ignore[attr-defined]
        channels.close()
        assert not first.closed  # type: ignore[attr-defined]
    assert all(channel.closed for channel in connect.made)
    with pytest.raises(Unavailable, match="closed"), channels.use("a"):
        pass


def test_many_threads_never_use_a_closed_channel() -> None:
    channels = Channels(2, Connector())
    problems = []

    def work(start: int) -> None:
        for step in range(200):
            with channels.use(f"h{(start + step) % 5}") as channel:
                if channel.closed:  # type: ignore[attr-defined]
                    problems.append(step)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(channels) == 2


def test_another_process_is_told_what_to_do() -> None:
    check_process(os.getpid())
    with pytest.raises(NotSupported, match="new Client in the child"):
        check_process(os.getpid() + 1)
