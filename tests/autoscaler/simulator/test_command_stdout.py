"""A stdout that fails costs nothing but what stands there: files are whole, and what is wrong is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide_simulator import command as command_simulate
from tests.builders.simulate import files

__all__ = ["files"]  # the fixture

COMMAND = "from ebbtide_simulator.command import simulate; simulate()"
FULL = "Error: stdout is not whole: No space left on device; make room"


@pytest.mark.parametrize(
    ("stdout", "code", "error"),
    [("| true", 1, ""), (">/dev/full", 1, FULL), (">&-", 0, "")],
    ids=["gone", "full", "none"],
)
def test_files_are_written_whatever_becomes_of_stdout(
    files: tuple[str, str, str], tmp_path: Path, stdout: str, code: int, error: str
) -> None:
    """As a shell has it, since what is in a buffer may fail once more when the process ends."""
    config, serving, jobs = files
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    shell = f'"$@" {stdout}; exit ${{PIPESTATUS[0]}}'
    arguments = [config, "--serving", serving, "--jobs", jobs, "--policies", "static-p100", "--processes", "1"]
    found = subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-c", COMMAND, *arguments, "--json", out, "--report", page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "static-p100" in json.loads(out.read_text())["policies"] and page.read_text().endswith("</html>\n")
    assert found.returncode == code and found.stderr.startswith(error) and found.stderr.count("\n") == bool(error)


def test_who_has_gone_does_not_keep_a_contradiction_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command_simulate, "_print", gone)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # it is put back
    nothing = cast(Any, None)  # no file asks for the report
    with pytest.raises(CommandFailed, match="itself: more than all"):
        command_simulate._tell(nothing, {"impossible": ["more than all"]}, None, None)
    with pytest.raises(BrokenPipeError):
        command_simulate._tell(nothing, {"impossible": []}, None, None)
