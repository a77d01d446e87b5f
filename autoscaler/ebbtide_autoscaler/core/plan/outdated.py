"""Replicas that serve well and must go all the same: their node drains, or they run an old revision. Pure."""

from ebbtide.pool.ids import EndpointName, NodeId, node_of
from ebbtide.pool.state import PoolState, SeatRecord


def node_of_seat(seat: SeatRecord) -> NodeId:
    """The node of a seat that has slots; all of them are on one."""
    return node_of(seat.slots[0])


def is_on_draining(state: PoolState, seat: SeatRecord) -> bool:
    """Whether the seat has slots on a node that is to be emptied."""
    return bool(seat.slots) and node_of_seat(seat) in state.draining


def is_stale(state: PoolState, seat: SeatRecord) -> bool:
    """Whether the seat's replica was started with something else than a new one would be."""
    revision = state.endpoints[seat.endpoint].spec.revision
    return bool(revision) and seat.revision != revision


def stale_seats(state: PoolState, endpoint: EndpointName) -> tuple[SeatRecord, ...]:
    """The endpoint's seats for which :func:`is_stale` holds."""
    revision = state.endpoints[endpoint].spec.revision
    mine = state.seats_of(endpoint) if revision else ()
    return tuple(seat for seat in mine if seat.revision != revision)


def why_outdated(state: PoolState, seat: SeatRecord) -> str:
    """Why the seat's replica is to be replaced; empty if it is not."""
    if is_on_draining(state, seat):
        node = node_of_seat(seat)
        return f"node {node[:8]} drains ({state.draining[node]})"
    if is_stale(state, seat):
        new = state.endpoints[seat.endpoint].spec.revision
        return f"it runs revision {seat.revision or 'unknown'}, {new} is in force"
    return ""
