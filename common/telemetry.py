"""What an operator sees from outside: structured logs, metrics, health.

One line per event, ``event key=value``, or JSON. The trace id of a request travels in gRPC metadata
(``hearth-trace-id``) from mount or SDK over the master to the worker, and stands in each line logged for it.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import prometheus_client
import structlog
from google.protobuf.message import DecodeError

TRACE_KEY = "hearth-trace-id"

LogFormat = Literal["console", "json"]


_GRPC_LOGGERS = ("grpc._common", "grpc._server", "grpc._cython.cygrpc")


def _without_traces_of_bad_messages(record: logging.LogRecord) -> bool:
    """A trace back is for a bug of ours, not for bytes of a peer that are no message: one line says that."""
    if record.exc_info and isinstance(record.exc_info[1], DecodeError):
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]}".replace("\n", " "), ()
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def configure_logging(level: str = "info", fmt: LogFormat = "console") -> None:
    """Sends structlog and the standard library's loggers to stderr in one format. For daemons and the CLI only: a
    library must not touch its host's logging."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    for name in _GRPC_LOGGERS:
        logging.getLogger(name).addFilter(_without_traces_of_bad_messages)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> Any:
    """A structlog logger: ``log.warning("event-name", key=value)``."""
    return structlog.stdlib.get_logger(name)


def new_trace_id() -> str:
    return secrets.token_hex(8)


@contextmanager
def trace(trace_id: str | None = None) -> Iterator[str]:
    """Binds a trace id to all lines logged inside."""
    trace_id = trace_id or new_trace_id()
    with structlog.contextvars.bound_contextvars(trace=trace_id):
        yield trace_id


def current_trace_id() -> str:
    """The id bound by ``trace``, or a new one."""
    return str(structlog.contextvars.get_contextvars().get("trace") or new_trace_id())


Health = Callable[[], tuple[bool, str]]
"""Whether the daemon does its work, and one line that says why not."""


class TelemetryServer:
    """``/metrics`` (Prometheus text) and ``/healthz`` (200 or 503) on one port.

    Raises:
        OSError: the address is in use or not ours.
    """

    def __init__(self, listen: str, health: Health, registry: Any = prometheus_client.REGISTRY) -> None:
        host, _, port = listen.rpartition(":")

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._reply(200, prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(registry))
                elif self.path == "/healthz":
                    good, text = health()
                    self._reply(200 if good else 503, "text/plain; charset=utf-8", f"{text}\n".encode())
                else:
                    self._reply(404, "text/plain; charset=utf-8", b"try /metrics or /healthz\n")

            def _reply(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._serve, name="telemetry", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)  # how long `close` waits

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
