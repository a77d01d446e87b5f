"""A person holds a job aside, in a closed loop with the fake cluster: it stands still, loses nothing, and goes on."""

from collections.abc import Callable

import pytest

from ebbtide.pool.events import JobHeld, JobReleased, ParkJob, StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.transitions import JobState
from ebbtide_testing.cluster.fake_gang import FakeDriver
from tests.autoscaler.closed_loop import Loop, a_job
from tests.builders.closed_loop import training, until

TRAIN = JobName("train")
HELD, RELEASED = JobHeld(TRAIN, "ann", "new data"), JobReleased(TRAIN, "ann")
ASIDE = (JobState.PARKED, JobState.WAITING)


def held(loop: Loop) -> Loop:
    loop.tell(HELD)
    until(loop, lambda: loop.state.jobs[TRAIN].state in ASIDE and loop.state.jobs[TRAIN].held is not None)
    return loop


def steps_while(loop: Loop, driver: FakeDriver, duration_s: float) -> int:
    before = driver.step
    loop.run(duration_s)
    return driver.step - before


def test_a_held_job_stands_still_in_place_for_hours_and_goes_on_where_it_was() -> None:
    loop, driver = training()
    held(loop)
    gang = driver.gang
    assert steps_while(loop, driver, 200.0) == 0 and len(loop.state.free_slots()) == 3
    loop.tell(RELEASED)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    job = loop.state.jobs[TRAIN]
    assert (job.parks, job.restarts, job.crashes, len(job.gang)) == (1, 0, 0, 3) and driver.gang is gang, loop.story()
    assert steps_while(loop, driver, 20.0) > 0 and loop.refused == ()


def test_others_train_and_serve_on_what_a_held_job_left_and_it_comes_back_after_them() -> None:
    loop, driver = training()
    held(loop)
    other = loop.submit(a_job("other", workers_max=3), total=60)
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.gateways[0].completed["chat"] == 1)
    until(loop, lambda: not other.alive, 200.0)
    assert loop.state.jobs[JobName("other")].outcome.startswith("finished"), loop.story()
    until(loop, lambda: len(loop.state.free_slots()) == 3)
    assert loop.state.jobs[TRAIN].state is JobState.PARKED
    loop.tell(RELEASED)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert driver.failures == 0


@pytest.mark.parametrize("in_place", [True, False])
def test_a_job_that_cannot_park_in_place_is_held_without_a_gang(in_place: bool) -> None:
    loop, driver = training(in_place=in_place)
    driver.refuses_to_park = True
    held(loop)
    job = loop.state.jobs[TRAIN]
    assert (job.state, job.restarts, job.crashes, job.preempted_s) == (JobState.WAITING, 1, 0, ()), loop.story()
    assert steps_while(loop, driver, 60.0) == 0 and driver.gang is None
    loop.tell(RELEASED)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert driver.step >= job.step and loop.state.jobs[TRAIN].crash_lost_steps == 0


@pytest.mark.parametrize("seed", range(5))
def test_an_arbiter_that_dies_at_any_moment_of_a_hold_forgets_it_not(seed: int) -> None:
    loop, driver = training(seed)
    loop.tell(HELD)
    loop.run(0.2 * (1 + seed))  # taken in, asked, parking, parked
    assert loop.state.jobs[TRAIN].held is not None
    loop.kill_arbiter(3.0)
    until(loop, lambda: loop.arbiter is not None and loop.state.jobs[TRAIN].state is JobState.PARKED)
    assert steps_while(loop, driver, 30.0) == 0
    loop.tell(RELEASED)
    loop.run(0.2 * (1 + seed))
    loop.kill_arbiter(3.0)
    until(loop, lambda: loop.arbiter is not None and loop.state.jobs[TRAIN].state is JobState.RUNNING)
    job = loop.state.jobs[TRAIN]
    assert (job.held, job.parks, job.crashes, job.crash_lost_steps) == (None, 1, 0, 0), loop.story()


def crash(loop: Loop, driver: FakeDriver) -> None:
    assert driver.gang is not None
    loop.cluster.machines.kill(driver.gang.ranks[0].process)


def lose(loop: Loop, driver: FakeDriver) -> None:
    loop.restorable = {"train"}
    driver.kill()


@pytest.mark.parametrize("fault", [crash, lose])
def test_a_held_job_whose_gang_or_driver_dies_stays_held(fault: Callable[[Loop, FakeDriver], None]) -> None:
    loop, driver = training()
    held(loop)
    before = len(loop.events)
    fault(loop, driver)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.WAITING)
    loop.run(60.0)
    job = loop.state.jobs[TRAIN]
    assert (
        job.state is JobState.WAITING
        and job.held is not None
        and "held by ann" in str(loop.arbiter and loop.arbiter.waits)
    )
    assert not [event for event in loop.events[before:] if isinstance(event.body, ParkJob | StopJob)]
    loop.tell(RELEASED)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert loop.state.jobs[TRAIN].held is None, loop.story()


def test_a_hold_of_a_job_that_only_starts_lets_it_come_up_and_then_aside() -> None:
    loop = Loop(1)
    loop.run(3.0)
    loop.submit(a_job())
    until(loop, lambda: TRAIN in loop.state.jobs and loop.state.jobs[TRAIN].state is JobState.STARTING)
    held(loop)
    assert loop.state.jobs[TRAIN].state is JobState.PARKED and loop.state.jobs[TRAIN].crashes == 0
    loop.cancel("train")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.ENDED)
    assert loop.state.jobs[TRAIN].held is None and loop.state.jobs[TRAIN].outcome.startswith("cancelled")
