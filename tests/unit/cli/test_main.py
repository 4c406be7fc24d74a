"""The command inside this process: its commands, their help, exit codes of wrong usage, errors in one line."""

import errno
import re

import pytest
from hearthfs.cli import main as cli
from hearthfs.common.errors import NotFound, Unavailable
from typer.testing import CliRunner

COMMANDS = sorted(command.name or command.callback.__name__ for command in cli.app.registered_commands)


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
