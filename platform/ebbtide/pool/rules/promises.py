"""The promises (docs/promises.md) that a state can be checked against, as one function.

The arbiter checks every state it is about to journal, and the tests check every state they reach.
"""

from collections.abc import Iterable, Mapping
from math import inf

from ebbtide.pool.errors import InvariantViolated
from ebbtide.pool.ids import JobName, SeatId
from ebbtide.pool.lookup import index
from ebbtide.pool.lookup.records import changed_keys, getter, together
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord, SlotRecord
from ebbtide.pool.transitions import (
    JOB_CLAIMS_SLOTS,
    JOB_HOLDS_SLOTS,
    OCCUPIED,
    SEAT_HOLDS_SLOTS,
    JobState,
    SeatState,
    SlotState,
)


def violations(state: PoolState) -> list[str]:
    """What in ``state`` breaks a promise; empty if nothing does."""
    for one in (state.slots, state.jobs, state.seats):
        together(one)  # once, before each of them is looked up thousands of times
    return [
        *_slots(state, state.slots.values()),
        *_jobs(state, state.jobs),
        *_seats(state, state.seats),
        *_host_memory(state),
        *_drains(state, state.slots.values()),
        *_draining_nodes(state),
    ]


def violations_since(before: PoolState, state: PoolState) -> list[str]:
    """What in ``state`` breaks a promise, when ``before``, from which one event led to it, breaks none.

    It looks at what has changed and at whom that concerns, so that a tick costs as much as its events are, not as much
    as the pool is large for each of them.
    """
    slots, jobs, seats = (
        changed_keys(before.slots, state.slots),
        changed_keys(before.jobs, state.jobs),
        changed_keys(before.seats, state.seats),
    )
    if slots is None or jobs is None or seats is None or _more_than_records_changed(before, state):
        return violations(state)
    were = [before.slots[name] for name in slots if name in before.slots]
    are = [state.slots[name] for name in slots if name in state.slots]
    if len(are) < len(slots) or any(one.state is SlotState.LOST for one in were):
        return violations(state)  # whoever counts on a slot that is gone; a gang may count one again that it had lost
    forgotten = [name for name in jobs if name not in state.jobs]
    if forgotten and not index.occupants(state.slots).isdisjoint(forgotten):
        return violations(state)  # nobody may still be where a forgotten job was
    concerned = [one.occupant for one in (*were, *are) if one.occupant is not None]
    now_jobs = {job.spec.name: job for name in (*jobs, *concerned) if (job := state.jobs.get(JobName(name)))}
    now_seats = {seat.id: seat for name in (*seats, *concerned) if (seat := state.seats.get(SeatId(name)))}
    opening = [state.slots[name] for name in index.in_state(state.slots, SlotState.OPENING)]
    placed = any(one.state is SlotState.OPENING for one in are)
    return [
        *_slots(state, {one.slot.id: one for one in (*are, *(opening if placed else ()))}.values()),
        *_jobs(state, now_jobs),
        *_seats(state, now_seats),
        *(_host_memory(state) if any(job.state in JOB_CLAIMS_SLOTS for job in now_jobs.values()) else ()),
        *_drains(state, are),
    ]


def _more_than_records_changed(before: PoolState, state: PoolState) -> bool:
    same = (
        before.nodes is state.nodes
        and before.endpoints is state.endpoints
        and before.draining is state.draining
        and before.drained_from is state.drained_from
    )
    return not (same and before.next_epoch <= state.next_epoch)


def check(state: PoolState, since: PoolState | None = None) -> None:
    """Raise if ``state`` breaks a promise.

    Args:
        state: what is about to be journaled.
        since: the state from which one event led to it, if that one was checked: then only what changed is looked at.

    Raises:
        InvariantViolated: with everything that is wrong.
    """
    wrong = violations(state) if since is None else violations_since(since, state)
    if wrong:
        raise InvariantViolated("; ".join(wrong))


def _slots(state: PoolState, records: Iterable[SlotRecord]) -> list[str]:
    wrong = []
    opening: dict[str, str] = {}
    job_of, seat_of = getter(state.jobs), getter(state.seats)
    for record in records:
        name, who = record.slot.id, record.occupant
        # guard: an occupied slot has an occupant, and no other has
        if (record.state in OCCUPIED) != (record.occupant is not None):
            wrong.append(f"slot {name} is {record.state.value} with occupant {record.occupant}")
        # guard: no slot is occupied by an unknown occupant
        if who is not None and job_of(JobName(who)) is None and seat_of(SeatId(who)) is None:
            wrong.append(f"slot {name} is occupied by {record.occupant}, whom the pool does not know")
        # guard: a lease's epoch is one that was given
        if record.occupant is not None and not 0 < record.epoch < state.next_epoch:
            wrong.append(f"slot {name} has epoch {record.epoch}, the next is {state.next_epoch}")
        if record.state is SlotState.OPENING:
            other = opening.setdefault(record.slot.node, str(record.occupant))
            if other != record.occupant:  # guard: there is one placement on a node
                wrong.append(f"{other} and {record.occupant} are placed on node {record.slot.node} at once")
    return wrong


