"""Events of endpoints and their seats."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    EndpointDeclared,
    EndpointRemoved,
    Event,
    GrantSeat,
    SeatDied,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
)
from ebbtide.pool.handlers.slot_handlers import move_slot, occupy, reclaim, slot_record
from ebbtide.pool.ids import EndpointName, SeatId, endpoint_of
from ebbtide.pool.lookup import index
from ebbtide.pool.lookup.records import having, without
from ebbtide.pool.state import EndpointRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SEAT_PARKS, SEAT_TABLE, SeatState, SlotState, advance

SOUND_S = 60.0  # a replica that was ready for so long ends a series of failures: it is the longest wait within one


def seat_record(state: PoolState, seat: SeatId) -> SeatRecord:
    """The record of ``seat``; a cold one if nothing ever was there.

    Raises:
        IllegalTransition: its endpoint is not of the pool.
    """
    known = state.seats.get(seat)
    if known is not None:
        return known
    endpoint = endpoint_of(seat)
    if endpoint not in state.endpoints:
        raise IllegalTransition(f"seat {seat} belongs to no endpoint of the pool")
    return SeatRecord(id=seat, endpoint=endpoint)


def put_seat(state: PoolState, record: SeatRecord) -> PoolState:
    """``state`` with this record in place of the seat's last one."""
    return replace(state, seats=having(state.seats, {record.id: record}))


def move_seat(record: SeatRecord, then: SeatState, at_s: float) -> SeatRecord:
    """``record`` in its next state.

    Raises:
        IllegalTransition: the table has no such edge.
    """
    advance(SEAT_TABLE, f"seat {record.id}", record.state, then)
    return replace(record, state=then, since_s=at_s)


def _must_be_cold(state: PoolState, endpoint: EndpointName, why: str) -> None:
    others = occupied_seats(state, endpoint)
    if others:  # guard: an endpoint goes, or changes its slots, without a replica
        raise IllegalTransition(f"endpoint {endpoint} {why}: {', '.join(others)} still has a replica")


def occupied_seats(state: PoolState, endpoint: EndpointName) -> tuple[SeatId, ...]:
    """The endpoint's seats with a replica, a parked one too."""
    return tuple(seat.id for seat in state.seats_of(endpoint) if seat.state is not SeatState.COLD)


def _declared(state: PoolState, event: Event, body: EndpointDeclared) -> PoolState:
    known = state.endpoints.get(body.spec.name)
    if known is not None and known.spec.slots_per_replica != body.spec.slots_per_replica:
        _must_be_cold(state, body.spec.name, f"cannot change to {body.spec.slots_per_replica} slots per replica")
    record = replace(known, spec=body.spec) if known else EndpointRecord(body.spec)
    if known is not None and known.spec.revision != body.spec.revision:
        record = replace(record, park_failed_s=0.0, park_error="")  # of a replica that is to go
    return replace(state, endpoints={**state.endpoints, body.spec.name: record})


def _removed(state: PoolState, event: Event, body: EndpointRemoved) -> PoolState:
    if body.endpoint not in state.endpoints:
        raise IllegalTransition(f"endpoint {body.endpoint} is not in the pool")
    _must_be_cold(state, body.endpoint, "cannot go")
    return replace(
        state,
        endpoints={name: record for name, record in state.endpoints.items() if name != body.endpoint},
        seats=without(state.seats, [seat.id for seat in state.seats_of(body.endpoint)]),
    )


def _grant(state: PoolState, event: Event, body: GrantSeat) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.PLACING, event.at_s)
    spec = state.endpoints[record.endpoint].spec
    if record.revision != spec.revision:
        moved = replace(moved, last_error="", failure=None)
    if len(body.slots) != spec.slots_per_replica:  # guard: a replica has as many slots as it needs
        raise IllegalTransition(f"seat {body.seat} needs {spec.slots_per_replica} slots, not {len(body.slots)}")
    nodes = {slot_record(state, slot).slot.node for slot in body.slots}
    if len(nodes) > 1:  # guard: a replica's slots are on one node
        raise IllegalTransition(f"seat {body.seat} needs all its slots on one node, not on {sorted(nodes)}")
    for slot, node in index.in_state(state.slots, SlotState.OPENING).items():
        if node in nodes:  # guard: one replica is placed on a node at a time
            other = state.slots[slot].occupant
            raise IllegalTransition(f"seat {body.seat} must wait: {other} is being placed on that node")
    epoch = state.next_epoch
    fenced = spec.warm_replicas > 0  # it is to leave the GPU and live on: Ray's GPU cannot be given back by an actor
    then = SlotState.LEASED if fenced else SlotState.OPENING
    state = occupy(state, body.slots, body.seat, then, event.at_s)
    moved = replace(
        moved,
        slots=body.slots,
        fenced=fenced,
        park_bytes=0,
        cannot_park="",
        epoch=epoch,
        granted_s=event.at_s,
        replica="",
        revision=spec.revision,
        # guard: failures of another revision say nothing of this one
        failures=record.failures if record.revision == spec.revision else 0,  # those of another say nothing of this
        permanent=record.permanent and record.revision == spec.revision,
        cause=event.id,
    )
    return put_seat(state, moved)


