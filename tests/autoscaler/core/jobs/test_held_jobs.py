"""Jobs that a person holds aside: the policy puts them aside, keeps them there, and keeps nothing for them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobEnded,
    JobHeld,
    JobReleased,
    JobRunning,
    JobStopped,
    JobSubmitted,
    NodeDraining,
    ParkJob,
    PoolFrozen,
    ResumeJob,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import JobName, NodeId, RecordId
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.jobs.owed_minima import is_owed
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory
from ebbtide_autoscaler.core.tick.tick import World, tick
from ebbtide_autoscaler.service.pool_view import view
from tests.autoscaler.closed_loop import KNOBS, a_job
from tests.builders.policy import (
    CONFIG,
    HELD,
    NOW,
    RUNNING3,
    S0,
    S1,
    S2,
    TRAIN,
    a_pool,
    fold,
    kinds,
    look,
    parked,
    slots,
    with_job,
)
from tests.builders.pools import random_states, traffics
from tests.examples import examples

ASIDE = JobHeld(TRAIN, "ann", "new data")
SAID = "held by ann since 1970-01-01 00:16:40 UTC (new data); `ebbtide resume train` lets it go on"


def held(state: PoolState) -> PoolState:
    return fold(state, ASIDE)


@pytest.mark.parametrize("kind", WorkloadClass)
def test_a_held_job_parks_in_place_whatever_is_free_and_whatever_its_class(kind: WorkloadClass) -> None:
    young = a_job(workload_class=kind, min_runtime_s=1e6, max_preemptions_per_h=0)
    (move,) = look(held(with_job(a_pool(), young, (S0,)))).moves
    assert move == ParkJob(TRAIN, "held by ann (new data): steps aside in place")


@pytest.mark.proves("a job parks only where there is host memory for it", "a job that a person holds leaves its slots")
def test_a_held_job_that_cannot_park_in_place_restarts() -> None:
    (move,) = look(held(with_job(a_pool(), a_job(in_place=False), (S0,)))).moves
    assert isinstance(move, StopJob) and "by a restart (in_place is off)" in move.reason
    (move,) = look(held(with_job(a_pool(host=10), a_job(), (S0, S1)))).moves
    assert isinstance(move, StopJob) and "no 20 bytes of host memory left" in move.reason


def test_a_held_job_of_which_nothing_may_stay_leaves_its_node_also_when_it_is_parked() -> None:
    off = replace(ASIDE, off_node=True)
    running = fold(with_job(a_pool(), a_job(), (S0,)), off)
    (move,) = look(running).moves
    assert move == StopJob(TRAIN, "held by ann (new data): nothing of it stays in memory", preempts=True)
    aside = parked(with_job(a_pool(), a_job(), (S0,)))
    (move,) = look(fold(aside, off)).moves
    assert isinstance(move, StopJob) and not move.preempts, "it stepped aside before"
    assert look(fold(aside, ASIDE)).moves == (), "and else it stays where it is"


@pytest.mark.proves("two jobs do not park into the same host memory")
def test_two_held_jobs_do_not_park_into_the_same_host_memory() -> None:
    state = with_job(with_job(a_pool(host=10), a_job("a", workers_max=1), (S0,)), a_job("b", workers_max=1), (S1,))
    for name in ("a", "b"):
        state = fold(state, JobHeld(JobName(name), "ann", "r"))
    assert kinds(look(state)) == ["ParkJob", "StopJob"]


@pytest.mark.proves("a held job gets no slots, nor keeps any for its return")
@pytest.mark.parametrize("for_s", [0.0, 60.0])
def test_a_held_job_is_never_resumed_restarted_started_or_grown_and_says_who_holds_it(for_s: float) -> None:
    aside = parked(RUNNING3, at_s=NOW - 5_000.0)
    stopped = fold(RUNNING3, StopJob(TRAIN, "r", preempts=True), *map(SlotFreed, (S0, S1, S2)), JobStopped(TRAIN, 9))
    waiting = fold(a_pool(), JobSubmitted(a_job(), "i"))
    for state in (aside, stopped, waiting):
        assert kinds(look(state, for_s=for_s)) in (["ResumeJob"], ["GrantJob"])
        found = look(held(state), for_s=for_s)
        assert (found.moves, dict(found.waits)[TRAIN]) == ((), SAID)
    small = with_job(a_pool(), a_job(), (S0,))
    assert kinds(look(small, for_s=60.0)) == ["StopJob"], "it grows"
    assert kinds(look(held(small), for_s=60.0)) == ["ParkJob"]


def test_a_released_job_resumes_as_any_parked_one_and_is_not_taken_for_one_that_waited_all_night() -> None:
    aside = held(parked(RUNNING3, at_s=NOW - 50_000.0))
    free = fold(aside, JobReleased(TRAIN, "bob"), at_s=NOW - 1.0)
    assert kinds(look(free)) == ["ResumeJob"]
    other = fold(aside, JobSubmitted(a_job("b", workers_max=1), "i"), GrantJob(JobName("b"), (S0,), "r"))
    (wait,) = look(fold(other, JobReleased(TRAIN, "bob"), at_s=NOW - 1.0)).waits
    assert wait == (TRAIN, "parked: 1 of its slots taken by b")
    assert kinds(look(fold(other, JobReleased(TRAIN, "bob"), at_s=NOW - 21.0))) == ["StopJob"]


@pytest.mark.proves("a held job's claim keeps nothing from others", "nothing is owed to a held job")
def test_what_a_held_job_leaves_is_kept_for_nobody() -> None:
    """Neither from jobs of lower priority, nor from replicas, nor as what it may not lose for ever."""
    aside = parked(with_job(a_pool(), a_job(priority=5), (S0, S1, S2)))
    aside = fold(aside, JobSubmitted(a_job("b", workers_min=3), "i"))
    assert kinds(look(aside)) == ["ResumeJob"], "unheld, it goes first"
    (move,) = look(held(aside)).moves
    assert isinstance(move, GrantJob) and (move.job, move.slots) == ("b", (S0, S1, S2))
    class_ = WorkloadClass.NON_PREEMPTIBLE
    leaving = with_job(a_pool(), a_job(workload_class=class_, in_place=False, workers_min=3), (S0, S1, S2))
    leaving = fold(held(leaving), StopJob(TRAIN, "r", preempts=True), SlotFreed(S0), SlotFreed(S1), SlotFreed(S2))
    for state in (leaving, fold(leaving, JobStopped(TRAIN, 9))):
        (grant,) = look(state, traffic=HELD).moves
        assert isinstance(grant, GrantSeat), "its minimum is owed to it only while it may come back"
        state = fold(state, JobSubmitted(a_job("b"), "i"))
        (start,) = look(state).moves
        assert isinstance(start, GrantJob) and len(start.slots) == 3


def test_nothing_is_owed_to_a_released_job_before_it_has_run_again() -> None:
    """Others may have taken its slots for good: one that was kept for it would lie idle while requests wait."""
    firm = a_job(workload_class=WorkloadClass.NON_PREEMPTIBLE, workers_min=2, in_place=False)
    gone = (StopJob(TRAIN, "r", preempts=True), SlotFreed(S0), SlotFreed(S1), JobStopped(TRAIN, 9))
    aside = fold(held(with_job(a_pool(), firm, (S0, S1))), *gone, JobReleased(TRAIN, "bob"))
    aside = with_job(aside, replace(firm, name=JobName("b")), (S1, S2))
    assert kinds(look(aside, traffic=HELD)) == ["GrantSeat"]
    again = with_job(a_pool(), firm, (S0, S1))
    again = fold(again, ASIDE, JobReleased(TRAIN, "bob"), JobCrashed(TRAIN, "w", 0), SlotFreed(S0), SlotFreed(S1))
    assert is_owed(again.jobs[TRAIN]), "it had not left its slots when it was released"
    ran = fold(aside, JobEnded(JobName("b"), "finished", ""), SlotFreed(S1), SlotFreed(S2))
    ran = fold(ran, GrantJob(TRAIN, (S0, S1), "r"), JobRunning(TRAIN, 9), JobCrashed(TRAIN, "w", 0))
    assert is_owed(ran.jobs[TRAIN])


@pytest.mark.proves("a held job's claim keeps nothing from others")
def test_a_replica_takes_the_slots_of_a_held_job_as_gladly_as_any() -> None:
    n1 = slots(1, "n1")
    state = with_job(a_pool(nodes={"n0": 1, "n1": 1}), a_job(workers_max=1), (S0,))
    (grant,) = [m for m in look(parked(state), traffic=HELD).moves if isinstance(m, GrantSeat)]
    assert grant.slots == n1, "so that the parked one can come back"
    (grant,) = [m for m in look(held(parked(state)), traffic=HELD).moves if isinstance(m, GrantSeat)]
    assert grant.slots == (S0,), "its claim weighs nothing"


def test_a_replica_waits_for_what_a_held_job_leaves_and_asks_nobody_else() -> None:
    state = with_job(a_pool(), a_job(workers_max=1), (S0,))
    state = with_job(state, a_job("b", workers_max=2, priority=-1), (S1, S2))
    assert [getattr(m, "job", "") for m in look(state, traffic=HELD).moves] == ["b"]
    assert [getattr(m, "job", "") for m in look(held(state), traffic=HELD).moves] == [TRAIN]


@pytest.mark.proves("a drain goes before a hold, one move for each job")
def test_a_held_job_leaves_a_node_that_drains_and_stays_aside() -> None:
    for state in (RUNNING3, parked(RUNNING3)):
        (move,) = look(held(fold(state, NodeDraining(NodeId("n0"), "disk")))).moves
        assert isinstance(move, StopJob) and "stays aside, held by a person" in move.reason


def test_a_frozen_pool_keeps_the_wish_and_says_both() -> None:
    world = World(fold(held(RUNNING3), PoolFrozen("night")), Memory(), 1)
    done = tick(world, Observation(started_s=NOW, back_s=NOW), (), NOW, KNOBS)
    assert done.decision.moves == ()
    assert dict(done.decision.waits)[TRAIN] == f"{SAID}; and the pool is frozen (night)"


def test_a_hold_that_comes_while_a_person_asks_is_carried_out_in_the_same_tick_and_is_its_cause() -> None:
    done = tick(World(RUNNING3, Memory(), 1), Observation(started_s=NOW, back_s=NOW), (ASIDE,), NOW, KNOBS)
    one, two = done.events
    assert (one.body, two.body.kind, two.cause) == (ASIDE, "park_job", one.id)


def test_status_says_who_holds_a_job_also_where_nobody_decides() -> None:
    seen = Observation(started_s=0.0)
    for state in (RUNNING3, parked(RUNNING3)):
        (job,) = view(held(state), seen, {}, NOW)["jobs"]
        facts = {"by": "ann", "reason": "new data", "since_at_s": 1_000.0, "off_node": False}
        assert job["held"] == facts and job["waits"] == SAID
    (job,) = view(held(RUNNING3), seen, {TRAIN: f"{SAID}; and the pool is frozen (night)"}, NOW)["jobs"]
    assert job["waits"].endswith("frozen (night)")
    (job,) = view(held(RUNNING3), seen, {TRAIN: "of a tick ago"}, NOW)["jobs"]
    assert job["waits"] == SAID
    (job,) = view(RUNNING3, seen, {}, NOW)["jobs"]
    assert job["held"] is None and job["waits"] is None


@settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)
@given(random_states(), traffics(), st.integers(0, 2), st.sampled_from([0.0, 30.0]))
def test_no_decision_ever_gives_a_held_job_slots_and_it_leaves_those_it_has(
    state: PoolState, traffic: EndpointSignals, reserve: int, for_s: float
) -> None:
    if TRAIN not in state.jobs:
        return
    state = held(state)
    state = fold(state, JobSubmitted(a_job("next", workers_max=1), "i"))
    found = look(state, traffic=traffic, config=replace(CONFIG, reserve=reserve), for_s=for_s)
    mine = [move for move in found.moves if getattr(move, "job", "") == TRAIN]
    assert not any(isinstance(move, GrantJob | ResumeJob) for move in mine)
    if state.jobs[TRAIN].state is JobState.RUNNING:
        assert [isinstance(move, ParkJob | StopJob) for move in mine] == [True]
    elif not mine:
        assert dict(found.waits)[TRAIN] == SAID
    for number, move in enumerate(found.moves):
        state = apply(state, Event(RecordId(f"2-{number}"), NOW, None, move))
    assert violations(state) == []
    wanted = "next" not in dict(found.waits)
    free = len(state.free_slots()) > reserve
    assert wanted or not free or state.seats, "a slot lies idle, and it is not for want of a job"
