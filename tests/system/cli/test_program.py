"""The command as a process of its own: exit codes, one line on stderr, no heavy import before a command runs."""

import ast
import os
import re
import subprocess
import sys

from hearthfs.cli.supervisor import hearth_command

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
