"""The promises of the design that a state can be checked against, as one function.

The arbiter checks every state it is about to journal, and the tests check every state they reach.
"""

from collections.abc import Callable, Iterable, Mapping

from ebbtide.pool.errors import InvariantViolated
from ebbtide.pool.ids import Epoch, JobName, SeatId, SlotId
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

Held = Callable[[JobName | SeatId, Epoch], tuple[SlotId, ...]]


def violations(state: PoolState) -> list[str]:
    """What in ``state`` breaks a promise; empty if nothing does."""
    return [
        *_slots(state, state.slots.values()),
        *_jobs(state, state.jobs, state.held_by),
        *_seats(state, state.seats, state.held_by),
        *_host_memory(state),
        *_drains(state, state.slots.values()),
        *_draining_nodes(state),
    ]


def violations_since(before: PoolState, state: PoolState) -> list[str]:
    """What in ``state`` breaks a promise, when ``before``, from which one event led to it, breaks none.

    It looks at what has changed and at whom that concerns, so that a tick with many events stays linear in the pool.
    """
    if _more_than_records_changed(before, state):
        return violations(state)
    slots = [one for name, one in state.slots.items() if one is not before.slots.get(name)]
    were = [before.slots[one.slot.id] for one in slots if one.slot.id in before.slots]
    if any(one.state is SlotState.LOST for one in were):
        return violations(state)  # a gang may count a slot again that it had lost
    forgotten = before.slots.keys() - state.slots.keys()
    if len(state.jobs) < len(before.jobs):
        gone = before.jobs.keys() - state.jobs.keys()  # nobody may still be where they were
        slots += [one for one in state.slots.values() if one.occupant in gone]
    concerned = {one.occupant for one in [*slots, *were] if one.occupant is not None}
    concerned |= {n for n, one in state.jobs.items() if not forgotten.isdisjoint(one.gang)}
    concerned |= {n for n, one in state.seats.items() if not forgotten.isdisjoint(one.slots)}
    jobs = {n: one for n, one in state.jobs.items() if one is not before.jobs.get(n) or n in concerned}
    seats = {n: one for n, one in state.seats.items() if one is not before.seats.get(n) or n in concerned}
    held = _held(state, {*jobs, *seats})
    opening = any(one.state is SlotState.OPENING for one in slots)
    claims = any(one.state in JOB_CLAIMS_SLOTS for one in jobs.values())
    return [
        *_slots(state, state.slots.values() if opening else slots),
        *_jobs(state, jobs, held),
        *_seats(state, seats, held),
        *(_host_memory(state) if claims else ()),
        *_drains(state, slots),
    ]


def _more_than_records_changed(before: PoolState, state: PoolState) -> bool:
    same = (
        before.nodes is state.nodes
        and before.endpoints is state.endpoints
        and before.draining is state.draining
        and before.drained_from is state.drained_from
    )
    return not (same and before.next_epoch <= state.next_epoch)


def _held(state: PoolState, who: set[JobName | SeatId]) -> Held:
    """``state.held_by`` for a few workloads, by one look at each slot."""
    found: dict[tuple[JobName | SeatId, Epoch], list[SlotId]] = {}
    for record in state.slots.values():
        if record.occupant is not None and record.occupant in who and record.state in OCCUPIED:
            found.setdefault((record.occupant, record.epoch), []).append(record.slot.id)
    return lambda workload, epoch: tuple(found.get((workload, epoch), ()))


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
    for record in records:
        name = record.slot.id
        if (record.state in OCCUPIED) != (record.occupant is not None):
            wrong.append(f"slot {name} is {record.state.value} with occupant {record.occupant}")
        if record.occupant is not None and record.occupant not in state.jobs and record.occupant not in state.seats:
            wrong.append(f"slot {name} is occupied by {record.occupant}, whom the pool does not know")
        if record.occupant is not None and not 0 < record.epoch < state.next_epoch:
            wrong.append(f"slot {name} has epoch {record.epoch}, the next is {state.next_epoch}")
        if record.state is SlotState.OPENING:
            other = opening.setdefault(record.slot.node, str(record.occupant))
            if other != record.occupant:
                wrong.append(f"{other} and {record.occupant} are placed on node {record.slot.node} at once")
    return wrong


