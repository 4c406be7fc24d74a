"""What a daemon's log looks like: logging is set up for a whole process, so each test has one."""

import json
import subprocess
import sys

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
