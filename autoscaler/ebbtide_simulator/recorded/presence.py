"""Which nodes a pool had, and when, folded from its ledger's events. Pure.

A simulated pool has so many nodes from the start on. One that was not there yet, or no longer, is one that is down: so
slots over time are as they were. A node that comes after another has gone has its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import gcd, inf

from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState
from ebbtide_simulator.model.failures import Failure

FOR_EVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Span:
    """From when until when a node was there, in seconds since 1970; infinity: it still is."""

    node: NodeId
    from_s: float
    until_s: float = inf


@dataclass(slots=True)
class Presence:
    """When each node with slots was there.

    Attributes:
        spans: by place and in order.
        host_bytes: what parked workers might use on one, the most of all.
        any_s: when the first slot was found.
    """

    spans: list[list[Span]] = field(default_factory=list)
    host_bytes: int = 0
    any_s: float | None = None
    _place: dict[NodeId, int] = field(default_factory=dict)
    _slots: dict[NodeId, int] = field(default_factory=dict)

    def take(self, at_s: float, before: PoolState, after: PoolState) -> None:
        """An event has led from one state to another."""
        if before.slots is after.slots and before.nodes is after.nodes:
            return
        here = _slots_of(after)
        for node, count in here.items():
            self._slots[node] = max(count, self._slots.get(node, 0))
            if node not in self._place:
                self._come(node, at_s)
        for node in self._place.keys() - here.keys():
            mine = self.spans[self._place.pop(node)]
            mine[-1] = replace(mine[-1], until_s=at_s)
        self.host_bytes = max([self.host_bytes, *after.nodes.values()])

    def _come(self, node: NodeId, at_s: float) -> None:
        self.any_s = at_s if self.any_s is None else self.any_s
        taken = set(self._place.values())
        place = next((one for one in range(len(self.spans)) if one not in taken), len(self.spans))
        if place == len(self.spans):
            self.spans.append([])
        self.spans[place].append(Span(node, at_s))
        self._place[node] = place

    def shape(self) -> tuple[int, int]:
        """Nodes, and slots of each: nodes that differ are cut into as many equal ones as have all their slots."""
        return sum(map(self._parts, self.spans)), self.slots_each

    @property
    def slots_each(self) -> int:
        """The most slots that every node is made of."""
        return reduce(gcd, self._slots.values())

    @property
    def sizes(self) -> Sequence[int]:
        """Slots of a node, each size once."""
        return sorted(set(self._slots.values()))

    def absences(self, begins_s: float, ends_s: float, nodes: int) -> tuple[Failure, ...]:
        """What stands for the time in which a node was not there, of the first so many nodes; others always are."""
        found, number = list[Failure](), 0
        for mine in self.spans:
            for part in range(self._parts(mine)):
                there = [one for one in mine if self._slots[one.node] // self.slots_each > part]
                if number < nodes:
                    found += _gaps(there, begins_s, ends_s, number)
                number += 1
        return tuple(sorted(found, key=lambda one: (one.at_s, one.node)))

    def _parts(self, spans: Sequence[Span]) -> int:
        return max(self._slots[span.node] for span in spans) // self.slots_each


def _gaps(spans: Sequence[Span], begins_s: float, ends_s: float, number: int) -> list[Failure]:
    gone_s, found = begins_s, list[Failure]()
    for one in (*spans, Span(NodeId(""), ends_s + FOR_EVER_S)):
        if one.from_s > gone_s and gone_s < ends_s:
            found.append(Failure(gone_s - begins_s, number, one.from_s - gone_s))
        gone_s = max(gone_s, one.until_s)
    return found


def _slots_of(state: PoolState) -> Mapping[NodeId, int]:
    """How many slots each node has that are not lost."""
    found: dict[NodeId, int] = {}
    for record in state.slots.values():
        if record.state is not SlotState.LOST:
            found[record.slot.node] = found.get(record.slot.node, 0) + 1
    return found
