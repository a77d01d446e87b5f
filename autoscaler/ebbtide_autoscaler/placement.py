"""Which free slots a replica or a gang gets. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from ebbtide.pool.ids import JobName, NodeId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState


def for_replica(state: PoolState, free: Iterable[SlotId], count: int) -> tuple[SlotId, ...]:
    """``count`` free slots of one node on which nothing else is being placed; () if there are none.

    Slots that no parked job claims go first, so that parked jobs can come back; then the fullest node, so that
    larger gangs find room elsewhere.
    """
    by_node: dict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    busy = {record.slot.node for record in state.slots.values() if record.state is SlotState.OPENING}
    fitting = [slots for node, slots in by_node.items() if node not in busy and len(slots) >= count]
    if not fitting:
        return ()

    def claims(slot: SlotId) -> int:
        return len(state.claims_on(slot))

    def disturbs(slots: list[SlotId]) -> tuple[int, int]:
        return sum(sorted(claims(slot) for slot in slots)[:count]), len(slots)

    best = min(fitting, key=disturbs)
    return tuple(sorted(best, key=lambda slot: (claims(slot), slot))[:count])


def unclaimed(state: PoolState, free: Iterable[SlotId], job: JobName) -> tuple[SlotId, ...]:
    """The free slots that no other parked job of at least this job's priority waits for."""
    priority = state.jobs[job].spec.priority

    def mine(slot: SlotId) -> bool:
        return all(name == job or state.jobs[name].spec.priority < priority for name in state.claims_on(slot))

    return tuple(slot for slot in free if mine(slot))


def packed(state: PoolState, free: Iterable[SlotId], count: int) -> tuple[SlotId, ...]:
    """``count`` slots for a gang, on as few nodes as possible."""
    by_node: dict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    chosen: list[SlotId] = []
    for node in sorted(by_node, key=lambda name: (-len(by_node[name]), name)):
        chosen += by_node[node][: count - len(chosen)]
    return tuple(chosen)
