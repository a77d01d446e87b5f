"""Which worker processes are ended because nobody remembers their lease, and which never are."""

import os
import subprocess
import time
from typing import Any

import pytest
from ray.core.generated import node_manager_pb2

from ebbtide.agent.ray_workers.forgotten_leases import FORGOTTEN_S, end_forgotten, never_used
from ebbtide.system.process import started_ticks

TICKS = os.sysconf("SC_CLK_TCK")
NIL = b"\xff" * 16


def worker(pid: int, *, actor: bytes = NIL, executed: int = 0, running: int = 0, kind: int = 0, gpus: int = 0) -> Any:
    found = node_manager_pb2.GetNodeStatsReply().core_workers_stats.add()
    found.pid, found.actor_id, found.worker_type = pid, actor, kind
    found.num_executed_tasks, found.num_running_tasks = executed, running
    for index in range(gpus):
        found.used_resources["GPU"].resource_slots.add().slot = index
    return found


class Node:
    """Processes by start time in seconds, and who was killed."""

    def __init__(self, **started_s: float) -> None:
        self.started = {int(name[1:]): int(at_s * TICKS) for name, at_s in started_s.items()}
        self.killed: list[tuple[int, int]] = []

    def end(self, *workers: Any, now_s: float) -> list[int]:
        def kill(pid: int, started: int) -> bool:
            self.killed.append((pid, started))
            return True

        return end_forgotten(workers, now_ticks=lambda: now_s * TICKS, started=self.started.get, kill=kill)


def test_a_worker_that_nobody_ever_used_is_ended_after_a_while_and_only_then() -> None:
    node = Node(p7=100.0, p8=104.0)
    assert node.end(worker(7), worker(8), now_s=100 + FORGOTTEN_S - 0.1) == []
    assert node.end(worker(7), worker(8), now_s=100 + FORGOTTEN_S) == [7]
    assert node.killed == [(7, 100 * TICKS)], "by its start time too: the number may be another's by now"


@pytest.mark.parametrize(
    "used",
    [
        worker(7, actor=b"\x01" * 16),
        worker(7, executed=1),
        worker(7, running=1),
        worker(7, gpus=1),
        worker(7, kind=1),  # a driver
    ],
)
def test_whoever_has_an_actor_a_task_a_gpu_or_is_a_driver_is_never_ended(used: Any) -> None:
    assert not never_used(used) and never_used(worker(7)) and never_used(worker(7, actor=b""))
    assert Node(p7=1.0).end(used, now_s=1e6) == []


def test_a_process_that_is_gone_is_nobody() -> None:
    node = Node()
    assert node.end(worker(7), now_s=1e6) == [] and node.killed == []


def test_the_clock_is_the_one_that_start_times_are_counted_by() -> None:
    with subprocess.Popen(["sleep", "60"]) as young:
        killed: list[int] = []

        def kill(pid: int, _started: int) -> bool:
            killed.append(pid)
            return True

        assert end_forgotten([worker(young.pid)], kill=kill) == []
        began = started_ticks(young.pid)
        assert began is not None
        assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - began / TICKS < FORGOTTEN_S / 2
        earlier = began - int(FORGOTTEN_S * TICKS)
        assert end_forgotten([worker(young.pid)], started=lambda _: earlier, kill=kill) == [young.pid] == killed
        young.kill()