def _landed(state: PoolState, event: Event, body: SeatLanded) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.STARTING, event.at_s)
    open_now = record.slots if not record.fenced else ()
    leased = {slot: move_slot(slot_record(state, slot), SlotState.LEASED, event.at_s) for slot in open_now}
    after = replace(state, slots=having(state.slots, leased)) if leased else state
    return put_seat(after, replace(moved, replica=body.replica, starts=record.starts + 1))


def _ready(state: PoolState, event: Event, body: SeatReady) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.READY, event.at_s)
    woke = record.state is SeatState.WAKING
    moved = replace(
        moved,
        ready_since_s=event.at_s,
        replica=body.replica or record.replica,
        parks=False,
        park_bytes=body.park_bytes,
        cannot_park=body.cannot_park,
        wakes=record.wakes + woke,
    )
    endpoint, took_s = state.endpoints[record.endpoint], event.at_s - record.granted_s
    endpoint = replace(endpoint, wake_s=took_s) if woke else replace(endpoint, start_s=took_s)
    return put_seat(replace(state, endpoints={**state.endpoints, record.endpoint: endpoint}), moved)


def _drain(state: PoolState, event: Event, body: DrainSeat) -> PoolState:
    record = seat_record(state, body.seat)
    then = SeatState.DRAINING if record.state is SeatState.READY else SeatState.STOPPING
    if record.state is SeatState.DRAINING:  # guard: a seat is drained once
        raise IllegalTransition(f"seat {body.seat} is draining already")
    moved = replace(move_seat(record, then, event.at_s), asked_s=event.at_s, cause=event.id)
    # guard: a replica that was asked to leave has not failed
    if record.state is SeatState.READY:  # it did all that was asked of it, however short the tide was
        moved = replace(moved, failures=0, permanent=False, last_error="", failure=None)
    return put_seat(_give_back(state, record, event.at_s), moved)


def _give_back(state: PoolState, record: SeatRecord, at_s: float) -> PoolState:
    """Tell the seat to leave what it holds; what a warm one names may be somebody else's by now."""
    return reclaim(state, state.held_by(record.id, record.epoch), at_s)


def is_sound(record: SeatRecord, now_s: float) -> bool:
    """Whether the seat's replica has been ready for long enough that earlier failures mean nothing any more."""
    return (
        record.state is SeatState.READY
        and now_s - record.ready_since_s >= SOUND_S  # guard: failures outlive a short READY
    )


def _failed(before: SeatRecord, after: SeatRecord, why: str, event: Event, *, permanent: bool = False) -> SeatRecord:
    failures = 1 if is_sound(before, event.at_s) else before.failures + 1
    return replace(after, failures=failures, permanent=permanent, last_error=why, failure=event.id)


def _died(state: PoolState, event: Event, body: SeatDied) -> PoolState:
    record = seat_record(state, body.seat)
    if record.state is not SeatState.READY:  # guard: only a ready replica dies into a restart
        raise IllegalTransition(
            f"seat {body.seat} is {record.state.value}: only a ready replica can die into a restart"
        )
    moved = move_seat(record, SeatState.STARTING, event.at_s)
    moved = replace(moved, granted_s=event.at_s, replica="")  # its successor has not been heard yet
    return put_seat(state, _failed(record, moved, body.why, event))


def _stopped(state: PoolState, event: Event, body: SeatStopped) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.STOPPING, event.at_s)
    moved = replace(moved, asked_s=record.asked_s if record.state is SeatState.DRAINING else event.at_s)
    node_died = any(slot_record(state, slot).state is SlotState.LOST for slot in record.slots)
    # guard: a death that was noticed before its node's is no failure
    if node_died and record.state is SeatState.STARTING and not record.replica:
        moved = replace(moved, failures=max(0, record.failures - 1))  # what it died of a moment ago was its node
    elif record.state is SeatState.WARM:
        pass  # it had parked, and could have woken: its death says nothing of the next park, nor of the next start
    elif record.state in SEAT_PARKS and not node_died and body.failed:  # this says nothing of the next start
        endpoint = state.endpoints[record.endpoint]
        if record.revision == endpoint.spec.revision:  # nor of the replicas of another revision
            endpoint = replace(endpoint, park_failed_s=event.at_s, park_error=body.why)
        state = replace(state, endpoints={**state.endpoints, record.endpoint: endpoint})
    elif (
        record.state is not SeatState.DRAINING
        and not node_died  # guard: a dead node is no failure of its replica
        and body.failed  # guard: a landing in the wrong place is no failure of the replica
    ):
        moved = _failed(record, moved, body.why, event, permanent=body.permanent)
    return put_seat(_give_back(state, record, event.at_s), moved)


def _gone(state: PoolState, event: Event, body: SeatGone) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.COLD, event.at_s)
    held = state.held_by(body.seat, record.epoch)
    if held:  # guard: a seat is cold when its slots are proven free
        raise IllegalTransition(f"seat {body.seat} is said to be gone, but {', '.join(held)} is not proven free")
    return put_seat(state, replace(moved, slots=(), replica="", parks=False))


HANDLERS: dict[type[Body], Callable[[PoolState, Event, Any], PoolState]] = {
    EndpointDeclared: _declared,
    EndpointRemoved: _removed,
    GrantSeat: _grant,
    SeatLanded: _landed,
    SeatReady: _ready,
    DrainSeat: _drain,
    SeatDied: _died,
    SeatStopped: _stopped,
    SeatGone: _gone,
}
