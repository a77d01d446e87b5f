"""Host memory of nodes, by their agents: what a rank borrows, and what earlier gangs have left.

All that the train session needs Ray for when it parks. An agent is asked with a deadline; one that does not answer in
time has refused, and then the gang cannot park in place, says why, and stops and restarts instead.

Where no agent is registered for a node at all (a pool that lends no host memory, as in tests of the trainer alone),
state is parked in the process's own memory, and dies with it.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ebbtide.agent.node_agent import agent_name
from ebbtide.client.arbiter_link import NAMESPACE
from ebbtide.snapshot.errors import PoolTooSmall
from ebbtide.snapshot.eviction.host_memory import HostMemory, HostRegion, OwnMemory
from ebbtide.snapshot.regions.region_states import RegionKey
from ebbtide_train.session.parking.host_region import LentRegion
from ebbtide_train.session.parking.leftover_regions import Left, Outcome, Taken
from ebbtide_train.session.parking.takeover import publish_region

ASK_S = 2.0  # as other calls of an agent, which take milliseconds
LEND_S = 10.0  # and in addition, what the kernel needs to clear pages:
CLEARED_PER_S = 0.5e9  # bytes; a quarter of what one core of a two-core machine was seen to do beside other work
PUBLISH_S = 600.0  # as long as a session tries to commit its last state
LOOK_S = 5.0  # whether the node still lives; Ray itself notices after some 15 s that one has died

_logger = logging.getLogger(__name__)


class NodeMemory:
    """The memory of this rank's node, as a session's `HostMemory`."""

    def __init__(self, node: str, key: RegionKey) -> None:
        """``node``: Ray's id of it. Nothing is asked for yet."""
        self._node, self._key = node, key

    def lend(self, size_bytes: int) -> HostRegion:
        """See `HostMemory.lend`."""
        agent = _agent(self._node)
        memory: HostMemory
        if agent is None:  # guard: where there is no agent a rank parks in memory of its own
            _logger.warning("no agent lends host memory on this node: what is parked here dies with its process")
            memory = OwnMemory()
        else:
            memory = LentRegion(_Lender(agent), self._key)
        return memory.lend(size_bytes)


class _Lender:
    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def lend(self, key: RegionKey, size_bytes: int) -> Path:
        try:
            asked = self._agent.lend.remote(key.job, key.lease_epoch, key.rank, size_bytes)
            return Path(ray.get(asked, timeout=LEND_S + size_bytes / CLEARED_PER_S))
        except RayTaskError as error:  # guard: what an agent says when it lends nothing is told
            raise PoolTooSmall(f"this node lends no host memory: {error.cause}") from error
        # guard: an agent that does not answer lends nothing; an agent of another version lends nothing
        except (RayError, AttributeError) as error:
            raise PoolTooSmall(f"this node's agent does not answer ({type(error).__name__})") from error


class LeftOnNodes:
    """See `LeftoverRegions`."""

    def nodes(self, known: Sequence[str]) -> Sequence[str]:
        """Those, if they are all alive. Else all that are: Ray gives nodes new ids when a cluster is started anew."""
        alive = _alive()
        # guard: after a new start of the cluster all nodes are asked; else only the nodes of the last gangs are asked
        return known if alive.issuperset(known) else [*filter(alive.__contains__, known), *sorted(alive - set(known))]

    def look(self, node: str) -> Sequence[Left] | None:
        """Asks the agent of that node, which looks into its folder: one that was killed and is back knows all."""
        agent = _agent(node)
        if agent is None or node not in _alive():  # guard: on a node that is gone nothing is left
            return ()  # its memory is gone with it
        try:
            return [Left(node, region) for region in ray.get(agent.regions.remote(), timeout=ASK_S)]
        # guard: what a silent node has left is unknown; what an agent of another version has is unknown
        except (RayError, AttributeError):
            return None

    def publish(self, left: Left, run_dir: Path, *, keep: int) -> Taken:
        """On another node by a task there: the state goes to the shared directory, not through Ray."""
        path = left.region.path
        if left.node == ray.get_runtime_context().get_node_id():  # guard: a region of this node is published here
            return publish_region(path, run_dir, keep=keep)
        there = ray.remote(num_cpus=0, max_retries=0, label_selector={"ray.io/node-id": left.node})(publish_region)
        asked = there.remote(path, run_dir, keep=keep)
        end_s = time.monotonic() + PUBLISH_S
        while True:
            try:
                taken: Taken = ray.get(asked, timeout=LOOK_S)
            except GetTimeoutError as error:
                # A task for a node that has died since waits for ever; nobody says so.
                if left.node in _alive() and time.monotonic() < end_s:
                    continue
                why = str(error)
            except (RayError, ValueError) as error:
                why = str(error)
            else:
                return taken
            with suppress(RayError, ValueError, TypeError):
                ray.cancel(asked, force=True)  # two must not write one checkpoint
            return Taken(Outcome.LATER, f"node {left.node} does not publish it: {why}")

    def settle(self, node: str, job: str, lease_epoch: int) -> None:
        """Asks the agent of that node."""
        agent = _agent(node)
        if agent is not None:
            with suppress(RayError, AttributeError):
                ray.get(agent.settle.remote(job, lease_epoch), timeout=ASK_S)


def _agent(node: str) -> Any:
    """The handle of a node's agent, also of one that is being restarted; None: there is none."""
    try:
        return ray.get_actor(agent_name(node), namespace=NAMESPACE)
    except ValueError:  # Ray's word for "no such actor"
        return None


def _alive() -> set[str]:
    return {str(entry["NodeID"]) for entry in ray.nodes() if entry["Alive"]}
