"""Look-ups that are remembered say at every moment what a scan of the whole pool says."""

from dataclasses import replace

from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.lookup import index
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JOB_CLAIMS_SLOTS, OCCUPIED, JobState, SlotState
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job


def agrees(state: PoolState) -> None:
    """Each look-up against a scan."""
    for name, epoch in [(n, j.epoch) for n, j in state.jobs.items()] + [(n, s.epoch) for n, s in state.seats.items()]:
        scanned = tuple(
            record.slot.id
            for record in state.slots.values()
            if record.state in OCCUPIED and record.occupant == name and record.epoch == epoch
        )
        assert state.held_by(name, epoch) == scanned
    free = {r.slot.id for r in state.slots.values() if r.state is SlotState.FREE and r.slot.node not in state.draining}
    assert set(state.free_slots()) == free and list(state.free_slots()) == sorted(free)
    lost = {r.slot.node: r.since_s for r in state.slots.values() if r.state is SlotState.LOST}
    assert index.lost_since(state.slots) == lost and list(index.lost_since(state.slots)) == sorted(lost, key=lost.get)  # type: ignore[arg-type]
    here = {node: tuple(s for s in state.slots if s.startswith(f"{node}:")) for node in [*state.nodes, *lost]}
    assert all(index.by_node(state.slots, node) == slots for node, slots in here.items())
    named = [s for job in state.jobs.values() for s in job.gang] + [s for x in state.seats.values() for s in x.slots]
    assert index.counted_on(state.jobs, state.seats) == set(named)
    for slot in state.slots:
        claiming = [name for name, job in state.jobs.items() if job.state in JOB_CLAIMS_SLOTS and slot in job.gang]
        assert list(state.claims_on(slot)) == claiming
    for node in state.nodes:
        lent_to = [
            job for job in state.jobs.values() if job.state in (JobState.PARKING, JobState.PARKED, JobState.RESUMING)
        ]
        workers = sum(slot.startswith(f"{node}:") for job in lent_to for slot in job.gang)
        assert state.parked_bytes(node) == 10 * workers  # what a_job() asks per worker
    for endpoint in state.endpoints:
        numbers = [int(seat.id.rpartition("/")[2]) for seat in state.seats_of(endpoint)]
        assert numbers == sorted(numbers) and len(numbers) == sum(s.endpoint == endpoint for s in state.seats.values())


def test_look_ups_agree_with_a_scan_after_every_event_of_a_tide() -> None:
    loop = Loop(5, nodes={"n0": 2, "n1": 2})
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=30.0))
    loop.run(3.0)
    loop.submit(a_job(workers_max=4))
    loop.run(10.0)
    loop.gateways[0].rates["chat"] = 2.0
    loop.run(30.0)
    loop.lose_node("n1")
    loop.run(30.0)
    loop.gateways[0].rates["chat"] = 0.0
    loop.run(40.0)
    state = PoolState()
    for event in loop.events:
        state = apply(state, event)
        agrees(state)
    assert len(loop.events) > 50


def test_old_states_stay_true_when_they_are_looked_at_again() -> None:
    loop = Loop(5)
    loop.run(3.0)
    loop.submit(a_job())
    loop.run(10.0)
    states = [PoolState()]
    for event in loop.events:
        states.append(apply(states[-1], event))
    for state in [*reversed(states), *states]:
        agrees(state)


def test_what_has_not_changed_is_not_built_again() -> None:
    loop = Loop(5)
    loop.run(3.0)
    state = loop.state
    before = index.seats(state.seats)
    assert index.seats(replace(state, slots=dict(state.slots)).seats) is before
    assert index.seats(dict(state.seats)) is not before
