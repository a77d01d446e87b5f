"""The cluster autoscaler and its machines, in the closed loop: it starts what is wished for and ends what was let go.

As Ray's with our provider: nodes that stay are asked for by name, new ones by their number; a node that the pool has
let go is ended a while later, unless somebody has work on it again. Machines come late, or not at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ebbtide.pool.events import Fact, NodeDraining, NodeUndrained
from ebbtide.pool.ids import NodeId
from ebbtide.pool.rules.drain import UNNEEDED, let_go, occupants, unneeded_nodes
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster.size import DesiredSize, SizeConfig, SizeMemory, cluster_size
from ebbtide_autoscaler.core.plan.inputs import Memory

if TYPE_CHECKING:
    from tests.autoscaler.closed_loop import Loop

COMES_S, GOES_S = (1.0, 12.0), (0.5, 8.0)


@dataclass(slots=True)
class Sizing:
    """What one arbiter's life carries of it; its successor begins anew."""

    memory: SizeMemory = field(default_factory=SizeMemory)


class SimProvider:
    """Of one pool. ``elastic``: nodes that it has started, or may end; ``never_come``: what it starts fails."""

    def __init__(self, loop: "Loop", config: SizeConfig, elastic: set[NodeId]) -> None:
        self.elastic, self.config = elastic, config
        self.never_come = False
        self.started = self.ended = 0
        self._loop, self._coming, self._going = loop, 0, set[NodeId]()

    def tick(self, sizing: Sizing, now_s: float, state: PoolState, memory: Memory) -> tuple[Fact, ...]:
        """Decide as the arbiter does, carry it out, and give the facts to take in."""
        here = frozenset(node for node in self.elastic if node in self._loop.visible)
        aims = {name: one.aim for name, one in memory.endpoints.items()}
        wish, sizing.memory = cluster_size(now_s, state, aims, here, sizing.memory, self.config)
        wrong = list(self._wrong(state, wish, here))
        assert not wrong, self._loop.story(f"size of the cluster: {'; '.join(wrong)}; {wish}")
        self._start(state, wish)
        for node in let_go(state) & here - self._going:
            self._going.add(node)
            self._loop.clock.call_later(self._loop.random.uniform(*GOES_S), lambda node=node: self._end(node))  # type: ignore[misc]
        facts: list[Fact] = [NodeUndrained(node) for node in wish.back]
        return (*facts, *(NodeDraining(node, f"{UNNEEDED}{wish.reason}") for node in wish.going))

    def _wrong(self, state: PoolState, wish: DesiredSize, elastic: frozenset[NodeId]) -> Iterator[str]:
        """What it may not wish for, whatever it thinks is needed."""
        stay = len([node for node in state.nodes if node not in unneeded_nodes(state)]) + len(wish.back)
        if wish.new and stay + wish.new > self.config.nodes_max:
            yield f"{stay} nodes and {wish.new} more are beyond {self.config.nodes_max}"
        if wish.going and stay - len(wish.going) < self.config.nodes_min:
            yield f"{len(wish.going)} of {stay} nodes go, {self.config.nodes_min} at least stay"
        for node in wish.going:
            if occupants(state, node):
                yield f"{node} goes, and {occupants(state, node)} are on it"
            if node not in elastic:
                yield f"{node} goes, which nobody can end"
        if stay + wish.new < self.config.nodes_min:
            yield f"{stay} nodes and {wish.new} more are fewer than {self.config.nodes_min}"

    def _start(self, state: PoolState, wish: DesiredSize) -> None:
        named = {node for node in state.nodes if node not in unneeded_nodes(state) or node in wish.back}
        unnamed = [node for node in self.elastic & set(self._loop.cluster.nodes) if node not in named]
        ready = [node for node in unnamed if node not in state.nodes]  # just come, and not in the ledger yet
        for _ in range(wish.new - self._coming - len(ready)):
            self._coming += 1
            self._loop.clock.call_later(self._loop.random.uniform(*COMES_S), self._comes)

    def _comes(self) -> None:
        self._coming -= 1
        if not self.never_come:
            self.started += 1
            node = f"e{self.started}"
            self.elastic.add(NodeId(node))
            self._loop.add_node(node, self.config.node_slots)

    def _end(self, node: NodeId) -> None:
        """Idle it must be, in the ledger and in truth."""
        self._going.discard(node)
        loop = self._loop
        if node not in let_go(loop.state) or node not in loop.cluster.nodes or node not in loop.visible:
            return
        machines = loop.cluster.machines
        there = [one for slot in machines.slots_of(node) for one in machines.memory[slot]]
        assert not there, loop.story(f"{node} was let go, and {there} are on it")
        self.ended += 1
        loop.lose_node(node, seen_after_s=loop.random.uniform(0.1, 2.0))
