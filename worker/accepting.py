"""Accepting connections, until the listener is closed on purpose."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator

from ..common.telemetry import get_logger

FULL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
REST_S = 0.1

log = get_logger("hearthfs.worker.accept")


def peers(listener: socket.socket, stopping: Callable[[], bool]) -> Iterator[socket.socket]:
    """Each new connection. Goes on while the descriptor table is full; ends when the listener does not work."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if stopping():
                return
            log.error("accept-failed", error=str(error))
            if error.errno in FULL:
                threading.Event().wait(REST_S)  # do not spin
            elif error.errno != errno.ECONNABORTED:
                return
            continue
        yield peer
