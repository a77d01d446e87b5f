"""Whether a gang is gone: by the processes themselves, also of other nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.client.messages import Lease, SlotRef
from ebbtide.system.process import started_ticks
from ebbtide_train.controller import gang as gang_module
from ebbtide_train.controller.gang import ELSEWHERE_S, PATIENCE_S, Gang
from ebbtide_train.worker.worker_metadata import WorkerMetadata
from tests.train_jobs.conftest import wait_until

LEASE = Lease("job", 7, (SlotRef("here", 0), SlotRef("there", 0)))


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that lives until it is killed, and does not react to anything else."""
    found = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield found
    found.kill()
    found.wait()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(gang_module, "_here", lambda: "here")
    monkeypatch.setattr("ebbtide_train.controller.gang.time.monotonic", lambda: now_s[0])
    return now_s


def worker(node: str, pid: int) -> Any:
    return SimpleNamespace(actor=None, metadata=SimpleNamespace(node_id=node, pid=pid))


def said(pid: int, started: int) -> WorkerMetadata:
    return WorkerMetadata(pid, started, ("out", "err"), "127.0.0.1", "lo", 1)


def test_a_gang_that_never_had_a_worker_is_gone(clock: list[float]) -> None:
    assert Gang().gone()


def test_a_stopped_process_of_this_node_is_not_gone_until_it_was_killed(
    process: "subprocess.Popen[bytes]", clock: list[float]
) -> None:
    gang = Gang()
    gang.starts(LEASE)
    gang.joined([worker("here", process.pid)])
    os.kill(process.pid, signal.SIGSTOP)
    assert not gang.gone()
    clock[0] += PATIENCE_S
    assert not gang.gone()
    assert process.poll() is None, "Ray has so much time to end it by itself"
    clock[0] += 0.1
    gang.gone()
    process.wait(10)
    wait_until(gang.gone, what="the killed process to be seen gone", timeout_s=10)


def test_a_process_of_another_node_is_gone_when_its_node_says_so(clock: list[float]) -> None:
    asked: list[tuple[str, int, int]] = []
    answers: list[bool | None] = [True, None, False]

    def lives(node: str, pid: int, started: int) -> bool | None:
        asked.append((node, pid, started))
        return answers.pop(0)

    gang = Gang(lives_elsewhere=lives)
    gang.starts(LEASE)
    gang.joined([worker("there", 11)])
    gang.introduced([said(11, 5000)])
    assert [gang.gone() for _ in range(3)] == [False, False, True]
    assert asked == [("there", 11, 5000)] * 3


def test_where_nobody_can_say_a_process_counts_as_alive_for_a_while_and_no_longer(clock: list[float]) -> None:
    gang = Gang(lives_elsewhere=lambda node, pid, started: None)
    gang.starts(LEASE)
    gang.joined([worker("there", 11)])
    gang.introduced([said(11, 5000)])
    assert not gang.gone()
    clock[0] += ELSEWHERE_S
    assert gang.gone()


def test_equal_pids_of_two_nodes_are_two_processes(process: "subprocess.Popen[bytes]", clock: list[float]) -> None:
    """In containers small pids are common."""
    started = started_ticks(process.pid)
    assert started is not None
    gang = Gang(lives_elsewhere=lambda node, pid, ticks: ticks == 77)
    gang.starts(LEASE)
    gang.joined([worker("here", process.pid), worker("there", process.pid)])
    gang.introduced([said(process.pid, started), said(process.pid, 77)])
    assert [member.started for member in gang.members()] == [started, 77]
    process.kill()
    process.wait()
    assert not gang.gone(), "the other one lives"


def test_a_worker_that_died_before_it_said_anything_holds_nothing_up(clock: list[float]) -> None:
    gang = Gang(lives_elsewhere=lambda node, pid, started: True)
    gang.starts(LEASE)
    gang.joined([worker("there", 11)])
    assert gang.gone()
