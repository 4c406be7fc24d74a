"""gRPC channels to workers, one per address, at most so many."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from ..common.data_stream import CHANNEL_OPTIONS
from ..common.errors import NotSupported, Unavailable

OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


def open_channel(address: str) -> grpc.Channel:
    """Without credentials."""
    return grpc.insecure_channel(address, options=OPTIONS)


def check_process(pid: int) -> None:
    """gRPC's threads do not exist in a forked child: a call there would wait for its deadline, every time.

    Raises:
        NotSupported: this is not the process that made the client.
    """
    if os.getpid() != pid:
        raise NotSupported(
            f"this client belongs to process {pid} and was carried into process {os.getpid()} by fork; "
            "make a new Client in the child"
        )


@dataclass
class _Slot:
    channel: grpc.Channel
    users: int = 0


class Channels:
    """Thread-safe. A channel in use is never closed under its users; beyond ``limit`` the one unused longest goes."""

    def __init__(self, limit: int, connect: Callable[[str], grpc.Channel] = open_channel) -> None:
        self._limit = limit
        self._connect = connect
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._closed = False
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._slots)

    @contextmanager
    def use(self, address: str) -> Iterator[grpc.Channel]:
        """The channel to ``address`` (host:port), made when there is none.

        Raises:
            Unavailable: the client is closed.
        """
        check_process(self._pid)
        with self._lock:
            if self._closed:
                raise Unavailable("the client is closed")
            slot = self._slots.get(address)
            if slot is None:
                slot = self._slots[address] = _Slot(self._connect(address))
            self._slots.move_to_end(address)
            slot.users += 1
        try:
            yield slot.channel
        finally:
            with self._lock:
                slot.users -= 1
                idle = self._surplus()
            for channel in idle:
                channel.close()

    def _surplus(self) -> list[grpc.Channel]:
        surplus = len(self._slots) if self._closed else len(self._slots) - self._limit
        unused = [address for address, slot in self._slots.items() if not slot.users][: max(0, surplus)]
        return [self._slots.pop(address).channel for address in unused]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = self._surplus()
        for channel in idle:
            channel.close()
