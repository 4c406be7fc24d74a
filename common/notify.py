"""Readiness, as systemd understands it (sd_notify(3)): one datagram to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Sends e.g. ``READY=1`` or ``STOPPING=1``; does nothing when nobody asked to be told."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return  # whoever asked is gone
