import os
import socket
import sys
from pathlib import Path

import pytest
import trio
from hearthfs.fuse_client import relay_link
from hearthfs.fuse_client.relay import channel
from hearthfs.fuse_client.relay_link import RelayLink
from hearthfs.fuse_client.settings import MountSettings


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: commands.append(command))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(channel, "pair", lambda: ())
    monkeypatch.delenv(channel.CHANNEL_VARIABLE, raising=False)
    return commands


def settings(relay: str, passthrough: str = "auto", worker: str = "/run/worker.sock") -> MountSettings:
    chosen = {"relay": relay, "passthrough": passthrough, "worker_socket": worker}
    return MountSettings(mountpoint=Path("/mnt"), **chosen)  # type: ignore[arg-type]


def kernel(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:2], release, *uname[3:])))


def test_the_relay_runs_the_same_command_behind_it(executed: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, "6.18.1-generic")
    relay_link.enter(settings("auto"))
    assert executed == [[sys.executable, "-P", "-m", "hearthfs.fuse_client.relay", *sys.orig_argv]]


@pytest.mark.parametrize("why", ["off", "no worker", "behind one", "user", "old kernel", "buffers"])
def test_no_relay(executed: list[list[str]], monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    def refused() -> tuple[socket.socket, socket.socket]:
        raise PermissionError(1, "Operation not permitted")

    kernel(monkeypatch, "6.8.0" if why == "old kernel" else "6.18.1")
    if why == "behind one":
        monkeypatch.setenv(channel.CHANNEL_VARIABLE, "7")
    elif why == "user":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    elif why == "buffers":
        monkeypatch.setattr(channel, "pair", refused)
    relay = "off" if why == "off" else "auto"
    relay_link.enter(settings(relay, worker="" if why == "no worker" else "/run/worker.sock"))
    assert executed == []


def test_an_old_kernel_may_have_a_relay_for_itself(executed: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, "5.15.0")
    relay_link.enter(settings("auto", "off"))
    assert len(executed) == 1


def test_what_the_relay_says_is_heard() -> None:
    ours, relay = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def main() -> None:
        link = RelayLink(near.detach(), ours)
        with relay, far:
            link.hand_over(far.fileno(), max_background=5, passthrough=True)
            wanted, device = channel.receive_control(relay)
            assert wanted == {"max_background": 5, "passthrough": True}
            assert device is not None
            os.close(device)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.listen)
                channel.send_control(relay, {"state": "serving", "passthrough": True})
                await link.run()
                assert link.passthrough
                assert link.offer(9, 0, writes=False)
                relay.close()
            assert link.ended.is_set()
            assert link.lost
        os.close(link.number)
        link.close()

    trio.run(main)


def test_without_a_relay_there_is_no_link() -> None:
    assert RelayLink.from_environment({}) is None
