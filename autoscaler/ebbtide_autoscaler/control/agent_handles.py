"""The arbiter's handles on the node agents: one call per node and round, and none of them is waited for.

A node that runs other code than the arbiter is refused (``node_codes``): its agent is told of no slot, and what it
reports is not taken in. It is started anew now and then, for the same code may have been installed meanwhile.

An agent that was killed for good, or never came up, is started anew when it has not been heard of for a while; one
that hangs, which its process's death alone can cure, is killed and comes back by itself.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import PendingCallsLimitExceeded, RayError

from ebbtide.agent.node_agent import start_agent, stop_agent
from ebbtide.client.messages import SlotRef
from ebbtide.pool.ids import NodeId
from ebbtide_autoscaler.control.node_codes import NodeCodes

SILENT_S = 5.0  # it reports once a second; then it is looked up by name again, one call to the GCS
HUNG_S = 30.0  # silent for so long on a living node: no report can be that late
ANSWER_S = 5.0  # for what is waited for: each is a matter of milliseconds on the node

log = logging.getLogger(__name__)


class AgentHandles:
    """One instance per arbiter. ``watch`` and ``forget`` block a little: call them from a thread, one at a time."""

    def __init__(self, lock_dir: str) -> None:
        self._lock_dir = lock_dir
        self._handles: dict[NodeId, Any] = {}
        self._since_s: dict[NodeId, float] = {}  # when the node was first named, monotonic
        self._found_s: dict[NodeId, float] = {}  # when the handle was got, monotonic
        self._killed_s: dict[NodeId, float] = {}
        self.codes = NodeCodes()
        self._ended: frozenset[NodeId] = frozenset()

    def watch(
        self,
        slots: Mapping[NodeId, Sequence[SlotRef]],
        silent_s: Mapping[NodeId, float],
        host_bytes: int,
        jobs: Sequence[str],
    ) -> None:
        """Have each node's agent watch exactly these slots, and lend its host memory.

        Args:
            slots: by node, of all living nodes of the pool.
            silent_s: for how long each node's agent has said nothing, as far as that is known.
            host_bytes: what each node may lend.
            jobs: all that have not ended.
        """
        handles: dict[NodeId, Any] = {}
        for node in slots:
            try:
                handles[node] = self._handle(node, silent_s.get(node, 0.0))
            except (RayError, ValueError) as error:
                log.warning("the agent of node %s cannot be reached: %r", node, error)
        self.codes.look(handles)
        for node, handle in handles.items():
            if node in self.codes.refused:  # guard: a node with other code is told of no slot
                continue
            try:
                handle.watch.remote(slots[node], host_bytes, jobs)
            except PendingCallsLimitExceeded:
                continue  # it hangs, and what it was told last is what it is told now
            except (RayError, ValueError) as error:
                log.warning("the agent of node %s cannot be reached: %r", node, error)

    def forget(self, alive: frozenset[NodeId]) -> None:
        """End the agents of all nodes but ``alive``: Ray would keep their actors on its books for ever."""
        for node in [node for node in self._handles if node not in alive]:
            stop_agent(str(node))
            for known in (self._handles, self._since_s, self._found_s, self._killed_s):
                known.pop(node, None)
            self.codes.ask_again(node)

    def end(self, nodes: frozenset[NodeId]) -> None:
        """End the agents of ``nodes``, also those that an earlier arbiter started; each once while it is named."""
        for node in nodes - self._ended:
            stop_agent(str(node))
        self._ended = nodes

    async def kill_holder(self, node: NodeId, index: int, epoch: int) -> bool:
        """Have the node kill whoever holds the slot's lock under a lease not newer than ``epoch``."""
        return bool(await asyncio.wait_for(self._known(node).kill_holder.remote(index, epoch), ANSWER_S))

    async def gpu_users(self, node: NodeId, address: str, port: int) -> Mapping[int, str] | None:
        """Who has the node's logical GPUs; None if nobody can tell in time."""
        try:
            found: Mapping[int, str] | None = await asyncio.wait_for(
                self._known(node).gpu_users.remote(address, port), ANSWER_S
            )
        except (TimeoutError, RayError, LookupError) as error:
            log.info("who has the GPUs of node %s is not known: %r", node, error)
            return None
        return found

    async def end_forgotten(self, node: NodeId, address: str, port: int) -> None:
        """Have the node end worker processes whose lease nobody remembers; see ``forgotten_leases``."""
        await self._end(node, lambda agent: agent.end_forgotten.remote(address, port))

    async def end_outlived(self, node: NodeId, address: str, port: int) -> None:
        """Have the node end worker processes whose actor is dead; see ``outlived_actors``."""
        await self._end(node, lambda agent: agent.end_outlived.remote(address, port))

    async def _end(self, node: NodeId, ask: Callable[[Any], Awaitable[list[int]]]) -> None:
        try:
            ended = await asyncio.wait_for(ask(self._known(node)), ANSWER_S)
        except (TimeoutError, RayError, LookupError) as error:
            log.info("the workers of node %s cannot be looked at: %r", node, error)
            return
        if ended:
            log.warning("ended workers of node %s that had a GPU on their books and no use for it: %s", node, ended)

    def _known(self, node: NodeId) -> Any:
        try:
            return self._handles[node]
        except KeyError:
            raise LookupError(f"node {node} has no agent yet") from None

    def _handle(self, node: NodeId, silent_s: float) -> Any:
        now_s = time.monotonic()
        if node not in self._handles or (silent_s > SILENT_S and now_s - self._found_s[node] > SILENT_S):
            self._handles[node] = start_agent(str(node), self._lock_dir)
            self.codes.ask_again(node)
            self._found_s[node] = now_s
        if node in self.codes.refused and now_s - self._killed_s.get(node, -math.inf) > HUNG_S:
            self._killed_s[node] = now_s
            return self._restarted(node)
        # A node that has just joined has been silent since before it was there.
        hung_s = min(silent_s, now_s - self._since_s.setdefault(node, now_s))
        if hung_s > HUNG_S and now_s - self._killed_s.get(node, -math.inf) > HUNG_S:
            log.warning("the agent of node %s has been silent for %.0f s: it is started anew", node, hung_s)
            self._killed_s[node] = now_s
            ray.kill(self._handles[node], no_restart=False)
        return self._handles[node]

    def _restarted(self, node: NodeId) -> Any:
        """The agent in a new process, which imports what is installed by now."""
        stop_agent(str(node))
        self._handles[node] = start_agent(str(node), self._lock_dir)
        self.codes.ask_again(node)
        return self._handles[node]
