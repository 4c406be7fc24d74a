from pathlib import Path
from typing import ClassVar

import pytest
from hearthfs.common.errors import SettingsError
from hearthfs.common.settings import ROLES, Settings, parse_bytes
from hypothesis import given
from hypothesis import strategies as st


class Example(Settings):
    role: ClassVar[str] = "worker"

    listen: str = "127.0.0.1:7071"
    disks: tuple[str, ...] = ()
    heartbeat_s: float = 1.0
    allow_other: bool = False


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "hearth.toml"
        path.write_text(text)
        return path

    return write


def test_defaults_when_nothing_is_said():
    assert Example.load({}, {"HEARTH_CONFIG": ""}) == Example()


def test_a_flag_beats_the_environment_beats_the_file(file):
    path = file('[worker]\nlisten = "file:1"\nheartbeat_s = 2\nallow_other = true')
    environment = {"HEARTH_WORKER_LISTEN": "environment:1", "HEARTH_WORKER_HEARTBEAT_S": "3"}
    got = Example.load({"listen": "flag:1", "heartbeat_s": None}, environment, path)
    assert got == Example(listen="flag:1", heartbeat_s=3.0, allow_other=True)


def test_the_file_may_be_named_in_the_environment(file):
    path = file("[worker]\nheartbeat_s = 2")
    assert Example.load({}, {"HEARTH_CONFIG": str(path)}).heartbeat_s == 2


def test_a_list_in_the_environment_is_separated_by_commas():
    assert Example.load({}, {"HEARTH_WORKER_DISKS": "/a,/b:1GiB"}).disks == ("/a", "/b:1GiB")


def test_tables_and_variables_of_other_roles_do_not_matter(file):
    path = file("[master]\nanything = 1\n[worker]\nheartbeat_s = 2")
    environment = {"HEARTH_MASTER_LISTEN": "x", "HEARTH_TEST_SEED": "1"}
    assert Example.load({}, environment, path).heartbeat_s == 2


@pytest.mark.parametrize(
    ("flags", "environment", "text", "says"),
    [
        ({"lisen": "x"}, {}, "", ["flag", "'lisen'", "did you mean 'listen'?"]),
        ({}, {"HEARTH_WORKER_HEARTBEATS": "1"}, "", ["HEARTH_WORKER_", "'heartbeats'", "'heartbeat_s'"]),
        ({}, {}, '[worker]\ndisk = ["/a"]', ["hearth.toml", "[worker]", "'disk'", "'disks'"]),
        ({}, {}, "[wroker]\n", ["hearth.toml", "'wroker'", "'worker'"]),
        ({"zzzzqqqq": 1}, {}, "", ["known: allow_other, disks, heartbeat_s, listen"]),
        ({"heartbeat_s": "soon"}, {}, "", ["worker.heartbeat_s", "'soon'"]),
        ({}, {}, "worker = 1", ["worker must be a table"]),
        ({}, {}, "[worker", ["hearth.toml"]),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_the_nearest_known_key(file, flags, environment, text, says):
    with pytest.raises(SettingsError) as caught:
        Example.load(flags, environment, file(text))
    assert "\n" not in str(caught.value)
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize("environment", [{"HEARTH_CONFIG": "/nonexistent/hearth.toml"}, {}])
def test_a_file_that_was_named_must_exist(environment):
    named = None if environment else Path("/nonexistent/hearth.toml")
    with pytest.raises(SettingsError, match=r"/nonexistent/hearth\.toml: No such file"):
        Example.load({}, environment, named)


def test_settings_do_not_change():
    with pytest.raises(Exception, match="frozen"):
        Example().listen = "x"  # type: ignore[misc]


def test_roles_are_lower_case_words():
    assert all(role.isidentifier() and role == role.lower() for role in ROLES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64MiB", 64 << 20),
        ("64 MiB", 64 << 20),
        ("10G", 10 << 30),
        ("10gb", 10 << 30),
        ("1.5K", 1536),
        ("2TiB", 2 << 40),
        ("3B", 3),
        (17, 17),
    ],
)
def test_sizes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "x", "GiB", "1.2.3M", "12X", "1e", "--1"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write it as"):
        parse_bytes(text)


@given(st.integers(0, 1 << 60))
def test_a_plain_number_is_itself(value):
    assert parse_bytes(str(value)) == int(float(value))
