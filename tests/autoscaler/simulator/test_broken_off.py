"""A simulation that is ended from outside leaves no process behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.system.process import is_alive, started_ticks
from tests.builders.simulate import files

__all__ = ["files"]  # the fixture

PATIENCE_S = 60.0
RUNS = "300"  # all of them are drawn before the first one plays, and they take longer than any test looks on
COMMAND = "from ebbtide_simulator.command import simulate; simulate()"
PLAYS = "spawn_main"


def until(found: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while not found() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found()


def children(pid: int) -> dict[int, int]:
    """Pids of those that play, with their start times."""
    of = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [int(one) for one in of.read_text().split()] if of.exists() else []
    return {
        one: ticks
        for one in pids
        if (ticks := started_ticks(one)) is not None and PLAYS in Path(f"/proc/{one}/cmdline").read_text()
    }


def started(files: tuple[str, str, str], kept: Path, **options: Any) -> "subprocess.Popen[str]":
    """A simulation of many runs, the first of which have ended."""
    config, serving, jobs = files
    arguments = [config, "--serving", serving, "--jobs", jobs, "--policies", "static-p100", "--seeds", RUNS]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--processes", "2", "--keep", str(kept)],
        stdout=subprocess.DEVNULL,
        **{"stderr": subprocess.DEVNULL, "text": True} | options,
    )
    if not until(lambda: kept.is_dir() and any(kept.iterdir())):
        command.kill()
        raise AssertionError("it does not play")
    return command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_who_plays_goes_with_the_command(files: tuple[str, str, str], tmp_path: Path, number: signal.Signals) -> None:
    command = started(files, tmp_path / "kept")
    try:
        playing = children(command.pid)
        assert playing
    finally:
        command.send_signal(number)
        command.wait(PATIENCE_S)
    assert until(lambda: not any(is_alive(*one) for one in playing.items()))


def test_where_one_that_plays_is_killed_it_says_so_in_words(files: tuple[str, str, str], tmp_path: Path) -> None:
    command = started(files, tmp_path / "kept", stderr=subprocess.PIPE)
    playing = children(command.pid)
    os.kill(next(iter(playing)), signal.SIGKILL)
    _, said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1 and not any(is_alive(*one) for one in playing.items())
    assert "Error: a process that played was killed" in said and "Traceback" not in said
    assert "--processes 1" in said and "--keep FOLDER" in said


@pytest.mark.parametrize("whom", ["all", "one"])
def test_ctrl_c_ends_it_at_once_and_says_what_is_kept(files: tuple[str, str, str], tmp_path: Path, whom: str) -> None:
    """A terminal sends it to all processes of the command, somebody else to one."""
    kept = tmp_path / "kept"
    command = started(files, kept, stderr=subprocess.PIPE, start_new_session=True)
    playing = children(command.pid)
    (os.killpg if whom == "all" else os.kill)(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1 and not any(is_alive(*one) for one in playing.items())
    found = re.search(rf"broken off when (\d+) of {RUNS} runs had ended: they are in (\S+), and the same command", said)
    assert found and 0 < int(found[1]) < int(RUNS) and found[2] == str(kept)
    assert said.endswith("Aborted!\n") and "Traceback" not in said


def test_ctrl_c_before_the_first_run_has_begun_says_so_too(files: tuple[str, str, str], tmp_path: Path) -> None:
    """While seeds are drawn: of so many it takes longer than any test looks on."""
    config, serving, jobs = files
    arguments = [config, "--serving", serving, "--jobs", jobs, "--policies", "static-p100", "--seeds", "1000"]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--processes", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: bool(children(command.pid))), "it does not draw"
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=PATIENCE_S)
    assert "broken off when 0 of 1000 runs had ended: --keep FOLDER keeps them\n" in said
    assert command.returncode == 1 and said.endswith("Aborted!\n") and "Traceback" not in said
