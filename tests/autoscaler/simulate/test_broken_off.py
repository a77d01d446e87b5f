"""A simulation that is ended from outside leaves no process behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.agent.process import is_alive, started_ticks
from tests.autoscaler.simulate.test_command import files

__all__ = ["files"]  # the fixture

PATIENCE_S = 60.0
COMMAND = "from ebbtide_autoscaler.command_simulate import simulate; simulate()"
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_who_plays_goes_with_the_command(files: tuple[str, str, str], tmp_path: Path, number: signal.Signals) -> None:
    config, serving, jobs = files
    kept = tmp_path / "kept"
    arguments = [config, "--serving", serving, "--jobs", jobs, "--policies", "static-p100", "--seeds", "900"]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--processes", "2", "--keep", str(kept)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert until(lambda: kept.is_dir() and any(kept.iterdir())), "it plays"
        playing = children(command.pid)
        assert playing
    finally:
        command.send_signal(number)
        command.wait(PATIENCE_S)
    assert until(lambda: not any(is_alive(*one) for one in playing.items()))
