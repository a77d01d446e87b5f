"""Free slots by node, as one decision hands them out, and which a replica gets. It never leaves that decision.

Nodes are kept in the order in which a replica of so many slots would take them, and only a node that gives slots is put
in order anew. So a decision that places many replicas looks at the pool once, not once a replica.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any

from ebbtide.pool.ids import NodeId, SlotId, node_of
from ebbtide.pool.lookup.index import awaited_slots, cached_by_identity, nodes_with
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.plan.placement import askable, lendable, placing_nodes

Rank = Callable[[NodeId], tuple[Any, ...] | None]
"""Where a node stands, less first, by what is free there now; None: it does not come into question."""


class FreeSlots:
    """Slots that nobody has been promised yet, in order of node and index."""

    def __init__(self, now_s: float, state: PoolState, but: Set[SlotId] = frozenset()) -> None:
        """Those of ``state``, but for these."""
        self._now_s, self._state = now_s, state
        by_node = state.free_on_nodes()
        self._by_node: dict[NodeId, Sequence[SlotId]] = dict(by_node)  # by name
        self._listed: tuple[SlotId, ...] | None = state.free_slots()
        self._count = len(self._listed)
        self._sizes = Counter(_sizes(by_node))  # nodes by how many are free there
        self._awaited: Counter[NodeId] = Counter()  # of slots that are not free yet: those that replicas wait for
        self._placing: set[NodeId] | None = None
        self._askable: Mapping[NodeId, int] | None = None
        self._orders: dict[tuple[str, int], _Order] = {}  # by what for, and how many slots it takes
        self.take(but)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SlotId]:
        return iter(self.listed())

    def listed(self) -> tuple[SlotId, ...]:
        """All of them; the same object until some are taken."""
        if self._listed is None:
            self._listed = tuple(chain.from_iterable(self._by_node.values()))
        return self._listed

    def has(self, slots: Iterable[SlotId]) -> bool:
        """Whether all of these are free."""
        return not self.missing(slots)

    def missing(self, slots: Iterable[SlotId]) -> list[SlotId]:
        """Which of these are not free."""
        by_node = self._by_node
        return [slot for slot in slots if slot not in by_node.get(node_of(slot), ())]

    def on(self, node: NodeId) -> tuple[SlotId, ...]:
        """Those of one node."""
        return tuple(self._by_node.get(node, ()))

    def by_node(self) -> Counter[NodeId]:
        """How many each node has; nodes without any are left out."""
        return Counter({node: len(slots) for node, slots in self._by_node.items() if slots})

    def fits(self, count: int) -> bool:
        """Whether some node has ``count`` of them."""
        return any(nodes and size >= count for size, nodes in self._sizes.items())

    def take(self, slots: Collection[SlotId]) -> None:
        """They are promised; those that are not free stay what they are."""
        taken = frozenset(slots)
        for node in {self._state.slots[slot].slot.node for slot in taken}:
            before = self._by_node.get(node, [])
            after = [slot for slot in before if slot not in taken]
            if len(after) < len(before):
                self._sizes[len(before)] -= 1
                self._sizes[len(after)] += 1
                self._count -= len(before) - len(after)
                self._by_node[node], self._listed = after, None
                self._changed(node)

    def place(self, slots: Collection[SlotId]) -> None:
        """They are promised to a replica. Its node takes no other one meanwhile, which could be mistaken for it."""
        nodes = {self._state.slots[slot].slot.node for slot in slots}
        self._busy().update(nodes)
        self.take(slots)
        for node in nodes:
            self._changed(node)

    def for_replica(self, count: int) -> tuple[SlotId, ...]:
        """``count`` slots of one node on which no replica is being placed; () if there are none.

        Slots that no parked job waits for go first, so that parked jobs can come back; then the fullest node, so that
        larger gangs find room elsewhere.
        """
        by_slot, busy = awaited_slots(self._state.jobs), self._busy()

        def claimed(slot: SlotId) -> int:
            return len(by_slot.get(slot, ()))

        def disturbs(node: NodeId) -> tuple[int, int, NodeId] | None:
            slots = self._by_node.get(node, ())
            if (
                len(slots) < count  # guard: all slots of a replica are on one node
                or node in busy  # guard: one placement on a node at a time
            ):
                return None
            claims = 0 if by_slot.keys().isdisjoint(slots) else sum(sorted(map(claimed, slots))[:count])
            return claims, len(slots), node

        node = self._first("replica", count, self._by_node, disturbs)
        if node is None:
            return ()
        slots = self._by_node[node]
        return tuple((sorted(slots, key=lambda slot: (claimed(slot), slot)) if by_slot else slots)[:count])

    def for_gang(self, count: int) -> tuple[SlotId, ...]:
        """``count`` of them on as few nodes as possible: as `placement.packed`, but nodes are looked at, not slots."""
        found: list[SlotId] = []
        for size in sorted((size for size, nodes in self._sizes.items() if nodes), reverse=True):
            for node in sorted(node for node, slots in self._by_node.items() if len(slots) == size):
                found += self._by_node[node][: count - len(found)]
                if len(found) == count:
                    return tuple(found)
        return tuple(found)

    def nearest(self, count: int) -> tuple[NodeId, tuple[SlotId, ...]] | None:
        """The node that lacks fewest of ``count`` slots, and its free ones; None if no node can come to have so many.

        Slots of jobs can be had in time, as far as their class lets them go; slots of replicas and strangers cannot.
        Nodes whose jobs may be asked for enough now go before those at which one of them must be waited for.
        """
        state = self._state
        leaving, may_leave = nodes_with(state.slots, SlotState.RECLAIMING), lendable(state)

        def lacks(node: NodeId) -> tuple[bool, bool, int, int, NodeId] | None:
            here, soon = len(self._by_node.get(node, ())), leaving.get(node, 0) - self._awaited.get(node, 0)
            # A single slot is waited for even where nobody may leave now: no other slot is kept idle meanwhile.
            # guard: room for a replica is made on a node that can come to have it
            if count > 1 and here + soon + may_leave.get(node, 0) < count:
                return None
            later = count > 1 and here < count and here + soon + self.may_be_asked(node) < count
            # A node that has enough, but is placing another replica, lacks nothing: it goes before all that lack some.
            return here < count, later, -here - soon, -here, node

        node = self._first(
            "lack",
            count,
            # guard: room for a replica is made on a node that does not drain
            (node for node in state.nodes if node not in state.draining),
            lacks,
        )
        return None if node is None else (node, self.on(node))

    def may_be_asked(self, node: NodeId) -> int:
        """How many slots of ``node`` the jobs there may be asked for now."""
        if self._askable is None:
            self._askable = askable(self._now_s, self._state)
        return self._askable.get(node, 0)

    def await_on(self, node: NodeId, count: int) -> None:
        """A replica waits for so many slots of ``node`` to become free: the next one counts on others."""
        self._awaited[node] += count
        self._changed(node)

    def _busy(self) -> set[NodeId]:
        if self._placing is None:
            self._placing = set(placing_nodes(self._state))
        return self._placing

    def _first(self, what: str, count: int, nodes: Iterable[NodeId], rank: Rank) -> NodeId | None:
        order = self._orders.get((what, count))
        if order is None:
            order = self._orders[what, count] = _Order(nodes, rank)
        return order.first()

    def _changed(self, node: NodeId) -> None:
        for order in self._orders.values():
            order.changed(node)


@cached_by_identity
def _sizes(by_node: Mapping[NodeId, Sequence[SlotId]]) -> Mapping[int, int]:
    """How many nodes have so many slots."""
    return Counter(map(len, by_node.values()))


class _Order:
    """Nodes by rank; whoever changes a node says so, and what was known of it before is passed over."""

    def __init__(self, nodes: Iterable[NodeId], rank: Rank) -> None:
        self._rank = rank
        ranked = ((rank(node), node) for node in nodes)
        self._heap = [(where, node) for where, node in ranked if where is not None]
        heapify(self._heap)

    def changed(self, node: NodeId) -> None:
        """It stands elsewhere now, or no longer at all."""
        where = self._rank(node)
        if where is not None:
            heappush(self._heap, (where, node))

    def first(self) -> NodeId | None:
        """The one that comes first."""
        while self._heap and self._heap[0][0] != self._rank(self._heap[0][1]):
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None
