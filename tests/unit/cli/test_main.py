"""The command inside this process: its commands, their help, exit codes of wrong usage, errors in one line."""

import errno
import re

import pytest
from hearthfs.cli import main as cli
from hearthfs.common.errors import NotFound, Unavailable
from typer.main import get_command

PROGRAM = get_command(cli.app)
COMMANDS = sorted(PROGRAM.commands)


@pytest.fixture
def hearth(capsys):
    """``hearth("ls", "-l")``: the exit code, what it wrote to stdout."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            PROGRAM.main(list(arguments), prog_name="hearth")
        return ended.value.code, capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(hearth, command):
    code, output = hearth(command, "--help")
    assert code == 0
    assert "Usage" in output


def test_all_commands_are_there():
    wanted = (
        "replicas up master worker mount umount status df fsck doctor ls stat tree cat put get rm mv du version "
        "backup journal"
    )
    assert set(wanted.split()) <= set(COMMANDS)


def test_wrong_usage_is_exit_code_2(hearth):
    for arguments in (["ls", "--lnog"], ["nonsense"], ["stat"], ["put", "one"]):
        assert hearth(*arguments)[0] == 2


def test_version(hearth):
    _, output = hearth("version")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", output)


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


def test_a_worker_is_run_or_worked_on(hearth):
    """``hearth worker`` alone runs the daemon; it has commands below it, too."""
    code, output = hearth("worker", "--help")
    assert code == 0
    for word in ("--disk", "drain", "rebalance"):
        assert word in output
    assert hearth("worker", "drain", "--help")[0] == 0
    assert hearth("worker", "drain")[0] == 2
