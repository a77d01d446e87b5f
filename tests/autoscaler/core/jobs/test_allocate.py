"""Who gets what is free, in which order, and for how long anything is kept for somebody."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    Decision,
    DrainSeat,
    GrantJob,
    JobCrashed,
    JobHeld,
    JobParked,
    JobRecovered,
    JobReleased,
    JobRunning,
    JobStopped,
    JobSubmitted,
    Move,
    ParkJob,
    ResumeJob,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import JobName, seat_id
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.jobs.owed_minima import minima_owed
from ebbtide_autoscaler.core.plan.fair_share import Team
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.plan.job_order import job_order
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    CONFIG,
    HELD,
    IDLE,
    NOW,
    S0,
    S1,
    S2,
    SEAT0,
    TRAIN,
    a_pool,
    fold,
    kinds,
    look,
    parked,
    signals,
    slots,
    with_job,
    with_ready,
)
from tests.builders.pools import aside, pools
from tests.examples import examples

HOUR_S = 3600.0
STARVES = replace(CONFIG, starve_after_s=HOUR_S)
S3 = slots(4)[3]


def waiting(state: PoolState, name: str, workers: int, at_s: float, priority: int = 0) -> PoolState:
    spec = a_job(name, workers_min=workers, workers_max=workers, priority=priority)
    return fold(state, JobSubmitted(spec, "i"), at_s=at_s)


def crowded(large_since_s: float) -> PoolState:
    """Four slots: an old job on one, two young ones, one free; a job of three waits."""
    state = a_pool(nodes={"n0": 4})
    state = with_job(state, a_job("old", workers_max=1), (S0,), at_s=NOW - 9 * HOUR_S)
    state = waiting(state, "large", 3, large_since_s)
    state = with_job(state, a_job("young", workers_max=1), (S1,), at_s=NOW - 600.0)
    return with_job(state, a_job("younger", workers_max=1), (S2,), at_s=NOW - 300.0)


def test_a_small_job_passes_a_large_one_that_lacks_slots() -> None:
    state = waiting(crowded(NOW - 0.9 * HOUR_S), "small", 1, NOW - 10.0)
    found = look(state, config=STARVES)
    assert [(type(move), getattr(move, "job", "")) for move in found.moves] == [(GrantJob, "small")]
    assert "large" in dict(found.waits)


@pytest.mark.proves("what is free is kept for a job that starves")
def test_one_that_has_waited_for_too_long_has_what_is_free_kept_and_those_after_it_step_aside() -> None:
    state = waiting(crowded(NOW - 1.1 * HOUR_S), "small", 1, NOW - 10.0)
    found = look(state, config=STARVES)
    assert {(type(move), getattr(move, "job", "")) for move in found.moves} == {
        (ParkJob, "young"),
        (ParkJob, "younger"),
    }
    assert "has waited for 1.1 h" in dict(found.waits)["large"]
    assert "small" in dict(found.waits)


def test_no_more_step_aside_than_it_lacks_and_the_last_one_first() -> None:
    state = a_pool(nodes={"n0": 4})
    state = waiting(state, "large", 2, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("young", workers_max=1), (S1,), at_s=NOW - 600.0)
    state = with_job(state, a_job("younger", workers_max=1), (S2,), at_s=NOW - 300.0)
    state = with_job(state, a_job("youngest", workers_max=1), (S3,), at_s=NOW - 200.0)
    found = look(state, config=STARVES)
    assert [getattr(move, "job", "") for move in found.moves] == ["youngest"]


def test_nothing_is_kept_for_what_the_pool_cannot_come_to_give() -> None:
    state = a_pool(nodes={"n0": 4})
    state = with_job(state, a_job("old", workers_max=2), (S0, S1), at_s=NOW - 9 * HOUR_S)
    state = waiting(state, "large", 3, NOW - 2 * HOUR_S)
    state = waiting(state, "small", 1, NOW - 10.0)
    found = look(state, config=STARVES)
    assert [(type(move), getattr(move, "job", "")) for move in found.moves] == [(GrantJob, "small")]


def test_those_of_higher_priority_and_within_their_minimum_runtime_stay() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 3, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("urgent", workers_max=1, priority=1), (S1,), at_s=NOW - 300.0)
    state = with_job(state, a_job("new", workers_max=1, min_runtime_s=900.0), (S2,), at_s=NOW - 300.0)
    assert look(state, config=STARVES).moves == ()


@pytest.mark.proves("a protected job makes no room for another job")
def test_one_within_its_minimum_runtime_is_passed_over_for_one_that_came_before_it() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 3, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("young", workers_max=1), (S1,), at_s=NOW - 600.0)
    state = with_job(state, a_job("new", workers_max=1, min_runtime_s=900.0), (S2,), at_s=NOW - 300.0)
    assert [getattr(move, "job", "") for move in look(state, config=STARVES).moves] == ["young"]


@pytest.mark.proves("slots of a job that has just parked are kept")
def test_a_job_that_has_just_parked_keeps_its_slots_for_as_long_as_a_restart_costs() -> None:
    state = with_job(a_pool(nodes={"n0": 4}), a_job("gang", workers_min=3, workers_max=3), (S0, S1, S2))
    for ago_s, taken in ((CONFIG.restart_cost_s - 1.0, False), (CONFIG.restart_cost_s + 1.0, True)):
        aside = parked(state, JobName("gang"), at_s=NOW - ago_s)
        aside = with_job(aside, a_job("other", workers_max=1), (S0,), at_s=NOW - 1.0)
        aside = with_job(aside, a_job("more", workers_max=1), (S3,), at_s=NOW - 1.0)
        found = look(waiting(aside, "small", 1, NOW - 0.5), config=CONFIG)
        assert any(isinstance(move, GrantJob) and move.job == "small" for move in found.moves) is taken


def test_a_parked_job_takes_its_own_slots_before_jobs_that_came_after_it() -> None:
    state = parked(with_job(a_pool(), a_job("gang", workers_min=2, workers_max=2), (S0, S1)), JobName("gang"))
    found = look(waiting(state, "small", 2, NOW - 1.0))
    assert [(type(move), getattr(move, "job", "")) for move in found.moves] == [(ResumeJob, "gang")]


@pytest.mark.proves("a parked job resumes on exactly its slots")
def test_a_parked_job_does_not_resume_on_other_slots_although_as_many_are_free() -> None:
    state = parked(with_job(a_pool(nodes={"n0": 5}), a_job(workers_max=2), (S0, S1)))
    assert kinds(look(state)) == ["ResumeJob"]
    taken = with_ready(state, SEAT0, (S0,), at_s=NOW - 4.0)
    assert look(taken, traffic=signals(inflight=1, last_arrival_s=NOW)).moves == ()


@pytest.mark.proves(
    "a job that crashed waits before it gets slots again", "replicas that lack slots go before waiting jobs"
)
def test_a_job_that_has_crashed_starts_after_a_pause_and_after_replicas_that_lack_slots() -> None:
    """Also where a slot is free that is of no use to the replica: it needs two on one node."""
    state = a_pool(nodes={"n0": 2, "n1": 1}, endpoints=(an_endpoint(slots_per_replica=2),))
    state = with_job(with_job(state, a_job("runs", workers_max=1), (S0,)), a_job(workers_max=1), (S1,))
    crash = (JobCrashed(TRAIN, "w", 0), SlotFreed(S1), JobRecovered(TRAIN))
    assert look(fold(state, *crash, at_s=NOW - 0.1)).moves == ()
    state = fold(state, *crash, at_s=NOW - 100.0)
    assert kinds(look(state)) == ["GrantJob"]
    assert kinds(look(state, traffic=HELD)) == ["ParkJob"]


def test_a_long_line_is_answered_name_by_name() -> None:
    state = with_job(a_pool(), a_job("gang", workers_max=3), (S0, S1, S2))
    for number in range(30):
        state = waiting(state, f"j{number}", 1 + number % 3, NOW - 100.0)
    found = look(state, config=STARVES)
    assert {name for name, _ in found.waits} >= {f"j{number}" for number in range(30)}
    assert not [move for move in found.moves if not isinstance(move, StopJob)]


def lived(
    state: PoolState, config: PolicyConfig, seconds: int, traffic: EndpointSignals = IDLE
) -> tuple[list[tuple[int, str, str]], PoolState]:
    """What is decided, second by second, where every job does at once what it is told; and the pool afterwards."""
    memory, told = Memory(), list[tuple[int, str, str]]()
    for second in range(seconds):
        at_s = NOW + second
        found, memory = decide(at_s, Snapshot(state, {CHAT: traffic}), memory, config)
        for move in found.moves:
            told.append((second, type(move).__name__, str(getattr(move, "job", ""))))
            state = obeyed(fold(state, move, at_s=at_s), Decision(moves=(move,)), at_s)
    return told, state


def obeyed(state: PoolState, found: Decision, at_s: float) -> PoolState:
    for move in found.moves:
        if isinstance(move, GrantJob | ResumeJob):
            state = fold(state, JobRunning(move.job, 5), at_s=at_s)
        elif isinstance(move, ParkJob | StopJob):
            job = state.jobs[move.job]
            held = state.held_by(move.job, job.epoch)
            over = JobParked(move.job, 5) if isinstance(move, ParkJob) else JobStopped(move.job, 5)
            state = fold(state, *(SlotFreed(slot) for slot in held), over, at_s=at_s)
    return state


def test_what_steps_aside_is_given_to_the_one_that_starves_and_comes_back_after_it() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 3, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("young", workers_min=4, workers_max=4), slots(4), at_s=NOW - 600.0)
    told, state = lived(state, STARVES, 60)
    # What has just parked keeps its slots for as long as a restart costs, from this one too.
    assert told == [(0, "ParkJob", "young"), (20, "GrantJob", "large")]
    assert state.jobs[JobName("young")].state is JobState.PARKED


def test_only_one_job_at_a_time_is_helped() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 2, NOW - 3 * HOUR_S)
    state = waiting(state, "next", 2, NOW - 2 * HOUR_S)
    for name, slot in zip("abcd", slots(4), strict=True):
        state = with_job(state, a_job(name, workers_max=1), (slot,), at_s=NOW - 600.0)
    found = look(state, config=STARVES)
    assert len(found.moves) == 2
    assert "is kept for it" in dict(found.waits)["large"] and "is kept for it" not in dict(found.waits)["next"]


def test_who_has_run_meanwhile_has_not_waited_for_all_that_time() -> None:
    state = with_job(a_pool(nodes={"n0": 4}), a_job("large", workers_min=3), slots(3), at_s=NOW - 9 * HOUR_S)
    state = fold(state, JobCrashed(JobName("large"), "w", 0), *map(SlotFreed, slots(3)), at_s=NOW - 600.0)
    state = fold(state, JobRecovered(JobName("large")), at_s=NOW - 600.0)
    state = with_job(state, a_job("young", workers_max=4), slots(4), at_s=NOW - 500.0)
    assert look(state, config=STARVES).moves == ()


@pytest.mark.parametrize("cost_s", [5.0, 90.0])
def test_how_long_slots_are_kept_is_what_a_restart_of_that_very_job_costs(cost_s: float) -> None:
    state = with_job(a_pool(nodes={"n0": 4}), a_job("gang", workers_min=3), slots(3))
    for after_s, taken in ((cost_s - 0.5, False), (cost_s + 0.5, True)):
        held = with_job(parked(state, JobName("gang"), at_s=NOW - after_s), a_job("o", workers_max=1), (S0,))
        held = waiting(with_job(held, a_job("m", workers_max=1), (S3,)), "small", 1, NOW - 0.1)
        found, _ = decide(NOW, Snapshot(held, {CHAT: IDLE}, {JobName("gang"): aside(cost_s)}), Memory(), CONFIG)
        assert any(isinstance(move, GrantJob) and move.job == "small" for move in found.moves) is taken


def test_no_job_is_given_the_reserve_however_long_it_has_waited() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 4, NOW - 9 * HOUR_S)
    config = replace(STARVES, reserve=1)
    assert look(state, config=config).moves == ()
    small = look(waiting(state, "small", 1, NOW - 1.0), config=config)
    assert [getattr(move, "job", "") for move in small.moves] == ["small"], "nor is anything kept for it in vain"


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(pools(), st.integers(0, 2), st.sampled_from([1.0, 50.0]))
def test_whoever_starves_what_is_decided_can_be_done_and_leaves_the_reserve(
    state: PoolState, reserve: int, starve_s: float
) -> None:
    config = replace(CONFIG, reserve=reserve, starve_after_s=starve_s)
    found = look(state, config=config)
    after = fold(state, *found.moves, at_s=NOW)
    assert violations(after) == []
    if any(isinstance(move, GrantJob | ResumeJob) for move in found.moves) and not minima_owed(state):
        assert len(after.free_slots()) >= reserve, "only a minimum that is owed may come out of it"
    firsts = [job for job in state.jobs.values() if job.state in (JobState.WAITING, JobState.PARKED)]
    for move in found.moves:
        if isinstance(move, ParkJob | StopJob) and "came before it" in move.reason:
            job = state.jobs[move.job]
            assert job.spec.workload_class is not WorkloadClass.NON_PREEMPTIBLE
            assert any(job_order(one) < job_order(job) and f"{one.spec.name}, which" in move.reason for one in firsts)


def test_a_job_that_keeps_its_minimum_keeps_it_before_one_that_starves_too() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 4, NOW - 2 * HOUR_S)
    kept = a_job("kept", workers_min=2, workers_max=4, workload_class=WorkloadClass.SEMI_PREEMPTIBLE)
    assert look(with_job(state, kept, slots(4), at_s=NOW - 600.0), config=STARVES).moves == ()


def test_nobody_steps_aside_for_slots_that_would_be_the_reserve() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 3, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("young"), slots(3), at_s=NOW - 600.0)
    state = with_ready(state, SEAT0, (S3,), at_s=NOW - 500.0)
    told, _ = lived(state, replace(STARVES, reserve=1), 60, signals(inflight=1, last_arrival_s=NOW + 1e6))
    assert told == []


@pytest.mark.parametrize("held", [True, False])
def test_a_job_that_a_person_releases_has_its_slots_kept_from_those_after_it(held: bool) -> None:
    state = with_job(a_pool(), a_job("first", workers_min=1, workers_max=2), (S0, S1), at_s=1_000.0)
    state = with_job(state, a_job("second", workers_min=1, workers_max=3), (S2,), at_s=1_001.0)
    if held:
        state = fold(state, JobHeld(JobName("first"), "o", "r"), at_s=NOW - 30.0)
    state = parked(state, JobName("first"), at_s=NOW - 30.0 if held else NOW - 1.0)
    state = fold(state, StopJob(JobName("second"), "goes on with 3 workers", preempts=False), at_s=NOW - 2.0)
    if held:
        state = fold(state, JobReleased(JobName("first"), "o"), at_s=NOW - 1.0)
    assert [move for move in look(state).moves if isinstance(move, ResumeJob)] == [
        ResumeJob(JobName("first"), "all its slots are free again")
    ]


@pytest.mark.proves("jobs have their turn by priority, then as they came")
@pytest.mark.parametrize("free", [1, 2])
def test_jobs_have_their_turn_by_priority_then_as_they_came(free: int) -> None:
    state = with_job(a_pool(), a_job("runs", workers_min=1, workers_max=1), (S0,))
    if free == 1:
        state = with_job(state, a_job("runs too", workers_min=1, workers_max=1), (S1,))
    for at_s, name, priority in [(2_000.0, "early", 0), (2_001.0, "urgent", 5), (2_002.0, "late", 0)]:
        spec = replace(a_job(name, workers_min=1, workers_max=1), priority=priority)
        state = fold(state, JobSubmitted(spec, "i"), at_s=at_s)
    given = [move.job for move in look(state).moves if isinstance(move, GrantJob)]
    assert given == ["urgent", "early"][:free]


def two_aside(
    first: JobSpec, starve_after_s: float = 4 * HOUR_S, free: int = 1, teams: tuple[Team, ...] = ()
) -> list[Move]:
    """What is decided for two jobs that parked long ago; the slot of the first is taken, that of the second free."""
    state = with_job(a_pool(nodes={"n0": 1 + free}), first, (S0,), at_s=NOW - 900.0)
    state = with_job(state, a_job("second", workers_max=1), (S1,), at_s=NOW - 800.0)
    for name in (first.name, JobName("second")):
        state = parked(state, name, at_s=NOW - 500.0)
    state = with_job(state, a_job("other", workers_max=1), (S0,), at_s=NOW - 400.0)
    config = replace(CONFIG, starve_after_s=starve_after_s, reserve=free - 1, teams=teams)
    return list(look(state, config=config).moves)


@pytest.mark.parametrize("free", [1, 2])
def test_a_job_that_can_return_does_so_before_another_is_started_on_its_slots(free: int) -> None:
    """In turn the first would be started on the slot of the second, and that one elsewhere; the reserve stays."""
    assert [type(move) for move in two_aside(a_job("first", workers_max=1), free=free)] == [ResumeJob]


@pytest.mark.proves("a job that starves or claims gets what is kept for one that can return")
@pytest.mark.parametrize(
    ("first", "starve_after_s"),
    [(a_job("first", workers_max=1), 300.0), (a_job("first", workers_max=1, priority=1), 4 * HOUR_S)],
)
def test_it_does_not_before_one_that_starves_or_matters_more(first: JobSpec, starve_after_s: float) -> None:
    found = two_aside(first, starve_after_s)
    assert [type(move) for move in found if getattr(move, "job", "") != "other"] == [StopJob]


@pytest.mark.parametrize(("guarantee", "then", "who"), [(1, StopJob, "first"), (0, ResumeJob, "second")])
def test_nor_before_one_that_claims_what_its_team_was_promised(guarantee: int, then: type[Move], who: str) -> None:
    found = two_aside(a_job("first", workers_max=1, team="theirs"), teams=(Team("theirs", guarantee),))
    assert [(type(move), move.job) for move in found if isinstance(move, StopJob | ResumeJob)] == [(then, who)]


def test_the_replica_that_goes_is_one_on_whose_slot_a_job_would_go_on() -> None:
    endpoint = an_endpoint(replicas_min=2, replicas_max=3)
    state = with_job(a_pool(endpoints=(endpoint,)), a_job("aside", workers_max=1), (S1,))
    state = parked(state, JobName("aside"), at_s=NOW - 900.0)
    for number, slot in enumerate((S0, S1, S2)):
        state = with_ready(state, seat_id(CHAT, number), (slot,), at_s=NOW - 800.0)
    found = look(state, for_s=60.0)
    assert [move.seat for move in found.moves if isinstance(move, DrainSeat)] == [seat_id(CHAT, 1)]


def test_a_parked_job_is_told_that_others_have_its_slots_from_now_on() -> None:
    """They are free in the ledger still; "taken by free" is no answer to anybody."""
    state = parked(with_job(a_pool(), a_job("gang", workers_min=2, workers_max=2), (S0, S1)), JobName("gang"))
    state = waiting(state, "urgent", 2, NOW - 1.0, priority=1)
    assert dict(look(state).waits)["gang"].startswith("parked: 2 of its slots taken by others that go first")
