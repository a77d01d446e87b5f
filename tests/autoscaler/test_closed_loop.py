"""The whole pure arbiter against a fake cluster: random traffic and faults, then quiet; and stories of single faults.

``EBBTIDE_SEEDS=500`` runs that many seeds instead of the few of the default; a failure prints its seed and story.
"""

import os
from dataclasses import replace

import pytest

from ebbtide.pool.events import GrantSeat, JobCrashed, JobEnded, JobStopped, ParkJob, SeatDied, SeatReady, StopJob
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.chaos import Chaos
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, an_endpoint, moves
from tests.builders.closed_loop import SEAT, TRAIN, serving, training, until

SEEDS = int(os.environ.get("EBBTIDE_SEEDS", "24"))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.proves("an event that comes too late is left out")
def test_faults_break_no_promise_and_everything_settles_after_them(seed: int) -> None:
    Chaos(seed).run()


def test_one_tide() -> None:
    """A held request wakes the endpoint, the job steps aside in place, and at the end it has all slots back."""
    loop, driver = training()
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=60.0))
    loop.gateways[0].offer("chat")
    events = loop.run(60.0)
    kinds = [type(event.body).__name__ for event in moves(events)]
    assert kinds == ["ParkJob", "GrantSeat", "DrainSeat", "ResumeJob"], loop.story()
    assert loop.gateways[0].completed["chat"] == 1
    assert driver.gang is not None and driver.failures == 0
    job = loop.state.jobs[TRAIN]
    assert (job.state, len(job.gang), job.parks, job.restarts, job.crashes) == (JobState.RUNNING, 3, 1, 0, 0)
    assert loop.refused == ()


def test_a_long_need_turns_the_park_into_a_smaller_gang_and_ebb_makes_it_whole() -> None:
    loop, driver = training()
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    loop.run(60.0)
    job = loop.state.jobs[TRAIN]
    assert (job.state, len(job.gang), job.parks, job.restarts) == (JobState.RUNNING, 2, 1, 1), loop.story()
    loop.gateways[0].rates["chat"] = 0.0
    loop.run(60.0)
    job = loop.state.jobs[TRAIN]
    assert (job.state, len(job.gang), job.crash_lost_steps) == (JobState.RUNNING, 3, 0), loop.story()
    assert driver.step >= job.step


def test_a_parked_rank_that_is_killed_costs_no_promise() -> None:
    loop, driver = training()
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    assert driver.gang is not None
    loop.cluster.machines.kill(driver.gang.ranks[1].process)
    events = loop.run(90.0)
    assert any(isinstance(event.body, JobCrashed) for event in events)
    assert loop.state.jobs[TRAIN].state is JobState.RUNNING, loop.story()


def test_a_gang_that_ignores_its_safe_point_is_killed_after_its_grace() -> None:
    loop, driver = training()
    while driver.step - driver.durable < 3:
        loop.run(0.2)
    assert driver.gang is not None
    driver.gang.hangs = True
    lost = driver.step - driver.durable
    loop.gateways[0].offer("chat")
    events = loop.run(90.0)
    (asked,) = [event for event in events if isinstance(event.body, ParkJob)]
    (crash,) = [event for event in events if isinstance(event.body, JobCrashed)]
    assert isinstance(crash.body, JobCrashed) and "grace" in crash.body.why
    assert 5.0 <= crash.at_s - asked.at_s < 10.0, "its grace_s is 5 s"
    job = loop.state.jobs[TRAIN]
    assert crash.body.lost_steps == job.crash_lost_steps == lost, "charged, once"
    assert loop.gateways[0].completed["chat"] == 1, loop.story()
    assert loop.state.jobs[TRAIN].state is JobState.RUNNING, loop.story()


def test_a_parked_gang_that_hangs_is_given_up() -> None:
    """It holds no slot lock, so nobody can kill it by its lock: its controller has to."""
    loop, driver = training()
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    assert driver.gang is not None
    driver.gang.hangs = True
    loop.run(90.0)
    job = loop.state.jobs[TRAIN]
    assert (job.state, len(job.gang)) == (JobState.RUNNING, 2), loop.story()


