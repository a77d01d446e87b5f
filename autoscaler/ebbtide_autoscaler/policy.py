"""``decide(now_s, snapshot, memory, config) -> (Decision, memory)``: the whole policy, pure.

Serving first, training on what is left. Least disruption first: a free slot, then a job that steps aside in place,
then a job that goes on with fewer workers. How long a need will last is guessed by how long it has lasted already
(whoever pays at most as much for waiting as for acting pays at most twice the optimum, whatever comes: the ski-rental
rule), so a job parks at once, and is restarted smaller when it has been parked for as long as a restart costs.
"""

from dataclasses import replace

from ebbtide.pool.events import Decision, DrainSeat, GrantSeat
from ebbtide.pool.ids import EndpointName, SeatId, seat_id
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler import training
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.placement import for_replica, nearest
from ebbtide_autoscaler.serving import COMING_OR_READY, Want, may_go, seats_of, wants
from ebbtide_autoscaler.signals import Memory, PolicyConfig, Snapshot

RETRY_MAX_S = 60.0  # longest wait before a seat that failed to start is tried again


def decide(now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig) -> tuple[Decision, Memory]:
    """What to do now.

    Args:
        now_s: seconds since 1970.
        snapshot: the world; it is not changed.
        memory: what the last call returned.
        config: knobs.

    Returns:
        The decision, every move with its reason, and the memory for the next call.
    """
    state = snapshot.state
    free = list(state.free_slots())
    owed = min(len(free), training.owed(state))
    draft = Draft(free=free[: len(free) - owed], owed=free[len(free) - owed :])
    wanted, endpoints = wants(now_s, snapshot, memory, config)
    for want in wanted:
        if want.want > want.now:
            _raise(now_s, state, want, draft)
        elif want.want < want.now:
            _lower(now_s, state, want, draft)
    training.reclaim(now_s, state, draft, config)
    grow_since_s = training.give(now_s, state, draft, config, memory.grow_since_s)
    decision = Decision(moves=tuple(draft.moves), waits=tuple(draft.waits))
    return decision, replace(memory, endpoints=endpoints, grow_since_s=grow_since_s)


def _raise(now_s: float, state: PoolState, want: Want, draft: Draft) -> None:
    """Grant slots to cold seats of an endpoint, or note how many slots are missing."""
    spec = state.endpoints[want.endpoint].spec
    seats, backoff_s = _cold_seats(now_s, state, want.endpoint, spec.replicas_max)
    needed = want.want - want.now
    for seat in seats[:needed]:
        slots = for_replica(state, draft.free, spec.slots_per_replica)
        if slots and not any(isinstance(move, GrantSeat) for move in draft.moves):
            draft.free = [slot for slot in draft.free if slot not in slots]
            draft.moves.append(GrantSeat(seat, slots, f"{want.reason}: {want.want} replicas instead of {want.now}"))
            continue
        _lack(state, want, seat, draft)
    if len(seats) < needed:
        why = f"the next try of a failed seat is in {backoff_s:.0f} s" if backoff_s else "all its seats are taken"
        draft.waits.append((want.endpoint, f"{want.reason}; {why}"))


def _lack(state: PoolState, want: Want, seat: SeatId, draft: Draft) -> None:
    """Keep what is free for the replica of ``seat``, and note what it still lacks, and where."""
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    found = nearest(state, draft.free, count)
    if found is None:
        why = f"no node can give {count} slots: the others belong to replicas, or to jobs that may not step aside"
        draft.waits.append((seat, f"{want.reason}; {why}"))
        return
    draft.contested = True
    node, here = found
    kept = here[:count]
    draft.free = [slot for slot in draft.free if slot not in kept]
    lacking = count - len(kept)
    if not lacking:
        draft.waits.append((seat, "waits for its turn: one replica at a time is placed on a node"))
        return
    draft.missing += lacking
    draft.missing_for = draft.missing_for or f"{want.endpoint} ({want.reason})"
    draft.need_age_s = max(draft.need_age_s, want.busy_for_s)
    draft.nodes.add(node)
    draft.anywhere = draft.anywhere or count == 1
    where = f" on node {node[:8]}" if count > 1 else ""
    draft.waits.append((seat, f"{want.reason}; waits for {lacking} more slots{where}"))


def _cold_seats(now_s: float, state: PoolState, endpoint: EndpointName, limit: int) -> tuple[list[SeatId], float]:
    """Seats that may start now, and the shortest wait among those held back by earlier failures."""
    known: dict[SeatId, SeatRecord] = {seat.id: seat for seat in seats_of(state, endpoint)}
    seats: list[SeatId] = []
    backoff_s = 0.0
    for number in range(limit):
        name = seat_id(endpoint, number)
        seat = known.get(name)
        if seat is None:
            seats.append(name)
        elif seat.state is SeatState.COLD:
            wait_s = min(2.0**seat.failures, RETRY_MAX_S) if seat.failures else 0.0
            left_s = seat.since_s + wait_s - now_s
            if left_s <= 0:
                seats.append(name)
            else:
                backoff_s = min(backoff_s, left_s) if backoff_s else left_s
    return seats, backoff_s


def _lower(now_s: float, state: PoolState, want: Want, draft: Draft) -> None:
    """Drain the replica that has been up longest of those that may go; the highest seat number decides a tie."""
    record = state.endpoints[want.endpoint]
    seats = [seat for seat in seats_of(state, want.endpoint) if seat.state in COMING_OR_READY]
    going = [seat for seat in seats if may_go(now_s, record, seat)]
    if going:
        draft.moves.append(DrainSeat(going[-1].id, want.reason))