def _jobs(state: PoolState, jobs: Mapping[JobName, JobRecord], held_by: Held) -> list[str]:
    wrong = []
    for name, job in jobs.items():
        held = held_by(name, job.epoch)
        wrong += [f"job {name} counts on slot {s}, which is not in the pool" for s in job.gang if s not in state.slots]
        if job.state in JOB_HOLDS_SLOTS:
            here = [s for s in job.gang if s in state.slots and state.slots[s].state is not SlotState.LOST]
            if sorted(held) != sorted(here):
                wrong.append(f"job {name} is {job.state.value} with gang {job.gang} but holds {held}")
            if not job.spec.workers_min <= len(job.gang) <= job.spec.workers_max:
                wrong.append(f"job {name} runs with {len(job.gang)} workers")
        if job.state in (JobState.PARKED, JobState.WAITING) and held:
            wrong.append(f"job {name} is {job.state.value} but holds {held}")
        if job.state in JOB_CLAIMS_SLOTS and not job.gang:
            wrong.append(f"job {name} is {job.state.value} without a claim")
        if job.durable_step > job.step:
            wrong.append(f"job {name} has step {job.step} but {job.durable_step} are durable")
    return wrong


def _seats(state: PoolState, seats: Mapping[SeatId, SeatRecord], held_by: Held) -> list[str]:
    wrong = []
    for name, seat in seats.items():
        held = held_by(name, seat.epoch)
        wrong += [
            f"seat {name} counts on slot {s}, which is not in the pool" for s in seat.slots if s not in state.slots
        ]
        if seat.state is SeatState.COLD and (held or seat.slots):
            wrong.append(f"seat {name} is cold but has {held or seat.slots}")
        if seat.state is SeatState.WARM and (held or not seat.slots):
            wrong.append(f"seat {name} is warm with {seat.slots} but holds {held}")
        if seat.fenced and any(state.slots[s].state is SlotState.OPENING for s in held):
            wrong.append(f"seat {name} has no use for the fences of {held}")
        if seat.state is SeatState.READY and seat.parks:
            wrong.append(f"seat {name} is ready and is to park")
        if seat.state in SEAT_HOLDS_SLOTS:
            spec = state.endpoints[seat.endpoint].spec
            if len(seat.slots) != spec.slots_per_replica and seat.state is SeatState.PLACING:
                wrong.append(f"seat {name} has {len(seat.slots)} slots, not {spec.slots_per_replica}")
            if not set(held) <= set(seat.slots):
                wrong.append(f"seat {name} holds {held} outside its lease {seat.slots}")
    return wrong


def _host_memory(state: PoolState) -> list[str]:
    return [
        f"node {node} lends {budget_bytes} bytes to parked workers, {state.parked_bytes(node)} are used"
        for node, budget_bytes in state.nodes.items()
        if state.parked_bytes(node) > budget_bytes
    ]


def _drains(state: PoolState, records: Iterable[SlotRecord]) -> list[str]:
    return [
        f"slot {record.slot.id} was granted to {record.occupant} after node {record.slot.node} began to drain"
        for record in records
        if record.state in OCCUPIED and record.epoch >= state.drained_from.get(record.slot.node, state.next_epoch)
    ]


def _draining_nodes(state: PoolState) -> list[str]:
    if set(state.draining) != set(state.drained_from) or not set(state.draining) <= set(state.nodes):
        return [f"nodes {sorted(state.draining)} drain, of {sorted(state.nodes)}, {sorted(state.drained_from)} began"]
    return []