def test_a_job_cancelled_before_its_controller_took_the_lease_ends() -> None:
    loop = Loop(1)
    loop.run(3.0)
    driver = loop.submit(a_job())
    loop.weather.lost = 2.0  # nothing gets through: it is granted slots and does not hear of it
    loop.run(1.0)
    assert loop.state.jobs[TRAIN].state is JobState.STARTING
    loop.cancel("train")
    loop.run(0.4)
    loop.weather.lost = 0.0
    loop.run(20.0)
    assert not driver.alive
    assert driver.gang_epoch == 0
    assert loop.state.jobs[TRAIN].outcome.startswith("cancelled"), loop.story()
    assert len(loop.state.free_slots()) == 3


def test_a_cancelled_parked_job_ends() -> None:
    loop, driver = training()
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    loop.cancel("train")
    loop.run(20.0)
    assert (driver.alive, loop.state.jobs[TRAIN].state) == (False, JobState.ENDED), loop.story()


def test_a_driver_taken_for_lost_that_comes_back_hears_that_it_is_over() -> None:
    loop, driver = training()
    loop.weather.lost = 2.0
    loop.run(12.0)
    loop.weather.lost = 0.0
    assert loop.state.jobs[TRAIN].state is JobState.ENDED
    events = loop.run(15.0)
    assert not driver.alive, loop.story("it would ask for ever")
    assert len(loop.state.free_slots()) == 3, loop.story()
    assert not any(isinstance(event.body, JobEnded) for event in events)


def test_a_replica_that_dies_comes_back_and_its_requests_are_served() -> None:
    loop = serving()
    loop.cluster.serve.kill_actor(loop.cluster.serve.actors[SEAT][0])
    events = loop.run(40.0)
    died = [event for event in events if isinstance(event.body, SeatDied)]
    ready = [event for event in events if isinstance(event.body, SeatReady)]
    assert (len(died), len(ready)) == (1, 1), loop.story("the dead one's last report must not count")
    assert sum(len(held) for held in loop.gateways[0].held.values()) == 0


def test_a_seat_that_failed_often_still_gets_its_chance() -> None:
    loop = serving()
    loop.cluster.serve.load_s = (50.0, 50.0)  # over the start-up limit of 40 s
    loop.cluster.serve.kill_actor(loop.cluster.serve.actors[SEAT][0])
    loop.run(150.0)
    assert loop.state.seats[SEAT].failures >= 2, loop.story()
    loop.cluster.serve.load_s = (1.0, 2.0)
    loop.run(120.0)
    assert loop.state.seats[SEAT].state is SeatState.READY, loop.story()


def test_a_dead_gateway_does_not_keep_a_replica_draining() -> None:
    loop = serving()
    loop.gateways[0].alive = False
    loop.gateways = [type(loop.gateways[0])(loop.cluster, loop.random, "g1")]
    loop.run(30.0)
    seat = loop.state.seats[SEAT]
    assert seat.state is SeatState.COLD, loop.story()
    stopped = [event for event in loop.events if getattr(event.body, "why", "") == "drained"]
    assert stopped, loop.story("it was drained by its limit")


def test_a_stranger_on_a_slot_keeps_no_other_slot_from_serving() -> None:
    loop = Loop(1)
    loop.cluster.scheduler.stranger(500.0)
    loop.run(10.0)
    assert sum(record.state is SlotState.FOREIGN for record in loop.state.slots.values()) == 1, loop.story()
    loop.gateways[0].offer("chat")
    loop.run(30.0)
    assert loop.gateways[0].completed["chat"] == 1, loop.story()


def test_a_stranger_that_takes_an_opened_slot_is_shown_and_the_seat_goes_on_elsewhere() -> None:
    loop = Loop(1, endpoints=(an_endpoint(replicas_max=1),))
    loop.run(3.0)
    loop.cluster.scheduler.stranger(500.0)  # pending: it gets the first logical GPU that is without a fence
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    loop.run(90.0)
    assert sum(record.state is SlotState.FOREIGN for record in loop.state.slots.values()) == 1, loop.story()
    assert loop.state.seats[SEAT].state is SeatState.READY, loop.story()


