"""What the loop shows to other threads.

A move is seen here only after the ledger has confirmed the events that lead to it: no process acts on a move that a
crash could undo.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.client.messages import RoutingTable
from ebbtide.pool.ids import EndpointName, NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.forecast.outlook import Outlook
from ebbtide_autoscaler.core.observe.alerts import Standstill, standstill
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.core.tick.tick import World
from ebbtide_autoscaler.journal.halt import Halt


@dataclass(slots=True)
class Published:
    """Written by the loop alone, each attribute replaced whole; read by every thread.

    Attributes:
        halt: why the loop stands still, a person's freeze apart.
        seen: what the last tick was told; None before the first one.
        waits: why each workload that waits does so, by its name.
        outlooks: what the forecast expects of each endpoint.
        settling_since_s: a new arbiter does not decide before all have reported; 0: they have.
        tick_took_s: how long the last tick took.
        left: nodes of a cluster that was taken down in good order; what was lost there is no news.
    """

    halt: Halt = field(default_factory=Halt)
    world: World = field(default_factory=lambda: World(PoolState(), Memory(), 0))
    seen: Observation | None = None
    waits: dict[str, str] = field(default_factory=dict)
    outlooks: Mapping[EndpointName, Outlook] = field(default_factory=dict)
    routing_table: RoutingTable = field(default_factory=RoutingTable)
    settling_since_s: float = 0.0
    tick_took_s: float = 0.0
    left: frozenset[NodeId] = frozenset()

    @property
    def state(self) -> PoolState:
        """The pool."""
        return self.world.state

    @property
    def frozen(self) -> str:
        """Why nothing moves, a person's freeze apart; "" if it does."""
        return self.halt.on.why

    @property
    def still(self) -> Standstill:
        """Why nothing is decided now, whatever the cause."""
        return standstill(self.state, self.halt.on, self.settling_since_s)
