"""The command as a program: exit codes, one line on stderr, no heavy import before a command runs."""

import ast
import errno
import os
import re
import subprocess
import sys

import pytest
from hearthfs.cli import main as cli
from hearthfs.cli.supervisor import hearth_command
from hearthfs.common.errors import NotFound, Unavailable
from typer.testing import CliRunner

COMMANDS = sorted(command.name or command.callback.__name__ for command in cli.app.registered_commands)
HEAVY = {"grpc", "pydantic", "structlog", "google", "asyncio"}


def hearth(*arguments, **options):
    environment = {**os.environ, "HEARTH_CONFIG": os.devnull}
    return subprocess.run(
        hearth_command(*arguments), env=environment, capture_output=True, text=True, timeout=30, check=False, **options
    )


def test_help_imports_nothing_heavy_and_names_the_exit_codes():
    program = (
        "import sys; from hearthfs.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert "3 findings" in re.sub(r"\s+", " ", done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    done = CliRunner().invoke(cli.app, [command, "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.output


def test_all_commands_are_there():
    wanted = "up master worker mount umount status df fsck doctor ls stat tree cat put get rm mv du version"
    assert set(wanted.split()) <= set(COMMANDS)


def test_wrong_usage_is_exit_code_2():
    for arguments in (["ls", "--lnog"], ["nonsense"], ["stat"], ["put", "one"]):
        assert CliRunner().invoke(cli.app, arguments).exit_code == 2


def test_a_master_that_is_not_there_is_one_line_and_exit_code_1():
    done = hearth("status", "--master", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("hearth: master 127.0.0.1:1: ")


def test_an_unknown_setting_is_one_line_with_the_nearest_known_one(tmp_path):
    file = tmp_path / "hearth.toml"
    file.write_text('[client]\nmastre = "x:1"\n')
    done = hearth("status", "--config", str(file))
    assert done.returncode == 1
    assert done.stderr == f"hearth: {file}: [client]: unknown key 'mastre'; did you mean 'master'?\n"


def test_a_reader_that_goes_away_is_no_trace():
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -P -m hearthfs.cli.main --help | head -c 1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_version():
    done = CliRunner().invoke(cli.app, ["version"])
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.output)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotFound("/model/x does not exist"), "/model/x does not exist"),
        (Unavailable(""), "Unavailable"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/tmp/x"), "/tmp/x: No such file or directory"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", b"/tmp/x"), "/tmp/x: No such file or directory"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "Address already in use"),
        (OSError("something"), "something"),
    ],
)
def test_errors_are_described_in_one_line(error, line):
    assert cli.describe(error) == line
