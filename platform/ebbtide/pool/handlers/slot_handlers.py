"""Events of the pool, its nodes and slots, and the changes of slots that the other handlers share."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    Event,
    NodeDraining,
    NodeForgotten,
    NodeFound,
    NodeLost,
    NodeUndrained,
    PoolFrozen,
    PoolUnfrozen,
    SlotForeign,
    SlotFound,
    SlotFreed,
    SlotUnfenced,
)
from ebbtide.pool.ids import Epoch, JobName, NodeId, SeatId, SlotId
from ebbtide.pool.lookup import index
from ebbtide.pool.lookup.records import having, without
from ebbtide.pool.rules.record_retention import is_gone
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import OCCUPIED, SLOT_TABLE, SlotState, advance


def slot_record(state: PoolState, slot: SlotId) -> SlotRecord:
    """The record of ``slot``.

    Raises:
        IllegalTransition: the pool has no such slot.
    """
    try:
        return state.slots[slot]
    except KeyError:
        raise IllegalTransition(f"slot {slot} is not in the pool") from None


def move_slot(record: SlotRecord, then: SlotState, at_s: float) -> SlotRecord:
    """``record`` in its next state; occupant and epoch stay while the slot is occupied, and go otherwise."""
    advance(SLOT_TABLE, f"slot {record.slot.id}", record.state, then)
    if then in OCCUPIED:
        return replace(record, state=then, since_s=at_s)
    return replace(record, state=then, since_s=at_s, occupant=None, foreign="")


def occupy(
    state: PoolState, slots: tuple[SlotId, ...], who: JobName | SeatId, then: SlotState, at_s: float
) -> PoolState:
    """Lease ``slots``, all free, to ``who`` under the next epoch.

    Args:
        then: OPENING where the fences are to go, LEASED where they stay.

    Raises:
        IllegalTransition: a slot is named twice, unknown, not free, or on a draining node.
    """
    if (
        not slots
        # guard: no slot is granted twice at once
        or len(set(slots)) != len(slots)
    ):
        raise IllegalTransition(f"{who} cannot be granted {slots}: no slots, or one of them twice")
    changed: dict[SlotId, SlotRecord] = {}
    for slot in slots:
        record = slot_record(state, slot)
        if record.state is not SlotState.FREE:  # guard: only a free slot is granted
            raise IllegalTransition(f"{who} cannot be granted slot {slot}: it is {record.state.value}")
        if record.slot.node in state.draining:  # guard: no slot of a draining node is granted
            raise IllegalTransition(f"{who} cannot be granted slot {slot}: node {record.slot.node} is draining")
        moved = move_slot(record, then, at_s)
        changed[slot] = replace(moved, occupant=who, epoch=state.next_epoch)
    return replace(
        state,
        slots=having(state.slots, changed),
        next_epoch=Epoch(state.next_epoch + 1),  # guard: every lease has an epoch of its own
    )


def reclaim(state: PoolState, slots: Iterable[SlotId], at_s: float) -> PoolState:
    """Tell the occupants of ``slots`` to go; those that are already going, or lost, stay as they are."""
    records = (slot_record(state, slot) for slot in slots)
    going = {record.slot.id: record for record in records if record.state in (SlotState.LEASED, SlotState.OPENING)}
    moved = {slot: move_slot(one, SlotState.RECLAIMING, at_s) for slot, one in going.items()}
    return replace(state, slots=having(state.slots, moved)) if moved else state


def _put(state: PoolState, record: SlotRecord) -> PoolState:
    return replace(state, slots=having(state.slots, {record.slot.id: record}))


def _node_found(state: PoolState, event: Event, body: NodeFound) -> PoolState:
    if state.parked_bytes(body.node) > body.host_bytes:  # guard: a node cannot take back host memory that is lent
        raise IllegalTransition(
            f"node {body.node} cannot lend only {body.host_bytes} bytes now: parked workers use "
            f"{state.parked_bytes(body.node)} there"
        )
    return replace(state, nodes={**state.nodes, body.node: body.host_bytes})


def _node_lost(state: PoolState, event: Event, body: NodeLost) -> PoolState:
    if body.node not in state.nodes:
        raise IllegalTransition(f"node {body.node} is not in the pool")
    here = ((slot, state.slots[slot]) for slot in index.by_node(state.slots, body.node))
    lost = {slot: move_slot(one, SlotState.LOST, event.at_s) for slot, one in here if one.state is not SlotState.LOST}
    nodes = {node: host_bytes for node, host_bytes in state.nodes.items() if node != body.node}
    return replace(_without_drain(state, body.node), slots=having(state.slots, lost), nodes=nodes)


def _node_forgotten(state: PoolState, event: Event, body: NodeForgotten) -> PoolState:
    if not is_gone(state, body.node):
        raise IllegalTransition(
            f"node {body.node} is not forgotten: it is alive, or not known, or a job or seat names its slots"
        )
    known = index.by_node(state.slots, body.node)
    if set(body.slots) != set(known):
        raise IllegalTransition(f"node {body.node} is not forgotten: it had {', '.join(known)}")
    return replace(state, slots=without(state.slots, known))


def _node_draining(state: PoolState, event: Event, body: NodeDraining) -> PoolState:
    if body.node not in state.nodes:
        raise IllegalTransition(f"node {body.node} is not in the pool")
    if state.draining.get(body.node) == body.reason:  # guard: the same drain is refused a second time
        raise IllegalTransition(f"node {body.node} is draining already")
    return replace(
        state,
        draining={**state.draining, body.node: body.reason},
        # guard: a drain knows which leases are older than it
        drained_from={body.node: state.next_epoch, **state.drained_from},  # another reason is no new drain
    )


def _node_undrained(state: PoolState, event: Event, body: NodeUndrained) -> PoolState:
    if body.node not in state.draining:
        raise IllegalTransition(f"node {body.node} is not draining")
    return _without_drain(state, body.node)


def _without_drain(state: PoolState, node: NodeId) -> PoolState:
    return replace(
        state,
        draining={name: why for name, why in state.draining.items() if name != node},
        drained_from={name: epoch for name, epoch in state.drained_from.items() if name != node},
    )


def _frozen(state: PoolState, event: Event, body: PoolFrozen) -> PoolState:
    if state.frozen:  # guard: a second freeze is refused
        raise IllegalTransition(f"the pool is frozen already: {state.frozen}")
    if not body.reason:  # guard: no freeze goes without a reason
        raise IllegalTransition("the pool is frozen for a reason only")
    return replace(state, frozen=body.reason, frozen_since_s=event.at_s)


def _unfrozen(state: PoolState, event: Event, body: PoolUnfrozen) -> PoolState:
    if not state.frozen:
        raise IllegalTransition("the pool is not frozen")
    return replace(state, frozen="", frozen_since_s=0.0)


def _slot_found(state: PoolState, event: Event, body: SlotFound) -> PoolState:
    if body.slot.node not in state.nodes:
        raise IllegalTransition(f"slot {body.slot.id} names the unknown node {body.slot.node}")
    known = state.slots.get(body.slot.id)
    if known is None:
        return _put(state, SlotRecord(body.slot, SlotState.UNFENCED, since_s=event.at_s))
    moved = move_slot(known, SlotState.UNFENCED, event.at_s)
    if known.state is not SlotState.LOST:  # guard: only a lost slot is found again
        raise IllegalTransition(f"slot {body.slot.id} is {known.state.value}: it was not lost")
    counts_on_it = [name for name, job in state.jobs.items() if body.slot.id in job.gang]
    counts_on_it += [name for name, seat in state.seats.items() if body.slot.id in seat.slots]  # type: ignore[misc]
    # guard: a lost slot comes back when its gang or seat has given it up
    if counts_on_it:  # it was lost under them, and they have not noticed yet
        raise IllegalTransition(f"slot {body.slot.id} comes back when {', '.join(counts_on_it)} has given it up")
    return _put(state, replace(moved, slot=body.slot))


def free_slots(state: PoolState, slots: Iterable[SlotId], at_s: float) -> PoolState:
    """``state`` with these slots proven empty: as so many events, by one copy.

    Raises:
        IllegalTransition: one is unknown, or cannot become free.
    """
    empty = {slot: move_slot(slot_record(state, slot), SlotState.FREE, at_s) for slot in slots}
    return replace(state, slots=having(state.slots, empty))


def _slot_freed(state: PoolState, event: Event, body: SlotFreed) -> PoolState:
    return free_slots(state, (body.slot,), event.at_s)


def _slot_unfenced(state: PoolState, event: Event, body: SlotUnfenced) -> PoolState:
    record = slot_record(state, body.slot)
    if record.state is SlotState.LOST:  # guard: a lost slot comes back by being found only
        raise IllegalTransition(f"slot {body.slot} is lost: only finding it again brings it back")
    return _put(state, move_slot(record, SlotState.UNFENCED, event.at_s))


def _slot_foreign(state: PoolState, event: Event, body: SlotForeign) -> PoolState:
    moved = move_slot(slot_record(state, body.slot), SlotState.FOREIGN, event.at_s)
    return _put(state, replace(moved, foreign=body.who))


HANDLERS: dict[type[Body], Callable[[PoolState, Event, Any], PoolState]] = {
    NodeFound: _node_found,
    NodeLost: _node_lost,
    NodeForgotten: _node_forgotten,
    NodeDraining: _node_draining,
    NodeUndrained: _node_undrained,
    PoolFrozen: _frozen,
    PoolUnfrozen: _unfrozen,
    SlotFound: _slot_found,
    SlotFreed: _slot_freed,
    SlotUnfenced: _slot_unfenced,
    SlotForeign: _slot_foreign,
}
