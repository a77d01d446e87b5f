"""What follows for a job from what is said of it: each condition alone keeps the fact from following."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from ebbtide.client.messages import ControllerPhase, ControllerReport, RankPhase, RankReport
from ebbtide.pool.events import (
    Body,
    GrantJob,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobLoading,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    JobSubmitted,
    NodeLost,
    ParkJob,
    ResumeJob,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.job_facts import HANGS_S, LOADS_AFTER_S, facts
from ebbtide_autoscaler.core.observe.observation import STRAGGLER_S, Limits, Observation, Timestamped
from ebbtide_autoscaler.core.observe.workload_orders import controller_orders, may_end_early
from ebbtide_autoscaler.service.pool_view import view
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import S0, S1, TRAIN, a_pool, fold, rank

LIMITS = Limits(placement_timeout_s=15.0, start_timeout_s=40.0, gang_timeout_s=50.0, silence_s=10.0)
T = 2_000.0  # the last event
SPEC = a_job(grace_s=5.0, max_failures=2)

STARTING = fold(a_pool(), JobSubmitted(SPEC, "i"), GrantJob(TRAIN, (S0, S1), "r"), at_s=T)
RUNNING = fold(STARTING, JobRunning(TRAIN, 1), at_s=T)
PARKING = fold(RUNNING, ParkJob(TRAIN, "r"), at_s=T)
PARKING_FREE = fold(PARKING, SlotFreed(S0), SlotFreed(S1), at_s=T)
RESUMING = fold(PARKING_FREE, JobParked(TRAIN, 5), ResumeJob(TRAIN, "r"), at_s=T)
STOPPING = fold(RUNNING, StopJob(TRAIN, "r", preempts=True), at_s=T)
STOPPING_FREE = fold(STOPPING, SlotFreed(S0), SlotFreed(S1), at_s=T)
RECOVERING = fold(RUNNING, JobCrashed(TRAIN, "w", 0), at_s=T)
RECOVERING_FREE = fold(RECOVERING, SlotFreed(S0), SlotFreed(S1), at_s=T)

GANG, NO_GANG = ControllerPhase.GANG, ControllerPhase.NO_GANG


def said(phase: ControllerPhase = GANG, epoch: int = 1, **changes: Any) -> ControllerReport:
    return replace(ControllerReport("train", "i", phase, epoch), **changes)


def follow(
    state: PoolState,
    *ranks: RankReport,
    controller: ControllerReport | None = None,
    after_s: float = 1.0,
    heard_s: float | None = None,
    started_s: float = 0.0,
    back_s: float = -inf,
) -> list[Body]:
    """The facts ``after_s`` after the last event; the controller was heard then, or ``heard_s`` after that event."""
    controller = controller or said()
    heard = Timestamped(T + (after_s if heard_s is None else heard_s), controller)
    seen = Observation(
        started_s=started_s,
        back_s=back_s,
        ranks={(TRAIN, one.rank): Timestamped(T + 0.5, one) for one in ranks},
        controllers={TRAIN: heard},
    )
    return list(facts(state, seen, T + after_s, LIMITS))


def types(found: list[Body]) -> list[type]:
    return [type(one) for one in found if not isinstance(one, JobDurable)]


# ---- loading

LOADING = fold(STARTING, JobLoading(TRAIN), at_s=T)
LOADS = [rank(number, RankPhase.STARTING, step=0, durable_step=0, stands_at="load.py:7") for number in (0, 1)]
LEAVING = fold(LOADING, StopJob(TRAIN, "r", preempts=True), at_s=T)
LEAVING_FREE = fold(LEAVING, SlotFreed(S0), SlotFreed(S1), at_s=T)


def test_a_gang_that_is_up_and_does_not_train_loads() -> None:
    assert follow(STARTING, *LOADS, after_s=LOADS_AFTER_S) == []
    assert follow(STARTING, *LOADS, after_s=LOADS_AFTER_S + 0.1) == [JobLoading(TRAIN)]
    assert follow(LOADING, *LOADS, after_s=LOADS_AFTER_S + 0.1) == []
    assert follow(STARTING, LOADS[0], after_s=LOADS_AFTER_S + 0.1) == [], "one was never heard"
    assert follow(RESUMING, *LOADS, after_s=LOADS_AFTER_S + 0.1) == []


@pytest.mark.proves("a gang that loads is given its own time", "loading has a bound")
def test_ten_minutes_of_loading_are_fine_and_half_an_hour_is_a_hang() -> None:
    assert follow(LOADING, *LOADS, after_s=600.0) == []
    assert follow(LOADING, *LOADS, after_s=1800.0) == [], "its stack is to be in its log first"
    (end,) = follow(LOADING, *LOADS, after_s=1800.0 + HANGS_S + 0.1)
    assert isinstance(end, JobEnded) and end.outcome == "failed"
    assert "within 1800 s (startup_timeout_s): rank 0 stands at load.py:7" in end.detail
    quick = fold(
        a_pool(), JobSubmitted(replace(SPEC, startup_timeout_s=30.0), "i"), GrantJob(TRAIN, (S0, S1), "r"), at_s=T
    )
    assert types(follow(fold(quick, JobLoading(TRAIN), at_s=T), *LOADS, after_s=35.1)) == [JobEnded]


def test_a_gang_of_which_a_rank_is_never_heard_is_not_one_that_loads() -> None:
    assert types(follow(STARTING, LOADS[0], after_s=LIMITS.gang_timeout_s + 0.1)) == [JobCrashed]


def test_a_process_that_dies_while_it_loads_is_a_crash() -> None:
    assert types(follow(LOADING, *LOADS, controller=said(NO_GANG, last_error="its process died"))) == [JobCrashed]


@pytest.mark.proves("a gang that was ended before it began has lost nothing")
def test_a_gang_that_was_ended_before_it_began_has_not_crashed() -> None:
    left = [replace(one, phase=RankPhase.STOPPED, directive=2) for one in LOADS]
    killed = said(NO_GANG, failed_epoch=1, last_error="its process died")
    assert follow(LEAVING_FREE, *left, controller=killed) == [JobStopped(TRAIN, 0)]
    assert follow(LEAVING, *left, controller=killed) == [], "its slots are not proven free"
    trained = [replace(one, phase=RankPhase.RUNNING, step=3) for one in left]
    assert types(follow(LEAVING_FREE, *trained, controller=killed)) == [JobCrashed], "it had begun, and lost steps"


@pytest.mark.proves("a rank of this very gang must have said it", "a rank must have heard that it is to leave")
def test_a_gang_is_ended_early_only_by_the_word_of_a_rank_that_will_never_begin() -> None:
    job = LEAVING.jobs[TRAIN]
    word = replace(LOADS[0], phase=RankPhase.STOPPED, directive=job.directive)
    assert may_end_early(job, [LOADS[1], word])
    for other in (
        replace(word, phase=RankPhase.STARTING),
        replace(word, directive=job.directive - 1),
        replace(word, lease_epoch=0),
        replace(word, incarnation="before"),
    ):
        assert not may_end_early(job, [other]), other
    assert not may_end_early(STOPPING.jobs[TRAIN], [replace(word, directive=99)]), "it trains: it leaves in its own way"
    orders = controller_orders(LEAVING, job, "", ends_early=True)
    assert orders.kill_gang and orders.not_failed
    assert not controller_orders(LEAVING, job, "").kill_gang


# ---- coming up


@pytest.mark.proves(
    "a gang runs when every rank says so of this lease",
    "a gang runs when no rank is missing",
    "ranks of a gang of another size say nothing",
    "ranks of an earlier submission say nothing",
)
def test_a_gang_runs_when_every_rank_of_this_very_gang_trains_under_this_lease() -> None:
    first, second = rank(0, step=7), rank(1, step=7)
    assert follow(STARTING, first, second) == [JobRunning(TRAIN, 7)]
    for other in (
        None,
        rank(1, RankPhase.STARTING),
        rank(1, lease_epoch=0),
        rank(1, incarnation="before"),
        rank(1, world=3),
    ):
        assert follow(STARTING, *([first, other] if other else [first])) == [], other


def test_a_parked_gang_runs_again_when_it_has_taken_its_new_lease() -> None:
    assert follow(RESUMING, rank(0, step=5), rank(1, step=5)) == [], "their word of before the park"
    under = [rank(number, lease_epoch=2) for number in (0, 1)]
    assert types(follow(RESUMING, *under)) == [JobRunning]
    assert follow(RESUMING, under[0], rank(1)) == []


@pytest.mark.proves("a gang that does not come up is a crash")
@pytest.mark.parametrize("state", [STARTING, RESUMING], ids=["starting", "resuming"])
def test_a_gang_that_does_not_come_up_in_its_time_has_crashed(state: PoolState) -> None:
    assert follow(state, rank(0), after_s=49.0) == []
    assert types(follow(state, rank(0), after_s=51.0)) == [JobCrashed]
    assert follow(state, rank(0), after_s=51.0, started_s=T + 20.0) == [], "a new arbiter has not waited for it yet"


# ---- stepping aside


@pytest.mark.proves("a gang is parked when all ranks are", "a gang is parked when it holds no slot")
def test_a_gang_is_parked_when_every_rank_says_so_and_no_slot_is_held_any_more() -> None:
    both = [rank(number, RankPhase.PARKED) for number in (0, 1)]
    assert follow(PARKING_FREE, *both) == [JobParked(TRAIN, 5)]
    assert follow(PARKING, *both) == [], "its slots are not proven free"
    assert follow(PARKING_FREE, both[0]) == []
    assert follow(PARKING_FREE, both[0], rank(1)) == []
    assert follow(PARKING_FREE, both[0], rank(1, RankPhase.PARKED, incarnation="before")) == []


@pytest.mark.proves("ranks of an earlier gang say nothing")
def test_the_last_word_of_the_gang_before_parks_nobody() -> None:
    second = fold(STOPPING_FREE, JobStopped(TRAIN, 5), GrantJob(TRAIN, (S0, S1), "r"), JobRunning(TRAIN, 5), at_s=T)
    second = fold(second, ParkJob(TRAIN, "r"), SlotFreed(S0), SlotFreed(S1), at_s=T)
    before = [rank(number, RankPhase.PARKED) for number in (0, 1)]
    assert follow(second, *before, controller=said(epoch=2)) == []
    now = [replace(one, lease_epoch=2) for one in before]
    assert types(follow(second, *now, controller=said(epoch=2))) == [JobParked]


@pytest.mark.proves("a gang that cannot park stops")
def test_a_gang_that_cannot_park_is_stopped_instead() -> None:
    assert types(follow(PARKING, rank(0), rank(1, park_refused="it has a socket open"))) == [StopJob]
    assert follow(PARKING, rank(0), rank(1)) == []


def test_a_gang_that_cannot_park_goes_on_to_the_tier_that_its_park_names_next() -> None:
    state = fold(RUNNING, ParkJob(TRAIN, "r", ("evict_and_cuda", "stop_and_restart", "kill")), at_s=T)
    (stop,) = follow(state, rank(0), rank(1, park_refused="it has a socket open"))
    assert isinstance(stop, StopJob) and "it has a socket open" in stop.reason
    assert stop.reason.endswith("tried evict_and_cuda, goes on to stop_and_restart")


@pytest.mark.proves(
    "a controller of an earlier submission says nothing of this gang",
    "a controller's word of before the lease says nothing of the gang",
    "a gang that left without a checkpoint has crashed",
)
def test_a_job_has_stopped_when_it_left_everything_and_its_last_step_is_durable() -> None:
    gone = said(NO_GANG, durable_step=5)
    assert types(follow(STOPPING_FREE, rank(0), controller=gone)) == [JobStopped]
    assert follow(STOPPING, rank(0), controller=gone)[1:] == [], "its slots are not proven free"
    (crash,) = [f for f in follow(STOPPING_FREE, rank(0, step=6), controller=gone) if not isinstance(f, JobDurable)]
    assert isinstance(crash, JobCrashed) and crash.lost_steps == 1
    for controller in (said(GANG, durable_step=5), said(NO_GANG, incarnation="before"), said(NO_GANG, 0)):
        assert types(follow(STOPPING_FREE, rank(0), controller=controller)) == [], controller


def test_a_gang_that_dies_while_it_is_to_stop_has_crashed_though_nobody_knows_of_steps_that_are_not_durable() -> None:
    state = fold(STOPPING_FREE, JobDurable(TRAIN, 1))
    dead = said(NO_GANG, failed_epoch=1, last_error="rank 1: killed")
    [fact] = follow(state, controller=dead)  # its ranks spoke to an arbiter that is dead, too
    assert fact == JobCrashed(TRAIN, "rank 1: killed", 0)
    again = fold(
        STOPPING_FREE, JobStopped(TRAIN, 0), GrantJob(TRAIN, (S0, S1), "r"), StopJob(TRAIN, "r", preempts=True)
    )
    again = fold(again, SlotFreed(S0), SlotFreed(S1), at_s=T)
    left = said(NO_GANG, again.jobs[TRAIN].gang_epoch, failed_epoch=1)  # it was the gang before that failed
    assert types(follow(again, controller=left)) == [JobStopped]


@pytest.mark.proves(
    "a gang that does not step aside in its grace is given up",
    "a new arbiter gives what it waits for its whole time",
)
@pytest.mark.parametrize("state", [PARKING, STOPPING], ids=["parking", "stopping"])
def test_a_gang_that_does_not_step_aside_in_its_grace_has_crashed(state: PoolState) -> None:
    assert follow(state, rank(0), rank(1), after_s=4.9) == []
    assert types(follow(state, rank(0), rank(1), after_s=5.1)) == [JobCrashed]
    assert follow(state, rank(0), rank(1), after_s=5.1, started_s=T + 2.0) == [], "nobody could answer until then"


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ((rank(0, RankPhase.PARKED), rank(1, step=4)), "rank 1 came to no safe point after step 4"),
        ((rank(0), rank(1)), "ranks 0, 1 came to no safe point after step 5"),
        ((rank(0, RankPhase.PARKED),), "nothing is heard of rank 1"),
        ((rank(0, commit_error="no space left on device"), rank(1)), "no space left on device"),
        (
            (rank(0, RankPhase.STOPPED), rank(1, RankPhase.STOPPED)),
            "all of its ranks say that they have, and its slots are not free",
        ),
    ],
)
def test_what_kept_a_gang_from_stepping_aside_is_told(ranks: tuple[RankReport, ...], says: str) -> None:
    (crash,) = follow(STOPPING, *ranks, after_s=5.1)
    assert crash == JobCrashed(TRAIN, f"it did not step aside within its grace of 5 s: {says}", 5)


def test_what_refused_to_leave_until_its_grace_was_over_is_told() -> None:
    (crash,) = follow(STOPPING, rank(0, park_refused="it has a TCP connection"), rank(1), after_s=5.1)
    assert isinstance(crash, JobCrashed) and crash.why.endswith("of 5 s: it has a TCP connection")


# ---- crashes


@pytest.mark.parametrize("state", [STARTING, RUNNING, PARKING, PARKING_FREE, RESUMING])
def test_a_gang_whose_controller_has_no_worker_left_has_crashed(state: PoolState) -> None:
    assert types(follow(state, controller=said(NO_GANG, last_error="rank 1 was killed"))) == [JobCrashed]
    for controller in (said(GANG), said(NO_GANG, 0), said(NO_GANG, incarnation="before")):
        assert types(follow(state, controller=controller)) == [], controller


@pytest.mark.proves("a dead node under a gang is a crash")
def test_a_gang_has_crashed_when_a_node_died_under_it() -> None:
    dead = fold(RUNNING, NodeLost(NodeId("n0")), at_s=T)
    (crash,) = follow(dead, rank(0, step=9), rank(1, step=9), controller=said(durable_step=0))
    assert isinstance(crash, JobCrashed) and "its node is gone" in crash.why and crash.lost_steps == 9


@pytest.mark.proves("a controller that was told to wait before it took the lease is believed")
def test_a_crashed_job_has_recovered_when_nothing_of_it_is_left() -> None:
    gone = said(NO_GANG)
    assert follow(RECOVERING_FREE, controller=gone) == [JobRecovered(TRAIN)]
    assert follow(RECOVERING, controller=gone) == []
    assert follow(RECOVERING_FREE, controller=said(GANG)) == []
    never_started = said(NO_GANG, 0)
    assert follow(RECOVERING_FREE, controller=never_started) == [], "it may not have heard of the crash yet"
    late_s = STRAGGLER_S + 1.0
    assert follow(RECOVERING_FREE, controller=never_started, after_s=late_s) == [JobRecovered(TRAIN)]


@pytest.mark.proves("a job that fails again and again is given up")
def test_a_job_that_crashes_again_and_again_is_given_up() -> None:
    state = RECOVERING_FREE
    worn = replace(state, jobs={TRAIN: replace(state.jobs[TRAIN], failures_in_a_row=3, last_error="no memory")})
    (ended,) = follow(worn, controller=said(NO_GANG, log_tail="Traceback: boom"))
    assert isinstance(ended, JobEnded) and ended.outcome == "failed"
    assert "3 times" in ended.detail and "no memory" in ended.detail and "boom" in ended.detail


# ---- what is durable, and who is lost


@pytest.mark.proves("the controller's word on the durable step counts")
def test_the_durable_step_is_what_any_of_the_present_job_knows() -> None:
    assert follow(RUNNING, rank(0, durable_step=4), controller=said(durable_step=3)) == [JobDurable(TRAIN, 4)]
    assert follow(RUNNING, rank(0, durable_step=3), controller=said(durable_step=4)) == [JobDurable(TRAIN, 4)]
    before = said(durable_step=4, incarnation="before")
    assert follow(RUNNING, rank(0, incarnation="before", durable_step=9), controller=before) == []


@pytest.mark.proves("a driver may be silent for some seconds", "a driver's silence counts from its registration")
def test_a_job_is_lost_when_its_driver_has_been_silent_for_long_since_it_registered() -> None:
    def silent(state: PoolState, after_s: float, started_s: float = 0.0) -> list[type]:
        return types(follow(state, heard_s=0.0, after_s=after_s, started_s=started_s))

    assert silent(RUNNING, 9.9) == []
    assert silent(RUNNING, 10.1) == [JobEnded]
    assert silent(RUNNING, 10.1, started_s=T + 1.0) == [], "a new arbiter could not have heard it"
    lost = fold(RUNNING, JobEnded(TRAIN, "lost", "d"), at_s=T)
    restored = fold(lost, JobSubmitted(SPEC, "i2", restored=True), at_s=T + 60.0)
    assert silent(restored, 69.0) == [], "its new driver has just come"
    assert silent(restored, 71.0) == [JobEnded]


@pytest.mark.proves(
    "an arbiter that has just come back has waited for nothing",
    "an arbiter that was away blames no process for its own silence",
)
def test_an_arbiter_that_was_away_blames_nobody_for_what_it_did_not_hear() -> None:
    back_s, after_s = T + 12.0, 12.1
    assert follow(RUNNING, heard_s=0.0, after_s=after_s, back_s=back_s) == [], "its driver spoke meanwhile, unheard"
    assert types(follow(RUNNING, heard_s=0.0, after_s=22.1, back_s=back_s)) == [JobEnded], "it is silent indeed"
    long_s = LIMITS.gang_timeout_s + 0.1
    assert types(follow(STARTING, after_s=long_s)) == [JobCrashed]
    assert types(follow(STARTING, after_s=long_s, back_s=T + long_s - 0.1)) == [], "its ranks may be training since"
    assert types(follow(STARTING, after_s=long_s, back_s=T + long_s - 5.1)) == [JobCrashed], "nor did they say so then"
    grace_s = SPEC.grace_s + 0.1
    assert types(follow(PARKING, after_s=grace_s)) == [JobCrashed]
    assert types(follow(PARKING, after_s=grace_s, back_s=T + grace_s - 0.1)) == []


def test_a_status_says_that_a_job_loads_for_how_long_and_where() -> None:
    def waits(*ranks: RankReport) -> str:
        seen = Observation(started_s=0.0, ranks={(TRAIN, one.rank): Timestamped(T + 41.0, one) for one in ranks})
        (job,) = view(LOADING, seen, {}, T + 42.0)["jobs"]
        return str(job["waits"])

    assert waits(*LOADS) == "starting: not at its session yet, 42 s, process alive, at load.py:7"
    there = [replace(one, at_session=True, stands_at="") for one in LOADS]
    assert waits(*there) == "starting: at its session, not at its steps yet, 42 s, process alive"
    assert "1 of 2 processes heard" in waits(LOADS[0])
