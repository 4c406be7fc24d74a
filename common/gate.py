"""The gate of every gRPC server: who may call what. Nothing passes that does not stand in the table.

A handler learns who calls it by ``caller()``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio

from .credentials import Caller, Credentials
from .errors import HearthError, NotPermitted, to_trailing_metadata
from .telemetry import get_logger

EVERYBODY = frozenset({"admin", "node", "user"})
NODES = frozenset({"admin", "node"})
OPERATORS = frozenset({"admin"})

RIGHTS: Mapping[str, frozenset[str]] = {
    f"/hearthfs.v1.{name}": roles
    for roles, names in {
        EVERYBODY: (
            "Master/Register", "Master/Lookup", "Master/Resolve", "Master/Getattr", "Master/Readdir",
            "Master/GetXattrs", "Master/Statfs", "Master/LookupMany", "Master/Mutate", "Master/Status",
            "Master/SignBlocks", "Worker/Control", "Worker/Stats", "Data/Read", "Data/Write",
        ),
        NODES: (
            "Master/Watch", "Master/RegisterWorker", "Master/Heartbeat", "Master/ReportBlocks", "Master/Nudges",
        ),
        OPERATORS: (
            "Master/Dump", "Master/DrainWorker", "Master/Rebalance", "Master/Recheck", "Master/Backup",
            "Master/Journal", "Worker/ListBlocks",
        ),
    }.items()
    for name in names
}  # fmt: skip
"""Roles that may call a method. A method that does not stand here is for operators."""

NOBODY = Caller("nobody", "", 65_534, 65_534)
LOG_EVERY_S = 10.0
LOGGED_MAX = 1000
_caller: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
log = get_logger("hearthfs.gate")


def caller() -> Caller:
    """Who makes the call that is being handled; ``NOBODY``, who may do nothing, outside of one."""
    return _caller.get()


class Refusals:
    """Counts every call that was refused, and logs it: of the same caller and method one line in ``LOG_EVERY_S``, so
    that nobody fills the log. ``count`` gets the kind of the error. Thread-safe enough: a line more does no harm."""

    def __init__(self, count: Callable[[str], None], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._monotonic_s = monotonic_s
        self._logged_s: dict[tuple[str, str], float] = {}

    def note(self, error: HearthError, method: str, caller_name: str, peer: str) -> None:
        kind, now_s = type(error).__name__, self._monotonic_s()
        self._count(kind)
        key = (method, caller_name)
        if now_s - self._logged_s.get(key, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        if len(self._logged_s) >= LOGGED_MAX:
            self._logged_s.clear()
        self._logged_s[key] = now_s
        log.warning("call-refused", method=method, caller=caller_name, peer=peer, error=kind, reason=str(error))


def admit(credentials: Credentials, refusals: Refusals, method: str, context: Any) -> Caller:
    """Raises: Unauthenticated, NotPermitted."""
    name = ""
    try:
        found = credentials.caller(method, context)
        name = found.name
        if found.role not in RIGHTS.get(method, OPERATORS):
            raise NotPermitted(f"{method} is not for {found.role} certificates")
    except HearthError as error:
        refusals.note(error, method, name, context.peer())
        raise
    return found


class Gate(grpc.ServerInterceptor):
    """For servers with threads."""

    def __init__(self, credentials: Credentials, count: Callable[[str], None] = lambda _: None) -> None:
        self._credentials = credentials
        self._refusals = Refusals(count)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

            def stream(request: Any, context: Any) -> Iterator[Any]:
                _caller.set(self._admit(method, context))
                try:
                    yield from inner(request, context)
                finally:
                    _caller.set(NOBODY)

            if handler.request_streaming:
                return grpc.stream_stream_rpc_method_handler(stream, *coders)
            return grpc.unary_stream_rpc_method_handler(stream, *coders)
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

        def call(request: Any, context: Any) -> Any:
            _caller.set(self._admit(method, context))
            try:
                return inner(request, context)
            finally:
                _caller.set(NOBODY)

        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(call, *coders)
        return grpc.unary_unary_rpc_method_handler(call, *coders)

    def _admit(self, method: str, context: Any) -> Caller:
        try:
            return admit(self._credentials, self._refusals, method, context)
        except HearthError as error:
            context.set_trailing_metadata(to_trailing_metadata(error))
            context.abort(error.code, str(error))
            raise


class AsyncGate(grpc.aio.ServerInterceptor):
    """For asyncio servers whose handlers are coroutines, streams included (``context.read``, ``context.write``)."""

    def __init__(self, credentials: Credentials, count: Callable[[str], None] = lambda _: None) -> None:
        self._credentials = credentials
        self._refusals = Refusals(count)
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        guarded = self._handlers.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            guarded = self._handlers[method] = self._guard(method, handler)
        return guarded

    def _guard(self, method: str, handler: Any) -> Any:
        kinds = {
            (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
            (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
            (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
            (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
        }
        name, make = kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
        inner = getattr(handler, name)

        async def call(request: Any, context: Any) -> Any:
            try:
                _caller.set(admit(self._credentials, self._refusals, method, context))
            except HearthError as error:
                await context.abort(error.code, str(error), to_trailing_metadata(error))
            return await inner(request, context)  # each call has a task, and so a context, of its own

        return make(call, handler.request_deserializer, handler.response_serializer)
