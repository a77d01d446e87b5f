"""Which worker processes are ended because nobody remembers their lease, and which never are."""

from typing import Any

import pytest
from ray.core.generated import node_manager_pb2

from ebbtide.agent.forgotten_leases import FORGOTTEN_S, GAP_S, ForgottenLeases, never_used

STEP_S = 3.0
NIL = b"\xff" * 16


class Node:
    """A clock, start times of processes, and who was killed."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.started: dict[int, int] = {}
        self.killed: list[tuple[int, int]] = []
        self.leases = ForgottenLeases(clock=lambda: self.now_s, started=self.started.get, kill=self._kill)

    def _kill(self, pid: int, started: int) -> bool:
        self.killed.append((pid, started))
        return True

    def look(self, *workers: Any, for_s: float, every_s: float = STEP_S) -> None:
        until_s = self.now_s + for_s
        while self.now_s <= until_s:
            self.leases.end(workers)
            self.now_s += every_s


def worker(pid: int, *, actor: bytes = NIL, executed: int = 0, running: int = 0, kind: int = 0, gpus: int = 0) -> Any:
    found = node_manager_pb2.GetNodeStatsReply().core_workers_stats.add()
    found.pid, found.actor_id, found.worker_type = pid, actor, kind
    found.num_executed_tasks, found.num_running_tasks = executed, running
    for index in range(gpus):
        found.used_resources["GPU"].resource_slots.add().slot = index
    return found


def test_a_worker_that_nobody_ever_used_is_ended_after_a_while_and_only_then() -> None:
    node = Node()
    node.started[7] = 70
    node.look(worker(7), for_s=FORGOTTEN_S - STEP_S)
    assert node.killed == []
    node.look(worker(7), for_s=STEP_S)
    assert node.killed[:1] == [(7, 70)]


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
    node = Node()
    node.started[7] = 70
    node.look(used, for_s=10 * FORGOTTEN_S)
    assert node.killed == []


def test_another_process_of_the_same_number_begins_anew() -> None:
    node = Node()
    node.started[7] = 70
    node.look(worker(7), for_s=FORGOTTEN_S - STEP_S)
    node.started[7] = 71
    node.look(worker(7), for_s=0)
    assert node.killed == []


def test_use_in_between_begins_anew_and_so_does_a_time_in_which_nobody_looked() -> None:
    node = Node()
    node.started[7] = 70
    node.look(worker(7), for_s=FORGOTTEN_S - STEP_S)
    node.look(worker(7, running=1), for_s=0)
    node.look(worker(7), for_s=FORGOTTEN_S - STEP_S)
    assert node.killed == []
    node.now_s += GAP_S + FORGOTTEN_S
    node.look(worker(7), for_s=FORGOTTEN_S - STEP_S)
    assert node.killed == []


def test_a_process_that_is_gone_is_nobody() -> None:
    node = Node()
    node.look(worker(7), for_s=3 * FORGOTTEN_S)
    assert node.killed == []
