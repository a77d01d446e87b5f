"""The node agent in a Ray cluster of its own; run as a program by test_node_agent.py.

usage: agent_on_ray.py LOCK_DIR TEMP_DIR

A process of its own, so that a hanging cluster can be killed and the test's process stays free of Ray.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray

from ebbtide.agent.node_agent import agent_name, start_agent
from ebbtide.agent.slot_lock import SlotLock
from ebbtide.client.link import ARBITER_NAME, NAMESPACE
from ebbtide.client.messages import AgentReport, SlotRef

WAIT_S = 30.0


class Arbiter:
    """Only listens."""

    def __init__(self) -> None:
        self.heard: list[AgentReport] = []

    def report_agent(self, report: AgentReport) -> None:
        self.heard.append(report)

    def last_workload(self) -> str:
        holder = self.heard[-1].holders.get(0) if self.heard else None
        return holder.workload if holder else "-"


def wait_for(arbiter: Any, workload: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while ray.get(arbiter.last_workload.remote(), timeout=WAIT_S) != workload:
        assert time.monotonic() < end_s, f"the arbiter never heard of {workload}"
        time.sleep(0.01)


def main() -> None:
    lock_dir, temp_dir = Path(sys.argv[1]), sys.argv[2]
    ray.init(
        address="local",
        num_cpus=1,
        namespace=NAMESPACE,
        include_dashboard=False,
        object_store_memory=80 << 20,
        _temp_dir=temp_dir,
    )
    node = ray.get_runtime_context().get_node_id()
    slot = SlotRef(node, 0)
    agent = start_agent(node, str(lock_dir))
    assert start_agent(node, str(lock_dir)) == agent, "one agent per node"
    assert ray.get_actor(agent_name(node), namespace=NAMESPACE) == agent

    # The arbiter comes later than the agent: its first reports go nowhere.
    ray.get(agent.watch.remote([slot]), timeout=WAIT_S)
    report = ray.get(agent.probe.remote(), timeout=WAIT_S)
    assert (report.node, report.holders) == (node, {0: None})
    arbiter = ray.remote(Arbiter).options(name=ARBITER_NAME, namespace=NAMESPACE, num_cpus=0).remote()
    lock = SlotLock(lock_dir, slot, workload="mine", epoch=4)
    lock.acquire(0.0)
    wait_for(arbiter, "mine")
    assert ray.get(agent.kill_holder.remote(0, 3), timeout=WAIT_S) is False

    # Killed, the agent comes back empty and is told its slots again.
    found = ray.get(arbiter.last_workload.remote(), timeout=WAIT_S)
    assert found == "mine"
    ray.kill(agent, no_restart=False)
    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            ray.get(agent.watch.remote([slot]), timeout=WAIT_S)
            break
        except ray.exceptions.RayActorError:
            assert time.monotonic() < end_s, "the agent did not come back"
            time.sleep(0.1)
    lock.release()
    wait_for(arbiter, "-")

    child = os.fork()
    if child == 0:
        lock.acquire(0.0)
        time.sleep(60)
        os._exit(0)
    wait_for(arbiter, "mine")
    assert ray.get(agent.kill_holder.remote(0, 4), timeout=WAIT_S) is True
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    wait_for(arbiter, "-")
    ray.shutdown()
    print("all seen")


if __name__ == "__main__":
    main()
