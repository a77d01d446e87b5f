"""The promises of the design that a state can be checked against, as one function.

The arbiter checks every state it is about to journal, and the tests check every state they reach.
"""

from ebbtide.pool.errors import InvariantViolated
from ebbtide.pool.state import PoolState
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
    return [*_slots(state), *_jobs(state), *_seats(state), *_host_memory(state), *_drains(state)]


def check(state: PoolState) -> None:
    """Raise if ``state`` breaks a promise.

    Raises:
        InvariantViolated: with everything that is wrong.
    """
    wrong = violations(state)
    if wrong:
        raise InvariantViolated("; ".join(wrong))


def _slots(state: PoolState) -> list[str]:
    wrong = []
    opening: dict[str, str] = {}
    for record in state.slots.values():
        name = record.slot.id
        if (record.state in OCCUPIED) != (record.occupant is not None):
            wrong.append(f"slot {name} is {record.state.value} with occupant {record.occupant}")
        if record.occupant is not None and not 0 < record.epoch < state.next_epoch:
            wrong.append(f"slot {name} has epoch {record.epoch}, the next is {state.next_epoch}")
        if record.state is SlotState.OPENING:
            other = opening.setdefault(record.slot.node, str(record.occupant))
            if other != record.occupant:
                wrong.append(f"{other} and {record.occupant} are placed on node {record.slot.node} at once")
    return wrong


def _jobs(state: PoolState) -> list[str]:
    wrong = []
    for name, job in state.jobs.items():
        held = state.held_by(name, job.epoch)
        if job.state in JOB_HOLDS_SLOTS:
            here = [s for s in job.gang if state.slots[s].state is not SlotState.LOST]
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


def _seats(state: PoolState) -> list[str]:
    wrong = []
    for name, seat in state.seats.items():
        held = state.held_by(name, seat.epoch)
        if seat.state is SeatState.COLD and (held or seat.slots):
            wrong.append(f"seat {name} is cold but has {held or seat.slots}")
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


def _drains(state: PoolState) -> list[str]:
    wrong = [
        f"slot {record.slot.id} was granted to {record.occupant} after node {record.slot.node} began to drain"
        for record in state.slots.values()
        if record.state in OCCUPIED and record.epoch >= state.drained_from.get(record.slot.node, state.next_epoch)
    ]
    if set(state.draining) != set(state.drained_from) or not set(state.draining) <= set(state.nodes):
        wrong.append(
            f"nodes {sorted(state.draining)} drain, of {sorted(state.nodes)}, {sorted(state.drained_from)} began"
        )
    return wrong
