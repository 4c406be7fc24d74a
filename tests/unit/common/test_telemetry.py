import logging
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


def test_importing_it_leaves_the_hosts_logging_alone():
    assert telemetry.TRACE_KEY
    assert not any(type(handler).__module__.startswith("structlog") for handler in logging.getLogger().handlers)
