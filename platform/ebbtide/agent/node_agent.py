"""The node agent: a small Ray actor on each node that proves to the arbiter who sits on the node's GPUs.

A thin shell around ``slot_watch`` and ``host_memory``. It keeps nothing: after a restart the arbiter names the slots
again, and until then it reports none; a slot that is missing in a report is not known to be free. What it has lent it
finds again by itself. A ``watch`` that was answered may have reached the actor just before its death, so it must be
sent again and again. It has no privileges: it can signal only processes of its own user, and kills only holders of slot
locks.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ebbtide.agent.host_memory.region_lender import RegionLender
from ebbtide.agent.host_memory.regions_folder import regions_folder
from ebbtide.agent.node_capabilities import CapabilityReader
from ebbtide.agent.nvml import GpuProcesses
from ebbtide.agent.ray_workers.forgotten_leases import end_forgotten
from ebbtide.agent.ray_workers.logical_gpus import gpu_users, ray_workers
from ebbtide.agent.ray_workers.outlived_actors import actor_died_s, end_outlived
from ebbtide.agent.slot_identity import machine_name, slot_uuids
from ebbtide.agent.slot_watch import ReportLoop, SlotWatch
from ebbtide.client.arbiter_link import NAMESPACE, ArbiterLink
from ebbtide.client.messages import AgentAnswer, AgentReport, SlotRef
from ebbtide.snapshot.regions.region_states import RegionKey
from ebbtide.snapshot.regions.region_view import RegionView
from ebbtide.system.code_digest import code_digest
from ebbtide.system.process import is_alive

SEND_TIMEOUT_S = 1.0  # a report is out of date by then: the next one is due
RAYLET_TIMEOUT_S = 2.0  # the node's own raylet answers within milliseconds
CALLS_AT_ONCE = 12  # 4, since a probe must not wait behind a kill, and 8 ranks of a node that wait for host memory
PENDING_CALLS_MAX = 32  # unanswered: an agent that hangs must not fill the arbiter's memory with repeated calls

_log = logging.getLogger(__name__)


class NodeAgent:
    """The actor's class; make actors with :func:`start_agent`."""

    def __init__(self, node_id: str, lock_dir: str) -> None:
        gpus = GpuProcesses()
        machine = machine_name(ray.get_runtime_context().get_node_labels())
        uuid_of = slot_uuids(machine, gpus.uuid)
        self._hosting = RegionLender(regions_folder(Path(lock_dir).parent.name, machine))  # .../<pool>/slots
        means = CapabilityReader(Path(lock_dir).parent)
        self._code = code_digest()
        self._watch = SlotWatch(
            node_id, Path(lock_dir), gpu_pids=gpus.pids, uuid_of=uuid_of, means=means, code=self._code
        )
        link = ArbiterLink()

        def send(report: AgentReport) -> AgentAnswer | None:
            answer: AgentAnswer | None = link.call("report_agent", report, timeout_s=SEND_TIMEOUT_S)
            return answer

        self._loop = ReportLoop(self._watch, send)
        self._loop.start()

    def code(self) -> str:
        """Which code this node runs; see `code_digest`."""
        return self._code

    def probe(self) -> AgentReport:
        """Who sits on the watched slots now."""
        return self._watch.observe()

    def watch(self, slots: Sequence[SlotRef], host_bytes: int, jobs: Sequence[str]) -> None:
        """From now on watch exactly these slots; to be called again and again.

        Args:
            slots: of this node.
            host_bytes: what may be lent to workers in all; see `lend`.
            jobs: all that have not ended; host memory of others is taken back.
        """
        self._watch.watch(slots)
        self._hosting.set_budget(host_bytes)
        for name in self._hosting.sweep(jobs):
            _log.info("took back the host memory of %s", name)

    def lend(self, job: str, lease_epoch: int, rank: int, size_bytes: int) -> str:
        """The path of a region of this node's host memory; see `RegionLender.lend`, which also says what it raises."""
        return str(self._hosting.lend(RegionKey(job, lease_epoch, rank), size_bytes))

    def regions(self) -> list[RegionView]:
        """All regions of this node."""
        return self._hosting.regions()

    def settle(self, job: str, lease_epoch: int) -> list[str]:
        """What gangs of a job up to that lease left here counts no more; see `RegionLender.settle`."""
        return self._hosting.settle(job, lease_epoch)

    def kill_holder(self, index: int, epoch_at_most: int) -> bool:
        """See :meth:`SlotWatch.kill_holder`."""
        return self._watch.kill_holder(index, epoch_at_most)

    def alive(self, pid: int, started: int) -> bool:
        """Whether the process of this node with this pid and start time still lives; see ``process.is_alive``."""
        return is_alive(pid, started)

    def gpu_users(self, address: str, port: int) -> dict[int, str] | None:
        """Who has the node's logical GPUs, by index, asked of its raylet; None: it did not answer in time."""
        workers = ray_workers(address, port, timeout_s=RAYLET_TIMEOUT_S)
        return None if workers is None else gpu_users(workers)

    def end_forgotten(self, address: str, port: int) -> list[int]:
        """End the node's worker processes whose lease nobody remembers; see ``forgotten_leases``."""
        workers = ray_workers(address, port, timeout_s=RAYLET_TIMEOUT_S)
        return [] if workers is None else end_forgotten(workers)

    def end_outlived(self, address: str, port: int) -> list[int]:
        """End the node's worker processes that have a GPU for an actor that is dead; see ``outlived_actors``."""
        workers = ray_workers(address, port, timeout_s=RAYLET_TIMEOUT_S)
        return [] if workers is None else end_outlived(workers, died_s=actor_died_s)


def agent_name(node_id: str) -> str:
    """The actor's name, in namespace "ebbtide"."""
    return f"agent-{node_id[:8]}"


def start_agent(node_id: str, lock_dir: str) -> Any:
    """The handle of the node's agent, which is started if it does not run.

    Args:
        node_id: Ray's node id, hex; the actor never runs anywhere else.
        lock_dir: node-local directory of the slot locks.

    Returns at once: the first call on the handle waits for the actor. On a node that is gone every call fails at once
    (``ActorUnschedulableError``); :func:`stop_agent` then forgets the actor.
    """
    return (
        ray.remote(NodeAgent)
        .options(
            name=agent_name(node_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,
            max_pending_calls=PENDING_CALLS_MAX,
            enable_task_events=False,  # each call would be kept by the GCS: 6 MB a minute for a pool of two nodes
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
        )
        .remote(node_id, lock_dir)
    )


def stop_agent(node_id: str) -> None:
    """End the node's agent for good; nothing happens if there is none."""
    try:
        ray.kill(ray.get_actor(agent_name(node_id), namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return  # Ray's word for "no such actor"
