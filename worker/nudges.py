"""Listens for the master's word that a heartbeat would bring something. Without it orders come up to a second later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

from ..proto import master_pb2, master_pb2_grpc

STREAM_S = 120.0
"""A stream that was cut without a word is replaced after so long."""
RETRY_S = 1.0
STOP_S = 5.0
OLD_MASTER_RETRY_S = 30.0


class NudgeListener:
    """
    Args:
        request: names the worker as it is registered now; None: it is not.
        nudge: called for each word.
    """

    def __init__(
        self,
        stub: master_pb2_grpc.MasterStub,
        request: Callable[[], master_pb2.NudgesRequest | None],
        nudge: Callable[[], None],
    ) -> None:
        self._stub = stub
        self._request = request
        self._nudge = nudge
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="nudges", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._guard:
            self._stopping.set()
            call = self._call
        if call is not None:
            call.cancel()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            pause_s = RETRY_S
            request = self._request()
            if request is None:
                continue
            with self._guard:
                if self._stopping.is_set():
                    return
                try:
                    self._call = self._stub.Nudges(request, timeout=STREAM_S)
                except ValueError:  # the channel is closed
                    return
            try:
                for _ in self._call:
                    self._nudge()
            except grpc.RpcError as error:
                code: Any = error
                if code.code() is grpc.StatusCode.UNIMPLEMENTED:
                    pause_s = OLD_MASTER_RETRY_S
                elif code.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    pause_s = 0.0
