"""Channels to daemons of a test, with the credentials of this run."""

from __future__ import annotations

import grpc
from hearthfs.client.settings import ClientSettings
from hearthfs.common import credentials
from hearthfs.common.data_stream import CHANNEL_OPTIONS


def channel_to(address: str, options: credentials.Options = CHANNEL_OPTIONS) -> grpc.Channel:
    """To a master or worker at host:port that has no certificates."""
    return credentials.load(ClientSettings()).channel(address, "master", options)
