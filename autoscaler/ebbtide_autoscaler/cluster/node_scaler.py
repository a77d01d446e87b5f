"""Keeps the cluster at the size that the policy wishes: drains what shall go, and tells Ray what shall be there.

A node leaves in three steps, each seen in the ledger or in Ray before the next: it is drained as a person would drain
it; when no workload is left there its fences and its agent go (``cluster_watch``), so that Ray finds it idle; Ray's
autoscaler then drains it in its own way, which a raylet refuses that has work again, and ends it. One that Ray has not
taken after a while is used again: something runs there that is not of this pool.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayError

from ebbtide.client.bounded_calls import BoundedCalls
from ebbtide.pool.events import Body, NodeDraining, NodeUndrained
from ebbtide.pool.ids import EndpointName, NodeId
from ebbtide.pool.rules.drain import UNNEEDED, let_go, unneeded_nodes
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster.resource_request import Request, request_of, send
from ebbtide_autoscaler.cluster.size import DesiredSize, SizeConfig, SizeMemory, cluster_size

ANSWER_S = 10.0  # the GCS answers within milliseconds; one that restarts needs some seconds
RETRY_S = 5.0
RESEND_S = 60.0  # others may have replaced the request: Ray's autoscaler would end idle nodes minutes later
TAKEN_S = 1800.0  # Ray's own idle timeout is 5 minutes by default, and the machine has to stop
STUCK_S = 3600.0  # then the node may be tried again

log = logging.getLogger(__name__)


class NodeScaler:
    """Runs in the arbiter's event loop. ``wish``: the last one; ``trouble``: why Ray could not be told, or "" """

    def __init__(self, send: Callable[[Request], None] = send) -> None:
        self.wish: DesiredSize | None = None
        self.trouble = ""
        self._send, self._calls = send, BoundedCalls("cluster size", threads=2)
        self._memory = SizeMemory()
        self._told: Request = ()
        self._told_s = -RESEND_S  # monotonic, also of a failure
        self._sending: asyncio.Task[None] | None = None
        self._let_go_s: dict[NodeId, float] = {}
        self._stuck_s: dict[NodeId, float] = {}

    def tick(
        self,
        now_s: float,
        state: PoolState,
        aims: Mapping[EndpointName, int],
        config: SizeConfig | None,
        elastic: Mapping[NodeId, int],
        *,
        may_move: bool,
    ) -> tuple[Body, ...]:
        """Decide, have Ray told, and give the facts to take in; returns at once.

        Args:
            now_s: seconds since 1970.
            state: the pool as the ledger has confirmed it.
            aims: replicas that each endpoint should have.
            config: bounds; None: the pool's nodes are what they are.
            elastic: living nodes that Ray's autoscaler has started, with their GPUs.
            may_move: else it is only decided, to be shown.
        """
        if config is None:
            self.wish, self._memory = None, SizeMemory()
            if may_move and self._told:
                self._tell(())
            return tuple(NodeUndrained(node) for node in unneeded_nodes(state)) if may_move else ()
        stuck = self._stuck(now_s, state) if may_move else ()
        removable = frozenset(node for node in elastic if node not in self._stuck_s)
        self.wish, self._memory = cluster_size(now_s, state, aims, removable, self._memory, config)
        if not may_move:
            return ()
        self._tell(request_of(self.wish, state, elastic, config.node_slots))
        back = dict.fromkeys((*self.wish.back, *stuck))
        reason = f"{UNNEEDED}{self.wish.reason}"
        return (*(NodeUndrained(node) for node in back), *(NodeDraining(node, reason) for node in self.wish.going))

    def explained(self, waits: Mapping[str, str]) -> dict[str, str]:
        """``waits``, with what the cluster is asked for added to those who wait for it."""
        if self.wish is None or not self.wish.lacking:
            return dict(waits)
        asked = f"the cluster: {self.wish.reason}{f'; Ray could not be told: {self.trouble}' if self.trouble else ''}"
        return {name: f"{why}; {asked}" if name in self.wish.lacking else why for name, why in waits.items()}

    def status(self) -> dict[str, Any] | None:
        """For people and scripts; None: the pool's nodes are what they are."""
        if self.wish is None:
            return None
        return {
            "nodes": self.wish.nodes,
            "new": self.wish.new,
            "going": list(self.wish.going),
            "reason": self.wish.reason,
            "trouble": self.trouble or None,
        }

    async def leave(self) -> None:
        """Take back what Ray was asked for: the pool is being taken down."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=ANSWER_S)
        if self._told:
            await self._carry(())

    def _stuck(self, now_s: float, state: PoolState) -> tuple[NodeId, ...]:
        """Nodes that Ray ought to have taken long ago."""
        gone = let_go(state)
        self._let_go_s = {node: self._let_go_s.get(node, now_s) for node in gone}
        self._stuck_s = {node: at_s for node, at_s in self._stuck_s.items() if now_s - at_s < STUCK_S}
        late = tuple(node for node, at_s in self._let_go_s.items() if now_s - at_s > TAKEN_S)
        for node in late:
            log.warning("Ray has not taken node %s within %.0f s, it is used again", node, TAKEN_S)
            self._stuck_s[node] = now_s
        return late

    def _tell(self, request: Request) -> None:
        pause_s = RETRY_S if self.trouble else RESEND_S if request == self._told else 0.0
        busy = self._sending is not None and not self._sending.done()
        if busy or time.monotonic() - self._told_s < pause_s:
            return
        self._sending = asyncio.get_running_loop().create_task(self._carry(request))

    async def _carry(self, request: Request) -> None:
        try:
            await self._calls("ask", ANSWER_S, self._send, request)
            self._told, self.trouble = request, ""
        except (RayError, TimeoutError, OSError, RuntimeError, ValueError) as error:
            self.trouble = str(error) or repr(error)
            log.warning("Ray's autoscaler could not be told, it is tried again: %r", error)
        self._told_s = time.monotonic()
