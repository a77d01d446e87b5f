"""Replacing replicas that must go although they serve well: one at a time per endpoint, a new one first. Pure.

A new replica is started beside the old ones where a slot allows it, and once it is ready the endpoint has one replica
too many and the policy drains an old one. Without such a slot the old one drains first, and its requests are held.
A revision that does not come up replaces nobody: the old replicas stay until it is mended.
"""

from ebbtide.pool.events import DrainSeat, GrantSeat, ParkSeat, WakeSeat
from ebbtide.pool.ids import EndpointName, SeatId, endpoint_of
from ebbtide.pool.state import SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.demand.replica_target import COMING, COMING_OR_READY, ReplicaTarget
from ebbtide_autoscaler.core.jobs.reclaim import room_for
from ebbtide_autoscaler.core.plan.outdated import is_on_draining, stale_seats, why_outdated
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_autoscaler.core.replicas.slot_shortage import record_shortage
from ebbtide_autoscaler.core.replicas.start_backoff import StartAttempts, start_attempts

LEAVING = frozenset({SeatState.DRAINING, SeatState.PARKING, SeatState.STOPPING})


def replace_outdated(target: ReplicaTarget, plan: Plan) -> None:
    """The next step towards an endpoint without outdated replicas; nothing where the policy has moved already."""
    now_s, state = plan.now_s, plan.state
    if not state.draining and not stale_seats(state, target.endpoint):
        return
    seats = [seat for seat in state.seats_of(target.endpoint) if seat.state in COMING_OR_READY | LEAVING]
    here = [seat for seat in seats if seat.state in COMING_OR_READY]
    outdated = sorted((s for s in here if why_outdated(state, s)), key=lambda s: not is_on_draining(state, s))
    for seat in outdated:
        # guard: a replica that starts on a draining node stops at once
        if seat.state in COMING and is_on_draining(state, seat):
            plan.moves.append(DrainSeat(seat.id, why_outdated(state, seat)))
    serving = [seat for seat in outdated if seat.state is SeatState.READY]
    if (
        not serving
        or not state.endpoints[target.endpoint].spec.replicas_max
        or _moved(target.endpoint, plan)  # guard: an endpoint has one move in a decision
        or target.replicas < target.now
    ):
        return
    plan.waits_until(now_s)
    first, must = serving[0], is_on_draining(state, serving[0])
    if any(seat.state in COMING for seat in here):  # guard: no replica is replaced while another one starts
        plan.waits.append((first.id, f"{why_outdated(state, first)}; waits for the replica that starts"))
        return
    if not must and (
        target.replicas > target.now  # guard: demand goes before replacement
        or not target.known  # guard: no replica is replaced while gateways are silent
        or len(seats) > len(here)  # guard: no replica is replaced while another one leaves
    ):
        return  # demand first; and one at a time
    limit = state.endpoints[target.endpoint].spec.replicas_max + len(outdated)
    _replace(target, plan, first, start_attempts(now_s, state, target.endpoint, limit))


def _moved(endpoint: EndpointName, plan: Plan) -> bool:
    seats = [move.seat for move in plan.moves if isinstance(move, GrantSeat | DrainSeat | ParkSeat | WakeSeat)]
    return any(endpoint_of(seat) == endpoint for seat in seats)


def _replace(target: ReplicaTarget, plan: Plan, old: SeatRecord, found: StartAttempts) -> None:
    state = plan.state
    why, must = why_outdated(state, old), is_on_draining(state, old)
    count = state.endpoints[target.endpoint].spec.slots_per_replica
    if found.failures and not found.seats:  # guard: a revision that does not come up replaces no replica
        plan.waits.append((old.id, f"{why}; it stays, because its successor does not come up: {found.story()}"))
        return
    seat: SeatId | None = next(iter(found.seats), None)
    if seat is not None and plan.free.fits(count):  # guard: a new replica comes first where there is a slot for it
        slots = plan.free.for_replica(count)
        if slots:
            plan.grant(GrantSeat(seat, slots, f"takes the place of {old.id}: {why}"))
        else:
            plan.waits.append((old.id, f"{why}; its successor waits for its turn to be placed"))
        return
    if found.permanent and found.disturb_in_s:  # guard: no job steps aside for the successor that would not come up
        plan.waits.append((old.id, f"{why}; it stays until a slot is free for its successor: {found.story()}"))
        return
    if (  # guard: an old replica waits for room that there can be
        seat is not None
        and must
        and room_for(plan, count)  # guard: an old replica waits for no room that there cannot be
    ):
        if target.replicas <= target.now:  # else its lack has been noted with the demand
            record_shortage(target, seat, plan)
        plan.waits.append((old.id, f"{why}; waits until there is a slot for its successor"))
        return
    if found.failures and not must:  # guard: no old replica is drained for a revision that does not come up
        plan.waits.append((old.id, f"{why}; it stays until a slot is free for its successor: {found.story()}"))
        return
    plan.moves.append(DrainSeat(old.id, f"{why}; no slot is free for its successor first: its requests are held"))
