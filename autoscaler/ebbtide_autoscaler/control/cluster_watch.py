"""What the arbiter looks at by itself: the cluster's nodes, its fences, replica actors, jobs that could be restored.

Four looks, each at its own pace and with a deadline, so that one that hangs delays none of the others, and none of
them a tick. A look that fails changes nothing: what was known stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

import ray
from ray.exceptions import RayError

from ebbtide.client.bounded_calls import BoundedCalls
from ebbtide.client.job_actuator import CannotRestore, JobActuator
from ebbtide.client.messages import SlotRef
from ebbtide.client.seat_actuator import SeatActuator
from ebbtide.pool.events import NodeFound, NodeLost, Slot, SlotFound
from ebbtide.pool.ids import JobName, NodeId, SlotId, node_of, slot_id
from ebbtide.pool.rules.drain import let_go
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.cluster.node_names import ELASTIC_LABEL
from ebbtide_autoscaler.control.agent_handles import AgentHandles
from ebbtide_autoscaler.control.fence_sync import FenceSync
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.process.steady_clock import clock

LIVING_S = 0.25  # between two looks at the list of replica actors, one call to Ray's GCS
NODES_S = 1.0
FENCES_S = 5.0
JOBS_S = 2.0  # a listing of the shared directory
ANSWER_S = 10.0  # the GCS answers within milliseconds; one that restarts needs some seconds
FORGOTTEN = "nobody that Ray could name: a lease left behind by a restart of its GCS, which is being cleared up"

log = logging.getLogger(__name__)


def load_serve() -> SeatActuator:
    """The serving port that the installed packages offer.

    Raises:
        LookupError: none is installed.
    """
    for entry in entry_points(group="ebbtide.actuators", name="serve"):
        port: SeatActuator = entry.load()()
        return port
    raise LookupError("no package offers an entry point 'serve' in the group ebbtide.actuators")


def cluster_name() -> str:
    """What tells this Ray cluster from one that was started later: the id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def cluster_address() -> str:
    """Of the GCS of the cluster that this process belongs to, host:port; "" outside of one."""
    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else ""


def load_train(shared_dir: str) -> JobActuator:
    """The port of training that the installed packages offer; one that can do nothing if there is none."""
    for entry in entry_points(group="ebbtide.actuators", name="train"):
        port: JobActuator = entry.load()(shared_dir)
        return port
    return _NoJobs()


class _NoJobs:
    """Without the training room nothing can be submitted again."""

    async def restorable(self) -> frozenset[JobName]:
        return frozenset()

    async def restore(self, job: JobName) -> str:
        raise CannotRestore(f"job {job}: no package offers an entry point 'train' in the group ebbtide.actuators")

    async def forget(self, job: JobName) -> None:
        return None


