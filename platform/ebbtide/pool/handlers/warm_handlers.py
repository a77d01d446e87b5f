"""Events of replicas that give up their GPUs and live on: parked, woken.

A warm replica has no part in its slots: whoever is granted them meanwhile uses them as any others. It is woken on
exactly these, when all are free, and never on behalf of a configuration that it was not started with.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import Body, Event, ParkSeat, SeatDrained, SeatParked, WakeSeat
from ebbtide.pool.handlers.seat_handlers import move_seat, put_seat, seat_record
from ebbtide.pool.handlers.slot_handlers import occupy, reclaim, slot_record
from ebbtide.pool.ids import SeatId
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState, SlotState


def _park(state: PoolState, event: Event, body: ParkSeat) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.DRAINING, event.at_s)
    _check_may_park(state, body.seat, record)
    moved = replace(moved, parks=True, asked_s=event.at_s, cause=event.id, failures=0, last_error="")
    return put_seat(reclaim(state, record.slots, event.at_s), moved)


def _check_may_park(state: PoolState, name: SeatId, record: SeatRecord) -> None:
    if not record.fenced or not record.park_bytes:
        why = record.cannot_park or "it was started to end, not to park"
        raise IllegalTransition(f"seat {name} cannot park: {why}")
    node = slot_record(state, record.slots[0]).slot.node
    lent, budget_bytes = state.parked_bytes(node) + state.warm_bytes(node), state.nodes.get(node, 0)
    if lent + record.park_bytes > budget_bytes:
        raise IllegalTransition(
            f"seat {name} cannot park: it needs {record.park_bytes} bytes of host memory, node {node} lends "
            f"{budget_bytes} and {lent} are lent"
        )


def _drained(state: PoolState, event: Event, body: SeatDrained) -> PoolState:
    record = seat_record(state, body.seat)
    if not record.parks:
        raise IllegalTransition(f"seat {body.seat} is not to park: it is {record.state.value}")
    return put_seat(state, move_seat(record, SeatState.PARKING, event.at_s))


def _parked(state: PoolState, event: Event, body: SeatParked) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.WARM, event.at_s)
    held = state.held_by(body.seat, record.epoch)
    if held:
        raise IllegalTransition(f"seat {body.seat} is said to be parked, but {', '.join(held)} is not proven free")
    return put_seat(state, moved)


def _wake(state: PoolState, event: Event, body: WakeSeat) -> PoolState:
    record = seat_record(state, body.seat)
    moved = move_seat(record, SeatState.WAKING, event.at_s)
    spec = state.endpoints[record.endpoint].spec
    if spec.revision and record.revision != spec.revision:  # as `is_stale` of the policy
        raise IllegalTransition(
            f"seat {body.seat} is not woken: it runs revision {record.revision or 'unknown'}, not {spec.revision}"
        )
    epoch = state.next_epoch
    state = occupy(state, record.slots, body.seat, SlotState.LEASED, event.at_s)
    return put_seat(state, replace(moved, epoch=epoch, granted_s=event.at_s, cause=event.id))


HANDLERS: dict[type[Body], Callable[[PoolState, Event, Any], PoolState]] = {
    ParkSeat: _park,
    WakeSeat: _wake,
    SeatDrained: _drained,
    SeatParked: _parked,
}
