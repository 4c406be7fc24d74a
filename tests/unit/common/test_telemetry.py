import json
import logging
import subprocess
import sys
import urllib.error
import urllib.request

import prometheus_client
import pytest
from hearthfs.common import telemetry
from hearthfs.common.telemetry import TelemetryServer, current_trace_id, new_trace_id, trace


class Probe:
    def __init__(self) -> None:
        self.answer = (True, "serving")


@pytest.fixture
def probe():
    return Probe()


@pytest.fixture
def server(probe):
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("hearth_test_commits_total", "commits", registry=registry).inc(3)
    made = TelemetryServer("127.0.0.1:0", lambda: probe.answer, registry)
    yield made
    made.close()


def get(server: TelemetryServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_prometheus_text(server):
    status, text = get(server, "/metrics")
    assert status == 200
    assert "hearth_test_commits_total 3.0" in text


def test_health_follows_the_daemon(server, probe):
    assert get(server, "/healthz") == (200, "serving\n")
    probe.answer = (False, "the master does not answer")
    assert get(server, "/healthz") == (503, "the master does not answer\n")


def test_anything_else_is_not_there(server):
    status, text = get(server, "/")
    assert status == 404
    assert "/metrics" in text


def test_a_port_in_use_is_an_error(server):
    with pytest.raises(OSError, match="in use"):
        TelemetryServer(f"127.0.0.1:{server.port}", lambda: (True, ""))


def test_close_frees_the_port(probe):
    first = TelemetryServer("127.0.0.1:0", lambda: probe.answer)
    first.close()
    second = TelemetryServer(f"127.0.0.1:{first.port}", lambda: probe.answer)
    second.close()


def test_a_trace_is_bound_inside_and_gone_outside():
    with trace("abc") as outer:
        assert outer == current_trace_id() == "abc"
        with trace() as inner:
            assert current_trace_id() == inner != "abc"
        assert current_trace_id() == "abc"
    assert current_trace_id() != "abc"


def test_trace_ids_differ():
    assert new_trace_id() != new_trace_id()


LOGGING = """
import logging
from hearthfs.common.telemetry import configure_logging, get_logger, trace
configure_logging("info", "{fmt}")
with trace("abc"):
    get_logger("hearthfs.test").warning("disk-full", disk="/d1", free_bytes=0)
logging.getLogger("grpc").error("of a library")
get_logger("hearthfs.test").debug("not shown")
"""


def run(fmt: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOGGING.format(fmt=fmt)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines_carry_event_values_trace_and_libraries_too():
    ours, theirs = map(json.loads, run("json"))
    assert ours["event"] == "disk-full"
    assert (ours["disk"], ours["free_bytes"], ours["trace"], ours["level"]) == ("/d1", 0, "abc", "warning")
    assert ours["timestamp"].endswith("Z")
    assert theirs["event"] == "of a library"


def test_console_lines_have_no_colours_in_a_pipe():
    ours, _ = run("console")
    assert "disk-full" in ours
    assert "disk=/d1" in ours
    assert "\x1b" not in ours


BAD_MESSAGE = """
import logging
from google.protobuf.message import DecodeError
from hearthfs.common.telemetry import configure_logging
configure_logging("info", "console")
for error in (DecodeError("corrupt"), ValueError("a bug of ours")):
    try:
        raise error
    except Exception:
        logging.getLogger("grpc._server").exception("Exception calling %s", "it")
"""


def test_only_bugs_of_ours_are_logged_with_a_trace_back():
    done = subprocess.run(
        [sys.executable, "-P", "-c", BAD_MESSAGE], capture_output=True, text=True, timeout=30, check=True
    )
    first, rest = done.stderr.split("\n", 1)
    assert "warning" in first
    assert "Exception calling it: corrupt" in first
    assert rest.count("Traceback") == 1
    assert "a bug of ours" in rest


def test_importing_it_leaves_the_hosts_logging_alone():
    assert telemetry.TRACE_KEY
    assert not any(type(handler).__module__.startswith("structlog") for handler in logging.getLogger().handlers)
