"""Warm replicas: which one parks instead of ending, which one wakes, and which one gives way. Pure.

A warm replica costs host memory and nothing else: its slots belong to everybody. So it never keeps a slot from anyone,
it wakes when all of its slots happen to be free, and its memory is lent only as far as no job on its node may need it,
those that run there included: what a job was promised at its admission goes first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from ebbtide.pool.events import DrainSeat, GrantJob, ParkSeat, WakeSeat
from ebbtide.pool.ids import EndpointName, NodeId, number_of
from ebbtide.pool.lookup import index
from ebbtide.pool.lookup.derived_maps import group_by, select, sum_by
from ebbtide.pool.lookup.index import cached_by_identity
from ebbtide.pool.plural import many
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget, warm_count
from ebbtide_autoscaler.core.plan.outdated import node_of_seat, stale_seats, why_outdated
from ebbtide_autoscaler.core.plan.plan import Plan

AGAIN_S = 600.0  # after a replica failed to park or to wake: whatever was wrong is worth one try in ten minutes


def refresh_lookups(state: PoolState) -> None:
    """Look at what a rising endpoint asks for: else the first tick of a burst works off all that has changed since."""
    _seats_of_warm(state.seats)
    _may_wake(state.seats)


def seats_of_warm(state: PoolState, endpoint: EndpointName) -> tuple[SeatRecord, ...]:
    """The endpoint's seats whose replica is warm, or was: they are taken, and do not count as replicas."""
    return tuple(_seats_of_warm(state.seats).get(endpoint, {}).values())


def may_wake(state: PoolState, endpoint: EndpointName) -> Iterator[SeatRecord]:
    """The endpoint's replicas that are warm or about to be, in the order in which they wake."""
    return iter(_may_wake(state.seats).get(endpoint, {}).values())


def wake(target: ReplicaTarget, sleeping: Iterator[SeatRecord], most: int, plan: Plan) -> int:
    """Wake the next warm replicas whose slots are free, up to ``most``.

    Says how many need no other slots, those still parking included.
    """
    found = 0
    while found < most and (seat := next(sleeping, None)):
        parking = seat.state is SeatState.PARKING
        if not (parking or plan.free.has(seat.slots)) or why_outdated(plan.state, seat):
            continue
        if parking:
            plan.waits.append((seat.id, f"{target.reason}; it wakes as soon as it has parked"))
        else:
            reason = f"{target.reason}: {many(target.replicas, 'replica')} instead of {target.now}, and it is warm"
            plan.wake(WakeSeat(seat.id, reason), seat.slots)
        found += 1
    return found


def why_not_park(seat: SeatRecord, plan: Plan) -> str:
    """Why a replica that is not wanted any more has to end; empty if it may stay warm."""
    now_s, state = plan.now_s, plan.state
    record = state.endpoints[seat.endpoint]
    if not seat.fenced:
        return "it was started before the file asked for warm replicas"
    if not seat.park_bytes:
        return seat.cannot_park or "its engine does not say how"
    if record.park_failed_s and now_s - record.park_failed_s < AGAIN_S:
        return f"one failed {now_s - record.park_failed_s:.0f} s ago ({record.park_error[:200]})"
    others = _to_stay_warm(state.seats).get(seat.endpoint, 0)
    parks = [state.seats[move.seat] for move in plan.moves if isinstance(move, ParkSeat)]
    warm = others + sum(park.endpoint == seat.endpoint for park in parks)
    if warm >= record.spec.warm_replicas:
        return f"{warm} of {record.spec.warm_replicas} are warm already"
    node = node_of_seat(seat)
    promised = sum(park.park_bytes for park in parks if node_of_seat(park) == node)
    of_jobs = _of_gangs(state.jobs).get(node, 0) + _of_grants(plan)[node]
    needed = of_jobs + state.warm_bytes(node) + promised + seat.park_bytes
    if needed > state.nodes.get(node, 0):  # guard: a replica stays warm only where there is host memory for it
        return f"node {node[:8]} has no {seat.park_bytes} bytes of host memory left beside what its jobs may need"
    return ""


def park_or_drain(seat: SeatRecord, reason: str, plan: Plan) -> None:
    """Have a ready replica leave its slots: it stays warm if its endpoint has such, and it can."""
    if plan.state.endpoints[seat.endpoint].spec.warm_replicas:
        why_not = why_not_park(seat, plan)
        if not why_not:
            plan.moves.append(ParkSeat(seat.id, f"{reason}: it stays warm"))
            return
        reason = f"{reason}; it ends, for it cannot stay warm: {why_not}"
    plan.moves.append(DrainSeat(seat.id, reason))


def end_surplus_warm(plan: Plan) -> None:
    """End warm replicas that nobody may wake any more, that are too many, or whose memory a job may need."""
    state = plan.state
    warm = _warm(state.seats)
    if not warm:
        return
    too_many, too_much = not _all_may_stay(state), not _memory_does(plan)
    if not too_many and not too_much:
        return
    moved = plan.moved()
    kept = [one for one in warm.values() if one.id not in moved]
    if too_many:
        kept = _without_surplus(plan, kept)
    if too_much:
        _return_memory(plan, kept)


