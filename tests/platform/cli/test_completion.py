"""`ebbtide completion` prints scripts that shells accept and that complete our commands."""

import os
import shutil
import sys
from subprocess import run

import pytest
from click.testing import CliRunner

from ebbtide.cli.commands.completion import COMPLETE_VARIABLE
from ebbtide.cli.main import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_calls_back(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0 and result.stderr == ""
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in result.stdout
    if shutil.which(shell):
        run([shell, "-n"], input=result.stdout, text=True, timeout=30, check=True)


def test_another_shell_is_bad_input() -> None:
    assert CliRunner().invoke(cli, ["completion", "cmd.exe"]).exit_code == 2


def test_the_script_s_question_is_answered() -> None:
    environ = {**os.environ, COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": "ebbtide val", "COMP_CWORD": "1"}
    code = "from ebbtide.cli.main import main; main()"
    done = run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert "plain,validate" in done.stdout