class ClusterWatch:
    """Looks around at its own pace and writes what it finds into the inbox.

    ``nodes``: how many Ray nodes live, with GPUs or without; 0 before the first look. ``elastic``: of those with GPUs
    the ones that Ray's autoscaler may take away, with how many they have.
    """

    def __init__(
        self, inbox: Inbox, book: FenceTable, fences: FenceSync, serve: SeatActuator, jobs: JobActuator, lock_dir: str
    ) -> None:
        self.nodes = 0
        self.elastic: Mapping[NodeId, int] = {}
        self._inbox, self._book, self._serve, self._jobs = inbox, book, serve, jobs
        self._agents = AgentHandles(lock_dir)
        self._calls = BoundedCalls("cluster watch")
        self._fences = fences
        self._raylets: dict[NodeId, tuple[str, int]] = {}

    async def watch(
        self,
        host_bytes: Callable[[], int | None],
        state: Callable[[], PoolState],
        asking: Callable[[], frozenset[NodeId]],
        left: Callable[[], frozenset[NodeId]] = frozenset,
    ) -> None:
        """Look around for ever.

        Args:
            host_bytes: what parked workers may use on a node; None: no file is in force yet, nothing is looked at.
            state: the pool as it is now.
            asking: nodes on which fences are being asked for now.
            left: nodes of a cluster that was taken down; one of them that lives is found again.
        """

        async def every(pause_s: float, look: Callable[[], Awaitable[None]]) -> None:
            while True:
                try:
                    if host_bytes() is not None:
                        await look()
                except (RayError, TimeoutError, OSError, RuntimeError) as error:
                    log.warning("looking around failed, what was known stays: %r", error)
                await asyncio.sleep(pause_s)

        await asyncio.gather(
            every(LIVING_S, self._look_at_replicas),
            every(NODES_S, lambda: self._look_at_nodes(host_bytes() or 0, state(), left())),
            every(FENCES_S, lambda: self._fences.look(asking)),
            every(JOBS_S, self._look_at_jobs),
        )

    async def _look_at_replicas(self) -> None:
        asked_s = clock.now_s()
        self._inbox.living = dict(await self._serve.living())
        self._inbox.living_at_s = asked_s

    async def _look_at_jobs(self) -> None:
        self._inbox.restorable = await asyncio.wait_for(self._jobs.restorable(), ANSWER_S)

    # ---- nodes

    async def _look_at_nodes(self, host_bytes: int, state: PoolState, left: frozenset[NodeId] = frozenset()) -> None:
        entries = await self._calls("nodes", ANSWER_S, ray.nodes)
        living = [entry for entry in entries if entry["Alive"]]
        if ray.get_runtime_context().get_node_id() not in {entry["NodeID"] for entry in living}:
            # A GCS that has just restarted does not know anybody yet; we live, so it is wrong about the others too.
            log.warning("Ray's list of nodes lacks our own: not believed")
            return
        self.nodes = len(living)
        found = {NodeId(entry["NodeID"]): entry for entry in living if int(entry["Resources"].get("GPU", 0))}
        alive = frozenset(found)
        self.elastic = {
            node: int(entry["Resources"]["GPU"])
            for node, entry in found.items()
            if entry.get("Labels", {}).get(ELASTIC_LABEL) == "true"  # guard: only a node that Ray can end goes
        }
        for node in state.nodes:
            if node not in alive:
                self._inbox.submitted.append(NodeLost(node))
        for node, entry in found.items():
            self._found(node, entry, host_bytes, state, is_back=node in left)
        self._raylets = {node: (str(e["NodeManagerAddress"]), int(e["NodeManagerPort"])) for node, e in found.items()}
        gone = let_go(state)  # Ray is to find nothing of ours there
        found = {node: entry for node, entry in found.items() if node not in gone}
        await self._forget(frozenset(found))
        await self._calls("agents of nodes let go", ANSWER_S, self._agents.end, gone)
        jobs = [str(name) for name, job in state.jobs.items() if job.state is not JobState.ENDED]
        slots = self._slots(found)
        await self._calls(
            "agents", ANSWER_S, self._agents.watch, slots, self._silent_s(frozenset(found)), host_bytes, jobs
        )
        self._inbox.refused = dict(self._agents.codes.refused)

    def _found(
        self, node: NodeId, entry: Mapping[str, Any], host_bytes: int, state: PoolState, *, is_back: bool
    ) -> None:
        """Say what is new about a node that lives; a slot is one only when it is known which GPU it is."""
        if is_back or state.nodes.get(node) != host_bytes:
            self._inbox.submitted.append(NodeFound(node, host_bytes))
        heard = self._inbox.agents.get(node)
        uuids = heard.report.uuids if heard is not None else {}
        for index in range(int(entry["Resources"]["GPU"])):
            record = state.slots.get(slot_id(node, index))
            if index in uuids and (record is None or record.state is SlotState.LOST):
                self._inbox.submitted.append(SlotFound(Slot(slot_id(node, index), node, index, uuid=uuids[index])))

    async def _forget(self, alive: frozenset[NodeId]) -> None:
        """Leave nothing on other nodes, dead or let go: no fence, no agent, no report that could be believed."""
        for node in [node for node in self._inbox.agents if node not in alive]:
            self._inbox.agents.pop(node, None)
        dead = self._book.forget_nodes(alive)
        for slot, _ in dead:
            self._book.names.pop(slot, None)
        await self._fences.drop({name for _, name in dead})
        await self._calls("dead agents", ANSWER_S, self._agents.forget, alive)

    @staticmethod
    def _slots(found: Mapping[NodeId, Mapping[str, Any]]) -> dict[NodeId, list[SlotRef]]:
        return {
            node: [SlotRef(str(node), index) for index in range(int(entry["Resources"]["GPU"]))]
            for node, entry in found.items()
        }

    def _silent_s(self, alive: frozenset[NodeId]) -> dict[NodeId, float]:
        """For how long each agent has said nothing to this arbiter."""
        now_s, heard = clock.now_s(), self._inbox.agents
        able_s = max(self._inbox.started_s, self._inbox.back_s)
        return {node: now_s - max(heard[node].at_s if node in heard else 0.0, able_s) for node in alive}

    # ---- for the executor

    async def kill_holder(self, slot: Slot, epoch: int) -> None:
        """Have the slot's node kill whoever holds its lock under a lease not newer than ``epoch``."""
        await self._agents.kill_holder(slot.node, slot.index, epoch)

    async def strangers(self, slots: tuple[SlotId, ...]) -> dict[SlotId, str]:
        """Who has the logical GPUs of these slots of one node, as far as can be told in a few seconds.

        A GPU that nobody has, and that cannot be had, is on a lease that nobody remembers; one that a process has whose
        actor is dead, is in nobody's use. The end of both is seen to here.
        """
        node = node_of(slots[0])
        if node not in self._raylets:
            return {}
        users = await self._agents.gpu_users(node, *self._raylets[node])
        if users is None:
            return {}
        found = {slot: users[index] for slot in slots if (index := int(slot.rpartition(":")[2])) in users}
        if found:
            await self._agents.end_outlived(node, *self._raylets[node])
        if len(found) == len(slots):
            return found
        groups = await self._fences.others(node)
        if not groups:
            await self._agents.end_forgotten(node, *self._raylets[node])
        who = f"the placement group {', '.join(groups)}" if groups else FORGOTTEN
        return {slot: found.get(slot, who) for slot in slots}