def _all_may_stay(state: PoolState) -> bool:
    """Whether none is too many, or outdated: what nearly every decision finds."""
    counts = warm_count(state.seats)
    few = all(count <= state.endpoints[name].spec.warm_replicas for name, count in counts.items())
    return few and not state.draining and not any(stale_seats(state, name) for name in counts)


def _memory_does(plan: Plan) -> bool:
    """Whether no node lends more than it has, with what this decision has granted: likewise."""
    state = plan.state
    of_jobs, of_seats = _of_gangs(state.jobs), index.warm_bytes(state.seats)
    if _too_full(of_jobs, of_seats, state.nodes):
        return False
    new = _of_grants(plan)
    lent = {node: of_seats[node] + of_jobs.get(node, 0) for node in new if node in of_seats}
    return all(bytes_ + new[node] <= state.nodes.get(node, 0) for node, bytes_ in lent.items())


@cached_by_identity
def _too_full(of_jobs: Mapping[NodeId, int], of_seats: Mapping[NodeId, int], nodes: Mapping[NodeId, int]) -> bool:
    most = max(of_jobs.values(), default=0) + max(of_seats.values(), default=0)
    if most <= min(nodes.values(), default=0) and of_seats.keys() <= nodes.keys():
        return False  # as in nearly all pools, whose nodes have room for more than is ever lent
    jobs, has = dict(of_jobs.items()), dict(nodes.items())  # thousands of nodes: a dict answers at once
    return any(jobs.get(node, 0) + lent > has.get(node, 0) for node, lent in of_seats.items())


def _without_surplus(plan: Plan, warm: list[SeatRecord]) -> list[SeatRecord]:
    """Those that stay; the others end."""
    state = plan.state
    left = Counter({name: state.endpoints[name].spec.warm_replicas for name in {one.endpoint for one in warm}})
    kept: list[SeatRecord] = []
    for seat in _best_first(state, warm):
        why = why_outdated(state, seat)
        if not why and not left[seat.endpoint]:
            why = f"the file asks for {state.endpoints[seat.endpoint].spec.warm_replicas} warm replicas"
        if why:
            plan.moves.append(DrainSeat(seat.id, why))
        else:
            left[seat.endpoint] -= 1
            kept.append(seat)
    return kept


@group_by(order=number_of)
def _may_wake(seat: SeatRecord) -> tuple[EndpointName, SeatRecord] | None:
    return (seat.endpoint, seat) if seat.state in (SeatState.WARM, SeatState.PARKING) else None


@sum_by
def _to_stay_warm(seat: SeatRecord) -> Mapping[EndpointName, int] | None:
    return {seat.endpoint: 1} if seat.parks and seat.state is not SeatState.STOPPING else None


@group_by(order=number_of)
def _seats_of_warm(seat: SeatRecord) -> tuple[EndpointName, SeatRecord] | None:
    taken = seat.parks and seat.state in (SeatState.WARM, SeatState.STOPPING)
    return (seat.endpoint, seat) if taken else None


@select
def _warm(seat: SeatRecord) -> SeatRecord | None:
    return seat if seat.state is SeatState.WARM else None


def _best_first(state: PoolState, warm: list[SeatRecord]) -> list[SeatRecord]:
    """Those that could wake now first."""
    free = set(state.free_slots())
    return sorted(warm, key=lambda one: (not free.issuperset(one.slots), one.id))


def _return_memory(plan: Plan, warm: list[SeatRecord]) -> None:
    state = plan.state
    used, ending = _of_jobs(plan), plan.moved()
    for one in state.seats.values():
        if one.parks and one.slots and one.state is not SeatState.STOPPING and one.id not in ending:
            used[node_of_seat(one)] += one.park_bytes
    for seat in sorted(warm, key=lambda one: (state.endpoints[one.endpoint].spec.priority, one.since_s, one.id)):
        node = node_of_seat(seat)
        if used[node] > state.nodes.get(node, 0):
            why = f"its {seat.park_bytes} bytes of host memory are needed, since jobs on node {node[:8]} go first"
            plan.moves.append(DrainSeat(seat.id, why))
            used[node] -= seat.park_bytes


@sum_by
def _of_gangs(job: JobRecord) -> Mapping[NodeId, int] | None:
    may_park = job.state is not JobState.ENDED and job.spec.in_place
    return index.on_nodes(job.gang, job.spec.host_bytes_per_worker) if may_park else None


def _of_jobs(plan: Plan) -> Counter[NodeId]:
    """Host memory that jobs may need where they are, or are about to be, by node."""
    return Counter(_of_gangs(plan.state.jobs)) + _of_grants(plan)


def _of_grants(plan: Plan) -> Counter[NodeId]:
    """Of that, what jobs may need where they are about to be."""
    state = plan.state
    found: Counter[NodeId] = Counter()
    for move in plan.moves:
        if isinstance(move, GrantJob) and state.jobs[move.job].spec.in_place:
            found.update(index.on_nodes(move.slots, state.jobs[move.job].spec.host_bytes_per_worker))
    return found
