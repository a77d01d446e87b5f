"""A pool that is being taken down: jobs leave with all that they have done, and nothing is granted meanwhile."""

from dataclasses import replace

import pytest

from ebbtide.pool.events import (
    CancelJob,
    GrantJob,
    GrantSeat,
    JobHeld,
    PoolFrozen,
    ResumeJob,
    StopJob,
    WakeSeat,
)
from ebbtide.pool.ids import JobName
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.transitions import JobState, SeatState
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, moves
from tests.builders.closed_loop import training, until

TRAIN = JobName("train")
GRANTS = (GrantJob, ResumeJob, GrantSeat, WakeSeat)
WHY = "the pool is being taken down by ann"


def granted(loop: Loop, duration_s: float) -> list[object]:
    return [event.body for event in loop.run(duration_s) if isinstance(event.body, GRANTS)]


@pytest.mark.proves("a pool that is being taken down grants nothing")
def test_a_running_job_leaves_with_its_checkpoint_and_nothing_is_granted_until_the_pool_stays_up_after_all() -> None:
    loop, driver = training()
    loop.run(5.0)
    loop.closing = WHY
    loop.submit(a_job("other"))
    loop.gateways[0].offer("chat")
    assert granted(loop, 30.0) == []
    job = loop.state.jobs[TRAIN]
    assert job.state is JobState.WAITING and job.durable_step == job.step > 0, loop.story()
    assert (job.crashes, job.crash_lost_steps, job.preempted_s) == (0, 0, ())
    assert loop.arbiter is not None
    for name in ("train", "other", "chat"):
        assert WHY in loop.arbiter.waits[name]
    loop.closing = ""
    loop.run(60.0)
    assert driver.step > job.step and loop.state.jobs[TRAIN].crash_lost_steps == 0
    assert loop.gateways[0].completed["chat"] == 1, loop.story()


@pytest.mark.parametrize("kind", WorkloadClass)
def test_it_goes_before_a_jobs_class_its_minimum_runtime_and_its_bound_on_preemptions(kind: WorkloadClass) -> None:
    loop = Loop(3)
    loop.submit(a_job(workload_class=kind, min_runtime_s=1e6, max_preemptions_per_h=0))
    loop.run(1.0)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    loop.run(3.0)
    loop.closing = WHY
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.WAITING)
    assert loop.state.jobs[TRAIN].crash_lost_steps == loop.state.jobs[TRAIN].crashes == 0


def test_one_that_is_parked_in_memory_publishes_and_leaves() -> None:
    loop, _ = training()
    loop.run(3.0)
    loop.tell(JobHeld(TRAIN, "ann", "r"))
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    loop.closing = WHY
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.WAITING)
    job = loop.state.jobs[TRAIN]
    assert job.durable_step == job.step > 0 and job.held is not None, "its hold stays"


def test_one_that_starts_is_asked_when_it_can_be() -> None:
    loop = Loop(5)
    loop.run(3.0)
    loop.submit(a_job())
    loop.run(0.4)
    assert loop.state.jobs[TRAIN].state is JobState.STARTING
    loop.closing = WHY
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.WAITING)
    assert loop.state.jobs[TRAIN].crashes == 0, loop.story()


def test_an_earlier_freeze_and_a_pool_that_observes_do_not_keep_jobs_on_their_slots() -> None:
    loop, _ = training()
    loop.run(3.0)
    loop.tell(PoolFrozen("night shift"))
    loop.knobs = replace(KNOBS, observe=True)
    loop.run(1.0)
    loop.closing = WHY
    assert [type(event.body) for event in moves(loop.run(30.0))] == [StopJob]
    assert loop.state.jobs[TRAIN].state is JobState.WAITING
    loop.closing = ""
    assert moves(loop.run(30.0)) == [], "and it is frozen afterwards"


def test_one_that_is_cancelled_meanwhile_ends() -> None:
    loop, _ = training()
    loop.run(3.0)
    loop.closing = WHY
    loop.tell(CancelJob(TRAIN, "r"))
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.ENDED)
    assert loop.state.jobs[TRAIN].outcome.startswith("cancelled")


def test_replicas_serve_on() -> None:
    loop = Loop(6)
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.gateways[0].completed["chat"] == 1)
    loop.closing = WHY
    loop.gateways[0].offer("chat")
    assert moves(loop.run(60.0)) == []
    assert loop.gateways[0].completed["chat"] == 2
    assert any(seat.state is SeatState.READY for seat in loop.state.seats.values())


def test_a_successor_that_has_not_heard_of_it_yet_does_no_harm() -> None:
    loop, driver = training()
    loop.run(3.0)
    loop.closing = WHY
    loop.run(0.4)
    loop.kill_arbiter(1.0)
    loop.run(40.0)
    job = loop.state.jobs[TRAIN]
    assert job.state is JobState.WAITING and job.crash_lost_steps == 0 and driver.step == job.durable_step, loop.story()


@pytest.mark.proves("no job is restored while the pool is being taken down")
def test_a_lost_job_is_not_submitted_again_meanwhile() -> None:
    loop, driver = training()
    loop.run(3.0)
    loop.restorable = {"train"}
    loop.closing = WHY
    driver.kill()
    loop.run(60.0)
    assert loop.state.jobs[TRAIN].restores == 0 and loop.state.jobs[TRAIN].state is JobState.ENDED, loop.story()
    loop.closing = ""
    until(loop, lambda: loop.state.jobs[TRAIN].restores == 1)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_pool_was_doing_its_jobs_leave_and_repeat_nothing(seed: int) -> None:
    loop = Loop(seed, nodes={"n0": 2, "n1": 2})
    for name in ("a", "b", "c"):
        loop.submit(a_job(name, workers_max=2, in_place=loop.random.random() < 0.7))
    for _ in range(loop.random.randrange(4)):
        loop.gateways[0].offer("chat")
    loop.run(loop.random.uniform(0.5, 40.0))
    loop.closing = WHY
    at_work = (JobState.WAITING, JobState.ENDED)
    until(loop, lambda: all(job.state in at_work for job in loop.state.jobs.values()))
    for job in loop.state.jobs.values():
        assert (job.crashes, job.crash_lost_steps) == (0, 0), loop.story()
        assert job.durable_step == job.step
    assert granted(loop, 20.0) == []
