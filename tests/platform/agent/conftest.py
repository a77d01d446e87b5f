"""Holders of slot locks, as processes of their own."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WAIT_S = 60.0
StartHolder = Callable[..., subprocess.Popen[str]]


def ask(holder: subprocess.Popen[str], word: str) -> str:
    """Tell a holder something; its answer."""
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write(f"{word}\n")
    holder.stdin.flush()
    return holder.stdout.readline().strip()


def wait_until(condition: Callable[[], bool], deadline_s: float = WAIT_S) -> None:
    """Look every 5 ms until the condition holds; fail at the deadline."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def start_holder() -> Iterator[StartHolder]:
    """``start_holder(lock_dir, index, workload, epoch, log_dir=None)`` starts a holder and waits until it holds."""
    started: list[subprocess.Popen[str]] = []

    def start(
        lock_dir: Path, index: int, workload: str = "other", epoch: int = 5, log_dir: Path | None = None
    ) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("holder.py")
        words = [str(lock_dir), str(index), workload, str(epoch), *([str(log_dir)] if log_dir else [])]
        holder = subprocess.Popen(
            [sys.executable, str(program), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in started:
        holder.kill()
        holder.communicate()