@pytest.mark.parametrize("seed", range(6))
def test_an_arbiter_that_dies_while_a_job_parks_repeats_and_loses_no_step(seed: int) -> None:
    """Its successor finds the park over its grace, and nobody's report: it must wait for them, not judge."""
    loop, driver = training(seed)
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKING)
    loop.run(0.2 + 0.2 * seed)
    loop.kill_arbiter(6.0)
    loop.run(60.0)
    job = loop.state.jobs[TRAIN]
    assert (job.crashes, job.crash_lost_steps, driver.failures) == (0, 0, 0), loop.story()
    assert (job.state, loop.gateways[0].completed["chat"]) == (JobState.RUNNING, 1), loop.story()


@pytest.mark.parametrize("seed", range(6))
def test_an_arbiter_that_dies_in_a_restart_counts_no_loss(seed: int) -> None:
    loop, _ = training(seed, in_place=False)
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.STOPPING)
    loop.run(0.2 * seed)
    loop.kill_arbiter(4.0)
    loop.run(60.0)
    job = loop.state.jobs[TRAIN]
    assert (job.crash_lost_steps, job.state) == (0, JobState.RUNNING), loop.story()


def test_a_gang_that_refuses_to_park_stops_instead() -> None:
    loop, driver = training()
    driver.refuses_to_park = True
    loop.gateways[0].offer("chat")
    events = loop.run(60.0)
    kinds = [type(event.body) for event in events]
    assert kinds.index(ParkJob) < kinds.index(StopJob) < kinds.index(JobStopped), loop.story()
    assert loop.state.jobs[TRAIN].crash_lost_steps == 0


def test_constant_load_moves_nothing_for_a_thousand_seconds() -> None:
    loop, _ = training(workers=2)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 1.0
    loop.run(120.0)
    before = len(moves(loop.events))
    loop.run(1000.0, tick_s=0.5)
    assert len(moves(loop.events)) - before <= 2, loop.story()


def test_constant_load_that_one_replica_serves_too_slowly_does_not_swing() -> None:
    """One replica misses the SLO, two keep it: two it is, although by their number one would do for the requests."""
    loop, _ = training(workers=1)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 1.0
    loop.gateways[0].ttft_s = (2.0, 0.3)
    loop.run(120.0)
    before = len(moves(loop.events))
    assert sum(seat.state is SeatState.READY for seat in loop.state.seats.values()) == 2, loop.story()
    loop.run(1000.0, tick_s=0.5)
    assert len(moves(loop.events)) == before, loop.story()
    loop.gateways[0].rates["chat"] = 0.0
    loop.run(60.0)
    assert all(seat.state is SeatState.COLD for seat in loop.state.seats.values()), loop.story()


def test_zero_load_gives_all_slots_back_to_training() -> None:
    loop, _ = training()
    loop.gateways[0].rates["chat"] = 4.0
    loop.run(60.0)
    loop.gateways[0].rates["chat"] = 0.0
    loop.run(120.0)
    assert len(loop.state.jobs[TRAIN].gang) == 3, loop.story()
    assert all(seat.state is SeatState.COLD for seat in loop.state.seats.values())


def test_nothing_is_granted_twice_at_once_on_two_nodes() -> None:
    """A replica of two slots finds one free slot on each node: a job makes room on one node, and it starts there."""
    loop = Loop(1, nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2, replicas_max=1),))
    loop.run(3.0)
    for name in ("a", "b", "c"):
        loop.submit(a_job(name, workers_max=1))
        loop.run(0.4)
    loop.run(20.0)
    ended = loop.drivers["a"]
    loop.cancel("a")
    until(loop, lambda: not ended.alive)
    loop.gateways[0].offer("chat")
    events = loop.run(60.0)
    assert any(isinstance(event.body, GrantSeat) for event in events), loop.story()
    assert loop.gateways[0].completed["chat"] == 1, loop.story()


@pytest.mark.proves("a frozen pool decides nothing, whatever the cause")
def test_a_frozen_pool_keeps_facts_and_decides_nothing() -> None:
    loop, _ = training()
    loop.knobs = replace(KNOBS, frozen=True)
    loop.gateways[0].offer("chat")
    assert moves(loop.run(20.0)) == []
    loop.knobs = KNOBS
    loop.run(40.0)
    assert loop.gateways[0].completed["chat"] == 1
