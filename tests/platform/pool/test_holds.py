"""A person holds a job aside: what that changes of the rules for jobs, and how long it lasts."""

from dataclasses import replace

import pytest

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    CancelJob,
    GrantJob,
    JobCrashed,
    JobEnded,
    JobHeld,
    JobParked,
    JobRecovered,
    JobReleased,
    JobRunning,
    JobSubmitted,
    ParkJob,
    ResumeJob,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import Hold, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState
from tests.platform.pool.builder import JOB, JOB_IN, PARKED, RUNNING, S0, S1, SPEC, after, pool

HELD, RELEASED = JobHeld(JOB, "ann", "new data"), JobReleased(JOB, "bob")
FREED = (SlotFreed(S0), SlotFreed(S1))


def refusal(state: PoolState, body: Body) -> str:
    with pytest.raises(IllegalTransition) as error:
        after(state, body)
    return str(error.value)


@pytest.mark.proves(
    "a job is held by one person at a time",
    "a released job waits from its release on",
    "nothing is owed to a released job before it has run",
)
@pytest.mark.parametrize("state", [one for one in JobState if one is not JobState.ENDED])
def test_a_hold_says_who_and_why_and_since_when_and_moves_nothing_by_itself(state: JobState) -> None:
    before = after(pool(), *JOB_IN[state])
    held = after(before, HELD, at_s=200.0)
    assert held.jobs[JOB].held == Hold("ann", "new data", 200.0)
    assert "held by ann already" in refusal(held, replace(HELD, by="bob"))
    free = after(held, RELEASED, at_s=201.0)
    (was,) = before.jobs.values()
    asked_s = 201.0 if state is JobState.PARKED else was.asked_s
    aside = state not in JOB_HOLDS_SLOTS
    assert free.jobs[JOB] == replace(was, cause=free.jobs[JOB].cause, asked_s=asked_s, stood_aside=aside)
    assert "is not held" in refusal(free, RELEASED)
    assert violations(held) == violations(free) == []


def test_that_nothing_may_stay_in_memory_can_be_asked_for_later_and_the_first_ones_word_stands() -> None:
    held, more = after(pool(), *PARKED, HELD, at_s=200.0), JobHeld(JOB, "bob", "the node goes", off_node=True)
    was = held.jobs[JOB].held
    assert was is not None and not was.off_node
    off = after(held, more, at_s=300.0)
    assert off.jobs[JOB].held == replace(was, off_node=True)
    for again in (HELD, more):
        assert "held by ann already" in refusal(off, again)
    assert after(pool(), *RUNNING, more, at_s=300.0).jobs[JOB].held == Hold("bob", "the node goes", 300.0, True)


@pytest.mark.proves("a held job does not resume", "a held job is granted nothing")
def test_a_held_job_is_granted_nothing_and_does_not_resume_until_its_release() -> None:
    waiting, parked = after(pool(), HELD), after(pool(), *PARKED, HELD)
    grant, resume = GrantJob(JOB, (S0, S1), "r"), ResumeJob(JOB, "r")
    assert "is held by ann" in refusal(waiting, grant) and "is held by ann" in refusal(parked, resume)
    assert after(waiting, RELEASED, grant).jobs[JOB].state is JobState.STARTING
    assert after(parked, RELEASED, resume).jobs[JOB].state is JobState.RESUMING


@pytest.mark.proves(
    "a park that a person wished counts as no preemption",
    "a person's wish to park goes before a job's class",
    "a person's wish to stop goes before a job's class",
    "a stop that a person wished counts as no preemption",
)
@pytest.mark.parametrize("move", [ParkJob(JOB, "r"), StopJob(JOB, "r", preempts=True)])
def test_a_persons_wish_goes_before_the_class_of_a_job_and_counts_as_no_preemption(move: Body) -> None:
    running = after(pool(workload_class=WorkloadClass.NON_PREEMPTIBLE), *RUNNING)
    assert "non-preemptible" in refusal(running, move)
    aside = after(running, HELD, move).jobs[JOB]
    assert aside.preempted_s == () and aside.state in (JobState.PARKING, JobState.STOPPING)
    assert after(pool(), *RUNNING, move).jobs[JOB].preempted_s == (100.0,), "the policy's own wish counts"


@pytest.mark.proves("a gang that is aside is stopped whatever its class")
def test_a_gang_that_was_parked_by_a_person_may_be_stopped_whatever_its_class() -> None:
    """It refused to park, or its slots are taken when it is released: neither is a new preemption."""
    for_all = pool(workload_class=WorkloadClass.NON_PREEMPTIBLE)
    stop = StopJob(JOB, "r", preempts=True)
    parking = after(for_all, *RUNNING, HELD, ParkJob(JOB, "r"))
    parked = after(parking, *FREED, JobParked(JOB, 9))
    for state in (parking, parked, after(parking, RELEASED), after(parked, RELEASED)):
        stopped = after(state, stop).jobs[JOB]
        assert (stopped.state, stopped.preempted_s) == (JobState.STOPPING, ())


@pytest.mark.proves(
    "a cancelled job is held no more",
    "a hold ends with its job, unless the driver was lost",
    "what is over or cancelled is not held",
)
def test_a_hold_outlives_a_crash_and_the_loss_of_the_driver_and_no_other_end() -> None:
    held = after(pool(), *RUNNING, HELD)
    crashed = after(held, JobCrashed(JOB, "w", 1), *FREED, JobRecovered(JOB))
    assert crashed.jobs[JOB].held and "is held by" in refusal(crashed, GrantJob(JOB, (S0, S1), "r"))
    again = JobSubmitted(SPEC, "i2", restored=True)
    lost = after(held, JobEnded(JOB, "lost", "silent"))
    assert after(lost, again).jobs[JOB].held == Hold("ann", "new data", 100.0)
    assert after(lost, RELEASED, again).jobs[JOB].held is None
    assert after(lost, replace(again, restored=False)).jobs[JOB].held is None, "its author has begun another run"
    for over in (JobEnded(JOB, "finished", ""), CancelJob(JOB, "r")):
        assert after(held, over).jobs[JOB].held is None
        assert refusal(after(held, over), HELD)


def test_a_job_that_was_put_aside_has_not_come_back_before_it_runs() -> None:
    granted = after(pool(), HELD, RELEASED, GrantJob(JOB, (S0, S1), "r"))
    assert granted.jobs[JOB].stood_aside and after(granted, HELD, RELEASED).jobs[JOB].stood_aside
    assert not after(granted, JobRunning(JOB, 9)).jobs[JOB].stood_aside


def test_a_released_job_waits_for_its_slots_from_then_on() -> None:
    """Not from the night before: else it would be restarted elsewhere because a slot of its is free a second late."""
    held = after(pool(), *PARKED, HELD, at_s=100.0)
    assert after(held, RELEASED, at_s=5000.0).jobs[JOB].asked_s == 5000.0
    parking = after(pool(), *RUNNING, HELD, ParkJob(JOB, "r"), at_s=100.0)
    assert after(parking, RELEASED, at_s=101.0).jobs[JOB].asked_s == 100.0, "its parking took from then on"
    running = after(pool(), *RUNNING, HELD, RELEASED, at_s=100.0)
    assert after(running, ParkJob(JOB, "r"), *FREED, JobParked(JOB, 9)).jobs[JOB].parks == 1
    assert after(held, RELEASED, ResumeJob(JOB, "r"), JobRunning(JOB, 9)).jobs[JOB].state is JobState.RUNNING
