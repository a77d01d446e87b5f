"""Series of failures: of jobs that crash without getting further, of seats whose replicas fail."""

from dataclasses import replace

import pytest

from ebbtide.pool.backoff import backoff_s
from ebbtide.pool.events import (
    Body,
    CancelJob,
    DrainSeat,
    EndpointDeclared,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobParked,
    JobRecovered,
    JobStopped,
    JobSubmitted,
    NodeLost,
    ParkJob,
    SeatDied,
    SeatGone,
    SeatStopped,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import SlotState
from tests.platform.pool.builder import ENDPOINT, JOB, NODE, READY, RUNNING, S0, S1, S2, SEAT, SPEC, after, pool

RAN = after(pool(), *RUNNING, JobDurable(JOB, 5))  # five steps, all durable


def crash(state: PoolState, lost: int, at_s: float = 100.0) -> PoolState:
    """A running gang dies and is cleared away."""
    return after(state, JobCrashed(JOB, f"at {lost}", lost), SlotFreed(S0), SlotFreed(S1), JobRecovered(JOB), at_s=at_s)


def again(state: PoolState, at_s: float) -> PoolState:
    return after(state, *RUNNING, at_s=at_s)


def counted(job: JobRecord) -> tuple[int, float, int]:
    return job.failures_in_a_row, job.not_before_s, job.furthest_step


@pytest.mark.proves("a crash after progress is no failure")
def test_a_crash_after_progress_waits_for_nothing_and_the_next_at_the_same_step_waits_twice_as_long_each_time() -> None:
    state = crash(RAN, 4)
    assert counted(state.jobs[JOB]) == (0, 100.0, 9)
    durable = after(again(state, 100.0), JobDurable(JOB, 12))
    assert counted(crash(durable, 0).jobs[JOB]) == (0, 100.0, 12), "a step that is durable already is progress too"
    state = crash(again(state, 100.0), 4, at_s=200.0)
    assert counted(state.jobs[JOB]) == (1, 202.0, 9)
    state = crash(again(state, 202.0), 3, at_s=300.0)
    assert counted(state.jobs[JOB]) == (2, 304.0, 9)
    assert state.jobs[JOB].last_error == "at 3"
    state = crash(again(state, 304.0), 5, at_s=400.0)
    assert counted(state.jobs[JOB]) == (0, 400.0, 10)


@pytest.mark.proves("a parked rank's older word takes no step back")
def test_a_rank_that_reports_an_older_step_than_its_checkpoint_takes_no_step_back() -> None:
    gone = (SlotFreed(S0), SlotFreed(S1))
    parked = after(RAN, ParkJob(JOB, "r"), JobDurable(JOB, 9), *gone, JobParked(JOB, 8))
    stopped = after(RAN, StopJob(JOB, "r", preempts=True), JobDurable(JOB, 9), *gone, JobStopped(JOB, 8))
    assert (parked.jobs[JOB].step, stopped.jobs[JOB].step) == (9, 9)


@pytest.mark.proves("only progress ends a series of failures")
def test_a_durable_step_that_nobody_reached_before_ends_the_series() -> None:
    state = crash(again(crash(again(crash(RAN, 0), 102.0), 0, at_s=200.0), 204.0), 0, at_s=300.0)
    assert state.jobs[JOB].failures_in_a_row == 2, "the first of the three had got further"
    assert after(state, JobDurable(JOB, 5)).jobs[JOB].failures_in_a_row == 2, "an earlier gang had got there"
    assert after(state, JobDurable(JOB, 6)).jobs[JOB].failures_in_a_row == 0


@pytest.mark.proves("the pause after failures has a bound")
def test_the_wait_is_bounded() -> None:
    assert [backoff_s(n) for n in (0, 1, 2, 5, 6, 60)] == [0.0, 2.0, 4.0, 32.0, 60.0, 60.0]


@pytest.mark.proves("a restored job keeps its counts")
def test_a_restored_job_keeps_its_counts_and_a_submitted_one_begins_anew() -> None:
    state = after(crash(again(crash(RAN, 0), 100.0), 0), JobEnded(JOB, "lost", "silent"))
    restored = after(state, JobSubmitted(SPEC, "i2", restored=True), at_s=500.0).jobs[JOB]
    assert (restored.incarnation, restored.restores, restored.crashes, restored.outcome) == ("i2", 1, 2, "")
    assert (restored.failures_in_a_row, restored.submitted_s, restored.since_s) == (1, 100.0, 500.0)
    fresh = after(state, JobSubmitted(SPEC, "i2"), at_s=500.0).jobs[JOB]
    assert (fresh.restores, fresh.crashes, fresh.failures_in_a_row, fresh.furthest_step) == (0, 0, 0, 5)


def test_a_lost_job_can_be_cancelled_and_one_that_was_submitted_again_meanwhile_stays_cancelled() -> None:
    lost = after(RAN, JobEnded(JOB, "lost", "silent for 10 s"))
    state = after(lost, CancelJob(JOB, "by me"))
    assert state.jobs[JOB].cancelled and not violations(state)
    assert state.jobs[JOB].outcome == "cancelled: by me (it was lost: silent for 10 s)"
    assert after(state, JobSubmitted(SPEC, "i2", restored=True)).jobs[JOB].cancelled
    assert not after(state, JobSubmitted(SPEC, "i2")).jobs[JOB].cancelled, "its author has submitted it anew"


@pytest.mark.proves("a restored job drops the lease of before")
def test_a_job_may_be_restored_while_its_last_slots_are_still_on_their_way_back() -> None:
    state = after(pool(), *RUNNING, JobEnded(JOB, "lost", "silent"), JobSubmitted(SPEC, "i2", restored=True))
    assert violations(state) == []
    assert {state.slots[slot].state for slot in (S0, S1)} == {SlotState.RECLAIMING}


@pytest.mark.proves("a new durable step ends a series of restores")
def test_a_durable_step_ends_a_series_of_restores() -> None:
    state = after(RAN, JobEnded(JOB, "lost", ""), JobSubmitted(SPEC, "i2", restored=True))
    assert after(state, JobDurable(JOB, 5)).jobs[JOB].restores == 1
    assert after(state, JobDurable(JOB, 6)).jobs[JOB].restores == 0


@pytest.mark.proves(
    "a dead node is no failure of its replica",
    "a death that was noticed before its node's is no failure",
    "a landing in the wrong place is no failure of the replica",
    "failures outlive a short READY",
)
@pytest.mark.parametrize(
    ("events", "at_s", "failures"),
    [
        ((*READY[:1], SeatStopped(SEAT, "w")), 100.0, 1),
        ((*READY[:2], SeatStopped(SEAT, "w")), 100.0, 1),
        ((*READY, SeatDied(SEAT, "w")), 159.0, 1),
        ((*READY, SeatDied(SEAT, "w"), READY[2], SeatDied(SEAT, "w")), 159.0, 2),
        ((*READY, SeatDied(SEAT, "w"), READY[2], SeatStopped(SEAT, "w")), 159.0, 2),
        ((*READY, DrainSeat(SEAT, "r"), SeatStopped(SEAT, "drained")), 100.0, 0),
        ((*READY, NodeLost(NODE), SeatStopped(SEAT, "w")), 100.0, 0),
        ((*READY[:1], NodeLost(NODE), SeatStopped(SEAT, "w")), 100.0, 0),
        ((*READY, SeatDied(SEAT, "w"), NodeLost(NODE), SeatStopped(SEAT, "w")), 100.0, 0),
        ((*READY[:1], SeatStopped(SEAT, "w", failed=False)), 100.0, 0),
    ],
)
def test_what_counts_as_a_failure_of_a_seat(events: tuple[Body, ...], at_s: float, failures: int) -> None:
    seat = after(pool(), *events).seats[SEAT]
    assert seat.failures == failures
    assert seat.last_error == "w" or not failures


@pytest.mark.proves("a replica that was asked to leave has not failed")
def test_a_replica_that_was_ready_for_a_minute_ends_the_series() -> None:
    failing = after(pool(), *READY, SeatDied(SEAT, "w"), READY[2], SeatDied(SEAT, "w"), READY[2])
    assert failing.seats[SEAT].failures == 2
    assert after(failing, SeatDied(SEAT, "w"), at_s=159.0).seats[SEAT].failures == 3
    assert after(failing, SeatDied(SEAT, "w"), at_s=160.0).seats[SEAT].failures == 1
    assert after(failing, DrainSeat(SEAT, "r"), at_s=101.0).seats[SEAT].failures == 0  # it did all that was asked
    gone = after(failing, DrainSeat(SEAT, "r"), at_s=160.0).seats[SEAT]
    assert (gone.failures, gone.last_error) == (0, "")


@pytest.mark.proves("failures of another revision say nothing of this one")
def test_failures_of_one_revision_say_nothing_of_another() -> None:
    state = after(pool(), EndpointDeclared(replace(ENDPOINT, revision="a")), READY[0], SeatStopped(SEAT, "w"))
    state = after(state, SlotFreed(S2), SeatGone(SEAT))
    assert after(state, READY[0]).seats[SEAT].failures == 1
    other = after(state, EndpointDeclared(replace(ENDPOINT, revision="b")), READY[0])
    assert (other.seats[SEAT].failures, other.seats[SEAT].revision) == (0, "b")


def test_a_failure_is_permanent_until_the_next_one_says_otherwise_or_the_revision_is_another() -> None:
    state = after(pool(), EndpointDeclared(replace(ENDPOINT, revision="a")), READY[0])
    state = after(state, SeatStopped(SEAT, "w", permanent=True), SlotFreed(S2), SeatGone(SEAT))
    assert state.seats[SEAT].permanent and after(state, READY[0]).seats[SEAT].permanent
    assert not after(state, READY[0], SeatStopped(SEAT, "w")).seats[SEAT].permanent
    assert not after(state, *READY, DrainSeat(SEAT, "r")).seats[SEAT].permanent, "it came up after all"
    other = after(state, EndpointDeclared(replace(ENDPOINT, revision="b")), READY[0])
    assert not other.seats[SEAT].permanent
    lost = after(pool(), READY[0], NodeLost(NODE), SeatStopped(SEAT, "w", permanent=True)).seats[SEAT]
    assert (lost.failures, lost.permanent) == (0, False), "a dead node is no failure of its replica"


def test_a_new_revision_starts_without_the_words_of_the_last_ones_failure_and_its_own_are_kept() -> None:
    failed = after(pool(), *READY[:1], SeatStopped(SEAT, "no such option"), SlotFreed(S2), SeatGone(SEAT))
    again = after(failed, EndpointDeclared(replace(ENDPOINT, replicas_max=9)), READY[0]).seats[SEAT]
    assert (again.failures, again.last_error) == (1, "no such option") and again.failure is not None
    new = after(failed, EndpointDeclared(replace(ENDPOINT, revision="b")), READY[0])
    assert (new.seats[SEAT].failures, new.seats[SEAT].last_error, new.seats[SEAT].failure) == (0, "", None)
    worse = after(new, SeatStopped(SEAT, "out of memory"))
    assert (worse.seats[SEAT].failures, worse.seats[SEAT].last_error) == (1, "out of memory")


def test_a_job_tells_when_it_crashed_and_when_it_trained_since() -> None:
    crashed = crash(RAN, 4, at_s=200.0)
    assert crashed.jobs[JOB].crashed_s == 200.0 > crashed.jobs[JOB].ran_since_s
    job = again(crashed, 300.0).jobs[JOB]
    assert job.ran_since_s == 300.0 > job.crashed_s and job.last_error == "at 4"
