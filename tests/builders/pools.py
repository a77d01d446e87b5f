"""Pools drawn at random, by hypothesis: configurations, states, and the events that may come."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    CancelJob,
    EndpointDeclared,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobHeld,
    JobParked,
    JobRecovered,
    JobRunning,
    JobSubmitted,
    NodeDraining,
    ParkJob,
    SeatGone,
    SeatStopped,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import JobName, NodeId, SlotId, seat_id
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide.snapshot.tiers import Tier
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    NOW,
    SEAT0,
    TRAIN,
    a_pool,
    fold,
    parked,
    slots,
    with_job,
    with_ready,
)
from tests.builders.policy import with_ready as ready


def random_states() -> st.SearchStrategy[PoolState]:
    """Pools with a job in some state and some ready replicas."""

    def build(
        total: int,
        gang: int,
        replicas: int,
        in_place: bool,
        kind: WorkloadClass,
        stage: int,
        more: tuple[int, str, bool],
    ) -> PoolState:
        elsewhere, drains, stale = more
        state = a_pool(nodes={"n0": total, "n1": elsewhere}, endpoints=(an_endpoint(revision="a"),))
        names = (*slots(total), *slots(elsewhere, "n1"))
        gang = min(gang, len(names))
        replicas = min(replicas, len(names) - gang)
        if gang:
            state = with_job(state, a_job(in_place=in_place, workers_max=4, workload_class=kind), names[:gang])
        for number in range(replicas):
            state = with_ready(state, seat_id(CHAT, number), (names[gang + number],))
        if gang and kind is WorkloadClass.PREEMPTIBLE and in_place and stage == 1:
            state = parked(state)
        if gang and kind is WorkloadClass.PREEMPTIBLE and stage == 2:
            state = fold(state, StopJob(TRAIN, "r", preempts=True), SlotFreed(names[0]))
        if gang and stage == 3:
            state = fold(state, JobCrashed(TRAIN, "w", 0), *(SlotFreed(name) for name in names[:gang]))
            state = fold(state, JobRecovered(TRAIN), at_s=NOW)
        if replicas and stage == 4:
            state = fold(state, SeatStopped(SEAT0, "w"), SlotFreed(names[gang]), SeatGone(SEAT0), at_s=NOW - 3.0)
        if stale:
            state = fold(state, EndpointDeclared(an_endpoint(revision="b")))
        return fold(state, NodeDraining(NodeId(drains), "r")) if drains in state.nodes else state

    return st.builds(
        build,
        st.integers(1, 5),
        st.integers(0, 4),
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from(WorkloadClass),
        st.integers(0, 4),
        st.tuples(st.integers(0, 3), st.sampled_from(["", "n0", "n1"]), st.booleans()),
    )


def traffics() -> st.SearchStrategy[EndpointSignals]:
    return st.builds(
        lambda held, inflight, quiet_s, ttft_s, known: EndpointSignals(
            held, inflight, 0, NOW - quiet_s, ttft_s, known=known
        ),
        st.integers(0, 20),
        st.integers(0, 20),
        st.sampled_from([0.0, 4.0, 100.0]),
        st.sampled_from([0.0, 0.5, 3.0]),
        st.booleans(),
    )


Draw = Callable[[st.SearchStrategy[Any]], Any]


def tried(state: PoolState, *story: Body, at_s: float) -> PoolState:
    """After all of it, or as it was if that may not happen there."""
    try:
        return fold(state, *story, at_s=at_s)
    except IllegalTransition:
        return state


STAGES = ["waits", "runs", "runs", "parked", "parked", "parks", "stops", "crashed", "held", "cancelled"]


def add_job(draw: Draw, state: PoolState, name: JobName, free: list[SlotId]) -> PoolState:
    """One job more, in any state, since some time."""
    most = draw(st.integers(1, 4))
    spec = a_job(
        name,
        workers_min=draw(st.integers(1, most)),
        workers_max=most,
        priority=draw(st.integers(0, 1)),
        workload_class=draw(st.sampled_from(WorkloadClass)),
        in_place=draw(st.booleans()),
        min_runtime_s=draw(st.sampled_from([0.0, 60.0])),
        max_preemptions_per_h=draw(st.sampled_from([0, 1, 1000])),
    )
    stage = draw(st.sampled_from(STAGES))
    at_s = NOW - draw(st.sampled_from([0.5, 15.0, 100.0, 3000.0]))
    late_s = at_s + draw(st.floats(0.0, 1.0)) * (NOW - at_s)
    state = fold(state, JobSubmitted(spec, "i"), at_s=at_s)
    if stage in ("held", "cancelled"):
        return fold(state, JobHeld(name, "me", "r") if stage == "held" else CancelJob(name, "r"), at_s=late_s)
    gang = tuple(free[: spec.workers_max])
    if stage == "waits" or len(gang) < spec.workers_min:
        return state
    del free[: len(gang)]
    state = fold(state, GrantJob(name, gang, "r"), JobRunning(name, 1), at_s=at_s)
    empty = tuple(SlotFreed(slot) for slot in gang)
    if stage == "parked":
        state = tried(state, ParkJob(name, "r"), *empty, JobParked(name, 3), at_s=late_s)
    elif stage == "parks":
        return tried(state, ParkJob(name, "r"), *empty[1:], at_s=late_s)
    elif stage == "stops":
        return tried(state, StopJob(name, "r", preempts=True), *empty[1:], at_s=late_s)
    elif stage == "crashed":
        state = fold(state, JobCrashed(name, "w", 0), *empty, JobRecovered(name), at_s=late_s)
    if state.jobs[name].state is not JobState.RUNNING:
        free += gang
    return state


@st.composite
def pools(draw: Draw) -> PoolState:
    """Some nodes, one of which may drain, with replicas that are up or fail, an old revision, and some jobs."""
    nodes = draw(st.sampled_from([{"n0": 3}, {"n0": 5}, {"n0": 2, "n1": 2}, {"n0": 4, "n1": 3}]))
    spec = an_endpoint(replicas_min=draw(st.integers(0, 1)), revision="a", warm_replicas=draw(st.integers(0, 1)))
    state = a_pool(nodes=nodes, endpoints=(spec,), host=draw(st.sampled_from([1000, 20])))
    free = draw(st.permutations([slot for node, count in nodes.items() for slot in slots(count, node)]))
    for number in range(draw(st.integers(0, 2))):
        state = ready(state, seat_id(CHAT, number), (free.pop(),), at_s=NOW - draw(st.sampled_from([1.0, 5000.0])))
    for number in range(draw(st.integers(0, 5))):
        state = add_job(draw, state, JobName(f"j{number}"), free)
    at_s = NOW - draw(st.sampled_from([0.5, 3.0, 50.0]))
    if free and draw(st.booleans()):
        seat = seat_id(CHAT, 2)
        failed = (GrantSeat(seat, (free[0],), "r"), SeatStopped(seat, "w"), SlotFreed(free[0]), SeatGone(seat))
        state = tried(state, *failed, at_s=at_s)
    if draw(st.integers(0, 4)) == 0:
        state = fold(state, EndpointDeclared(replace(spec, revision="b")), at_s=at_s)
    if draw(st.integers(0, 4)) == 0:
        state = fold(state, NodeDraining(NodeId(draw(st.sampled_from(sorted(nodes)))), "r"), at_s=at_s)
    return state


def aside(costs_s: float) -> StepAside:
    """A park, and what a restart costs more."""
    tier = Tier.EVICT_AND_CUDA
    return StepAside(tier=tier, fallbacks=(), free_s=1.0, resume_s=1.0, restart_costs_s=costs_s, reason="r")
