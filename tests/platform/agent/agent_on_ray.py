"""The node agent in a Ray cluster of its own; run as a program by test_node_agent.py.

usage: agent_on_ray.py LOCK_DIR TEMP_DIR

A process of its own, so that a hanging cluster can be killed and the test's process stays free of Ray.
"""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray

from ebbtide.agent.node_agent import agent_name, start_agent
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.arbiter_link import ARBITER_NAME, NAMESPACE
from ebbtide.client.messages import AgentReport, SlotRef

WAIT_S = 60.0


class Arbiter:
    """Only listens."""

    def __init__(self) -> None:
        self.heard: list[AgentReport] = []

    def report_agent(self, report: AgentReport) -> None:
        self.heard.append(report)

    def forget(self) -> None:
        self.heard.clear()

    def last_workload(self) -> str:
        if not self.heard or 0 not in self.heard[-1].holders:
            return "nothing heard"
        holder = self.heard[-1].holders[0]
        return holder.workload if holder else "-"


def wait_for(arbiter: Any, agent: Any, slot: SlotRef, workload: str) -> None:
    """Until the arbiter heard of the workload; the slots are named again and again, as an arbiter does."""
    end_s = time.monotonic() + WAIT_S
    while ray.get(arbiter.last_workload.remote(), timeout=WAIT_S) != workload:
        assert time.monotonic() < end_s, f"the arbiter never heard of {workload}"
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(agent.watch.remote([slot], 1 << 20, []), timeout=WAIT_S)
        time.sleep(0.05)


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
    ray.get(agent.watch.remote([slot], 1 << 20, []), timeout=WAIT_S)
    report = ray.get(agent.probe.remote(), timeout=WAIT_S)
    assert (report.node, report.holders) == (node, {0: None})
    slot = SlotRef(node, 0, report.uuids[0])  # under its machine's name: the lock that the agent watches
    arbiter = ray.remote(Arbiter).options(name=ARBITER_NAME, namespace=NAMESPACE, num_cpus=0).remote()
    lock = SlotLock(lock_dir, slot, workload="mine", epoch=4)
    lock.acquire(0.0)
    wait_for(arbiter, agent, slot, "mine")
    assert ray.get(agent.kill_holder.remote(0, 3), timeout=WAIT_S) is False

    # Killed, the agent comes back empty and is told its slots again.
    ray.kill(agent, no_restart=False)
    ray.get(arbiter.forget.remote(), timeout=WAIT_S)
    wait_for(arbiter, agent, slot, "mine")
    lock.release()
    wait_for(arbiter, agent, slot, "-")

    program = Path(__file__).with_name("holder.py")
    holder = subprocess.Popen(
        [sys.executable, str(program), str(lock_dir), "0", "victim", "4", "", slot.uuid],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    wait_for(arbiter, agent, slot, "victim")
    assert ray.get(agent.kill_holder.remote(0, 4), timeout=WAIT_S) is True
    assert holder.wait(WAIT_S) == -signal.SIGKILL
    wait_for(arbiter, agent, slot, "-")
    ray.shutdown()
    print("all seen")


if __name__ == "__main__":
    main()
