"""Which replicas gateways may send requests to. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from ebbtide.client.messages import ReplicaPhase, RoutingTable, SeatRoute, Unavailable
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.observe.observation import Observation


def routes(state: PoolState, seen: Observation) -> dict[str, tuple[SeatRoute, ...]]:
    """The seats that may be sent requests, by endpoint."""
    table: dict[str, list[SeatRoute]] = {str(name): [] for name in state.endpoints}
    for seat in state.seats.values():
        if seat.state is not SeatState.READY:  # guard: a draining, starting or stopping seat is in no table
            continue
        heard = seen.replicas.get(seat.id)
        if (
            heard is None
            # guard: a replica of an earlier lease is in no table
            or heard.report.lease_epoch != seat.epoch
        ):
            continue
        if (
            heard.report.phase is ReplicaPhase.READY  # guard: a replica that does not answer yet is in no table
            and heard.report.url
        ):
            table[str(seat.endpoint)].append(SeatRoute(seat.id, heard.report.replica, heard.report.url))
    return {name: tuple(seats) for name, seats in table.items()}


def next_routes(
    last: RoutingTable,
    state: PoolState,
    seen: Observation,
    epoch: int,
    unavailable: Mapping[str, Unavailable] = MappingProxyType({}),
) -> RoutingTable:
    """``last`` while it still holds, else a new one; versions of a later epoch are higher than all before."""
    found = routes(state, seen)
    if last.version and found == dict(last.endpoints) and unavailable == last.unavailable:
        return last
    return RoutingTable(epoch * 1_000_000 + last.version % 1_000_000 + 1, found, dict(unavailable))
