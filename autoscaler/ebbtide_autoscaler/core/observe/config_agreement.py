"""What makes the pool agree with its file: ``agree(config, state) -> events``. Pure and level-triggered.

Asked every tick, so that an arbiter that was killed right after a file was journaled finishes what it meant: nothing
but the file itself must be remembered. An endpoint that the file no longer names retires: no replica of it starts any
more, those that run drain, and when the last one is gone so is the endpoint. One whose replicas are to have another
number of slots retires in the same way and comes back with the new number.
"""

from collections.abc import Iterator
from dataclasses import replace

from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.events import Body, DrainSeat, EndpointDeclared, EndpointRemoved
from ebbtide.pool.handlers.seat_handlers import occupied_seats
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.plural import many
from ebbtide.pool.state import EndpointRecord, PoolState
from ebbtide.pool.transitions import SEAT_PARKS, SeatState

MAY_DRAIN = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY}) | SEAT_PARKS


def config_events(config: PoolFile, state: PoolState, *, may_move: bool) -> tuple[Body, ...]:
    """The events that are still missing; () when the pool agrees with the file, or comes to by itself.

    Args:
        config: the file in force.
        state: what the ledger says.
        may_move: False while the pool is frozen or only observes: then nothing is drained.
    """
    wanted = {EndpointName(endpoint.name): endpoint.spec() for endpoint in config.endpoints}
    found: list[Body] = []
    for name, spec in wanted.items():
        known = state.endpoints.get(name)
        if known is None or _fits(state, known, spec.slots_per_replica):
            found += [EndpointDeclared(spec)] if known is None or known.spec != spec else []
        else:
            found += retire(state, known, f"its replicas are to have {many(spec.slots_per_replica, 'slot')}", may_move)
    for name, known in state.endpoints.items():
        if name in wanted:
            continue
        if occupied_seats(state, name):
            found += retire(state, known, "the pool's file no longer names its endpoint", may_move)
        else:
            found.append(EndpointRemoved(name))
    return tuple(found)


def _fits(state: PoolState, known: EndpointRecord, slots: int) -> bool:
    """Whether a replica with so many slots can be declared now: not while there is one with another number."""
    return (
        known.spec.slots_per_replica == slots
        # guard: an endpoint changes its number of slots when its last replica is gone
        or not occupied_seats(state, known.spec.name)
    )


def retire(state: PoolState, known: EndpointRecord, why: str, may_move: bool) -> Iterator[EndpointDeclared | DrainSeat]:
    """What has an endpoint have no replica any more, as far as it is not asked for yet.

    ``may_move``: see `config_events`.
    """
    if known.spec.replicas_max:  # guard: a retiring endpoint wants no replica
        yield EndpointDeclared(replace(known.spec, replicas_min=0, replicas_max=0))
    for seat in state.seats.values():
        if (
            may_move  # guard: no drain for the file while nothing may move
            and seat.endpoint == known.spec.name
            and seat.state in MAY_DRAIN
        ):
            yield DrainSeat(seat.id, why)


def seats_to_change(config: PoolFile, state: PoolState) -> dict[str, list[str]]:
    """Seats that must change before the pool agrees with its file, by endpoint: old revisions, and those that retire.

    An endpoint that is still to be declared or removed is named with no seats.
    """
    found: dict[str, list[str]] = {}
    for event in config_events(config, state, may_move=False):
        name = event.spec.name if isinstance(event, EndpointDeclared) else getattr(event, "endpoint", "")
        found[str(name)] = []
    wanted = {endpoint.name for endpoint in config.endpoints}
    for seat in state.seats.values():
        spec = state.endpoints[seat.endpoint].spec
        stale = bool(spec.revision) and seat.revision != spec.revision
        retires = seat.endpoint not in wanted or not spec.replicas_max
        if seat.state is not SeatState.COLD and (stale or retires):
            found.setdefault(str(seat.endpoint), []).append(str(seat.id))
    return {name: sorted(seats) for name, seats in found.items()}