def _jobs(state: PoolState, jobs: Mapping[JobName, JobRecord]) -> list[str]:
    wrong, leases, slot_of = [], index.leases(state.slots), getter(state.slots)
    for name, job in jobs.items():
        held = tuple(leases.get((name, job.epoch), ()))
        gang = [(slot, slot_of(slot)) for slot in job.gang]
        wrong += [f"job {name} counts on slot {s}, which is not in the pool" for s, one in gang if one is None]
        if job.state in JOB_HOLDS_SLOTS:
            here = [s for s, one in gang if one is not None and one.state is not SlotState.LOST]
            if sorted(held) != sorted(here):  # guard: a gang that may touch its GPUs holds exactly its slots
                wrong.append(f"job {name} is {job.state.value} with gang {job.gang} but holds {held}")
            # guard: a gang has as many workers as its job asks for
            if not job.spec.workers_min <= len(job.gang) <= job.spec.workers_max:
                wrong.append(f"job {name} runs with {len(job.gang)} workers")
        if job.state in (JobState.PARKED, JobState.WAITING) and held:  # guard: a parked or waiting job holds nothing
            wrong.append(f"job {name} is {job.state.value} but holds {held}")
        if job.state in JOB_CLAIMS_SLOTS and not job.gang:  # guard: a parked job has a claim
            wrong.append(f"job {name} is {job.state.value} without a claim")
        if job.durable_step > job.step:  # guard: nothing is durable that was not done
            wrong.append(f"job {name} has step {job.step} but {job.durable_step} are durable")
    return wrong


def _seats(state: PoolState, seats: Mapping[SeatId, SeatRecord]) -> list[str]:
    wrong, leases, slot_of = [], index.leases(state.slots), getter(state.slots)
    for name, seat in seats.items():
        held = tuple(leases.get((name, seat.epoch), ()))
        gone = [s for s in seat.slots if slot_of(s) is None]
        wrong += [f"seat {name} counts on slot {s}, which is not in the pool" for s in gone]
        if seat.state is SeatState.COLD and (held or seat.slots):  # guard: a cold seat holds nothing
            wrong.append(f"seat {name} is cold but has {held or seat.slots}")
        if seat.state is SeatState.WARM and (held or not seat.slots):
            wrong.append(f"seat {name} is warm with {seat.slots} but holds {held}")
        if seat.fenced and any(state.slots[s].state is SlotState.OPENING for s in held):
            wrong.append(f"seat {name} has no use for the fences of {held}")
        if seat.state is SeatState.READY and seat.parks:
            wrong.append(f"seat {name} is ready and is to park")
        if seat.state in SEAT_HOLDS_SLOTS:
            spec = state.endpoints[seat.endpoint].spec
            # guard: a seat has as many slots as it needs
            if len(seat.slots) != spec.slots_per_replica and seat.state is SeatState.PLACING:
                wrong.append(f"seat {name} has {len(seat.slots)} slots, not {spec.slots_per_replica}")
            if not set(held) <= set(seat.slots):  # guard: a seat holds no slot outside its lease
                wrong.append(f"seat {name} holds {held} outside its lease {seat.slots}")
    return wrong


def _host_memory(state: PoolState) -> list[str]:
    return [
        f"node {node} lends {state.nodes[node]} bytes to parked workers, {used_bytes} are used"
        for node, used_bytes in index.parked_bytes(state.jobs).items()
        if used_bytes > state.nodes.get(node, inf)  # guard: no more host memory is lent than there is
    ]


def _drains(state: PoolState, records: Iterable[SlotRecord]) -> list[str]:
    return [
        f"slot {record.slot.id} was granted to {record.occupant} after node {record.slot.node} began to drain"
        for record in records
        if record.state in OCCUPIED
        # guard: no lease on a draining node is newer than the drain
        and record.epoch >= state.drained_from.get(record.slot.node, state.next_epoch)
    ]


def _draining_nodes(state: PoolState) -> list[str]:
    if (
        set(state.draining) != set(state.drained_from)
        or not set(state.draining) <= set(state.nodes)  # guard: a node that drains is in the pool
    ):
        return [f"nodes {sorted(state.draining)} drain, of {sorted(state.nodes)}, {sorted(state.drained_from)} began"]
    return []
