"""Stories of things that fail again and again, of people who freeze and change the pool, and of lost drivers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from ebbtide.pool.events import (
    CancelJob,
    DrainSeat,
    EndpointDeclared,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobEnded,
    JobSubmitted,
    ParkJob,
    PoolFrozen,
    PoolUnfrozen,
    SeatStopped,
    StopJob,
)
from ebbtide.pool.ids import JobName, SeatId
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import FenceView
from ebbtide_testing.cluster.fake_gang import FakeDriver
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, an_endpoint, moves
from tests.builders.closed_loop import serving, training, until

TRAIN, SEAT = JobName("train"), SeatId("chat/0")


def gaps(events: list[Event], kind: type) -> list[float]:
    """Seconds between the events of a kind."""
    at_s = [event.at_s for event in events if isinstance(event.body, kind)]
    return [round(later - earlier, 1) for earlier, later in pairwise(at_s)]


# ---- jobs


def hopeless(seed: int = 1) -> Loop:
    """A job whose gangs never finish a step."""
    loop = Loop(seed)
    loop.run(3.0)
    driver = loop.submit(a_job(max_failures=3))
    driver.never_steps = True
    driver.start_s = (0.1, 0.3)
    loop.run(0.4)
    return loop


def test_a_job_that_crashes_at_once_waits_longer_each_time_and_is_given_up_with_its_log() -> None:
    loop = hopeless()
    said: set[str] = set()
    for _ in range(500):
        driver = loop.drivers["train"]
        if driver.gang is not None and loop.state.jobs[TRAIN].state is JobState.RUNNING:
            loop.cluster.machines.kill(driver.gang.ranks[0].process)
        loop.run(0.2)
        assert loop.arbiter is not None
        said.add(loop.arbiter.waits.get("train", "")[:50])
    crashes = [event for event in loop.events if isinstance(event.body, JobCrashed)]
    grants = [event.at_s for event in loop.events if isinstance(event.body, GrantJob)]
    waited_s = [grant - crash.at_s for crash, grant in zip(crashes, grants[1:], strict=False)]
    assert len(crashes) == 4 and len(grants) == 4, loop.story()
    assert [wait >= least for wait, least in zip(waited_s, (2.0, 4.0, 8.0), strict=True)] == [True] * 3, waited_s
    assert any(text.startswith("crashed 3 times without progress, next try in ") for text in said), said
    job = loop.state.jobs[TRAIN]
    assert job.outcome.startswith("failed: crashed 4 times without progress"), loop.story()
    assert job.outcome.endswith("Traceback: it is hopeless"), "the tail of its log"
    assert not loop.drivers["train"].alive and len(loop.state.free_slots()) == 3


def test_a_job_that_gets_further_between_its_crashes_is_never_given_up_nor_kept_waiting() -> None:
    loop, driver = training()
    for before in range(6):
        until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
        loop.run(3.0)
        assert driver.gang is not None
        loop.cluster.machines.kill(driver.gang.ranks[0].process)
        driver.durable = driver.step
        until(loop, lambda before=before: loop.state.jobs[TRAIN].crashes > before)  # type: ignore[misc]
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    job = loop.state.jobs[TRAIN]
    assert (job.crashes, job.failures_in_a_row, driver.alive) == (6, 0, True), loop.story()


def loading(startup_timeout_s: float) -> tuple[Loop, FakeDriver]:
    """A job whose train function loads for a long time."""
    loop = Loop(1)
    loop.run(3.0)
    driver = loop.submit(a_job(startup_timeout_s=startup_timeout_s))
    driver.start_s = (10_000.0, 10_000.0)
    until(loop, lambda: TRAIN in loop.state.jobs and loop.state.jobs[TRAIN].loading)
    return loop, driver


def test_a_job_that_loads_for_ten_minutes_is_left_alone_and_one_that_hangs_is_ended() -> None:
    loop, driver = loading(800.0)
    loop.run(600.0)
    job = loop.state.jobs[TRAIN]
    assert (job.state, job.crashes) == (JobState.STARTING, 0), loop.story()
    loop.run(240.0)
    job = loop.state.jobs[TRAIN]
    assert job.state is JobState.ENDED and "within 800 s (startup_timeout_s)" in job.outcome, loop.story()
    assert not driver.alive and job.crashes == 0


def test_a_job_that_loads_gives_its_slots_up_without_a_crash_and_starts_again() -> None:
    loop, driver = loading(1800.0)
    driver.start_s = (1.0, 2.0)  # of its next gang
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].restarts == 1 and SEAT in loop.state.seats)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert (loop.state.jobs[TRAIN].crashes, driver.failures) == (0, 0), loop.story()


def test_a_job_that_loads_is_cancelled_at_once() -> None:
    loop, driver = loading(1800.0)
    loop.tell(CancelJob(TRAIN, "by me"))
    loop.run(10.0)
    assert not driver.alive and loop.state.jobs[TRAIN].crashes == 0, loop.story()
    assert loop.state.jobs[TRAIN].outcome.startswith("cancelled"), loop.story()


def test_a_gang_that_does_not_come_back_counts_as_a_crash() -> None:
    loop, driver = training()
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=1000.0))
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    assert driver.gang is not None
    driver.gang.hangs = True
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RESUMING)
    before = loop.state.jobs[TRAIN].crashes
    loop.run(45.0)
    assert loop.state.jobs[TRAIN].crashes == before, "the limit is 50 s"
    driver.start_s = (1.0, 2.0)
    loop.run(30.0)
    crashed = [event.body.why for event in loop.events if isinstance(event.body, JobCrashed)]
    assert "did not train within" in crashed[-1], loop.story()
    assert loop.state.jobs[TRAIN].state is JobState.RUNNING, loop.story()


@pytest.mark.parametrize("seed", range(4))
def test_an_arbiter_that_dies_while_a_job_stops_records_no_crash(seed: int) -> None:
    """Its successor hears of the last step only what the controller says: the ranks are gone."""
    loop, driver = training(seed, in_place=False)
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.STOPPING)
    loop.run(0.3 * seed)
    loop.kill_arbiter(6.0)
    loop.run(70.0)
    job = loop.state.jobs[TRAIN]
    assert (job.crashes, job.state, driver.failures) == (0, JobState.RUNNING, 0), loop.story()


def test_a_job_whose_driver_was_lost_is_submitted_again_and_goes_on_from_its_last_durable_step() -> None:
    loop, driver = training()
    loop.restorable = {"train"}
    driver.durable = driver.step
    loop.run(1.0)
    driver.kill()
    loop.run(60.0)
    again = [e.body for e in loop.events if isinstance(e.body, JobSubmitted)]
    job = loop.state.jobs[TRAIN]
    assert [submitted.restored for submitted in again] == [False, True], loop.story()
    assert (job.state, len(job.gang)) == (JobState.RUNNING, 3), loop.story()
    assert job.step >= driver.durable > 0


def test_a_job_is_restored_three_times_without_progress_and_then_left_alone() -> None:
    loop, driver = training()
    loop.restorable = {"train"}
    driver.kill()
    for _ in range(300):
        loop.run(1.0)
        current = loop.drivers["train"]
        if current is not driver and current.alive:
            current.kill()
    assert loop.state.jobs[TRAIN].restores == 3, loop.story()
    assert loop.state.jobs[TRAIN].outcome.startswith("lost")


def test_a_lost_job_that_is_cancelled_while_its_driver_is_on_its_way_ends_there() -> None:
    loop, driver = training()
    driver.kill()
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.ENDED)
    loop.cancel("train")
    loop.run(1.0)
    loop.restore(TRAIN)
    loop.run(60.0)
    job = loop.state.jobs[TRAIN]
    assert (job.state, job.outcome.partition(":")[0], job.restores) == (JobState.ENDED, "cancelled", 1), loop.story()
    assert not loop.drivers["train"].alive


@pytest.mark.proves("no job is restored while the pool is frozen", "only a job whose submission is kept is restored")
@pytest.mark.parametrize("way", ["cancelled", "cancelled when lost", "finished", "not archived", "frozen"])
def test_only_a_lost_job_that_is_archived_is_restored(way: str) -> None:
    loop, driver = training()
    loop.restorable = set() if way == "not archived" else {"train"}
    if way == "cancelled":
        loop.tell(CancelJob(TRAIN, "r"))
        loop.run(1.0)
    elif way == "frozen":
        loop.tell(PoolFrozen("r"))
        loop.run(1.0)
    elif way == "finished":
        loop.tell(JobEnded(TRAIN, "finished", ""))
        loop.run(1.0)
    driver.kill()
    if way == "cancelled when lost":
        loop.restorable = set()
        until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.ENDED)
        loop.cancel("train")
        loop.run(1.0)
        loop.restorable = {"train"}
    loop.run(60.0)
    assert loop.state.jobs[TRAIN].state is JobState.ENDED
    assert loop.state.jobs[TRAIN].restores == 0, loop.story()


# ---- seats


def test_a_replica_that_fails_at_once_is_tried_less_and_less_often_and_parks_no_job_for_it_in_vain() -> None:
    loop, _ = training()
    loop.cluster.serve.load_fails = True
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    said: set[str] = set()
    events = []
    for _ in range(300):
        events += loop.run(1.0)
        assert loop.arbiter is not None
        said |= {why for who, why in loop.arbiter.waits.items() if who.startswith("chat")}
    asides = [event for event in events if isinstance(event.body, ParkJob | StopJob)]
    assert len([e for e in asides if "for chat" in e.body.reason]) <= 9, loop.story()  # type: ignore[union-attr]
    tries = gaps(events, GrantSeat)
    assert tries[-1] > 60.0, tries
    assert any("failed" in why and "out of memory" in why for why in said), said
    assert loop.state.jobs[TRAIN].state is JobState.RUNNING, "the slot went back"
    failed = max(loop.state.seats.values(), key=lambda seat: seat.failures)
    assert "out of memory" in failed.last_error
    loop.cluster.serve.load_fails = False
    loop.run(400.0)
    assert loop.state.seats[SEAT].state is SeatState.READY or any(
        seat.state is SeatState.READY for seat in loop.state.seats.values()
    ), loop.story()


def test_a_replica_that_dies_soon_after_it_was_ready_gives_its_slot_back_and_waits() -> None:
    loop = serving()
    events = []
    for _ in range(400):
        events += loop.run(0.3)
        for actors in loop.cluster.serve.actors.values():
            for actor in [actor for actor in actors if actor.ready]:
                loop.cluster.serve.kill_actor(actor)
    assert any(isinstance(e.body, SeatStopped) and "died again soon" in e.body.why for e in events), loop.story()
    assert gaps(events, GrantSeat)[-1] > 15.0
    assert len(gaps(events, GrantSeat)) <= 6


# ---- people


@pytest.mark.proves("a pool frozen by a person decides nothing")
def test_a_pool_frozen_by_a_person_keeps_facts_decides_nothing_and_says_so() -> None:
    loop, driver = training()
    loop.tell(PoolFrozen("night shift"))
    loop.run(1.0)
    loop.submit(a_job("other"))
    loop.gateways[0].offer("chat")
    assert moves(loop.run(30.0)) == []
    assert loop.arbiter is not None
    assert "frozen (night shift)" in loop.arbiter.waits["chat"]
    assert "frozen (night shift)" in loop.arbiter.waits["other"]
    loop.kill_arbiter(2.0)
    assert moves(loop.run(20.0)) == [], "its successor knows"
    assert driver.step > 100, "what runs goes on"
    loop.tell(PoolUnfrozen())
    loop.run(40.0)
    assert loop.gateways[0].completed["chat"] == 1, loop.story()


@pytest.mark.proves("an observing pool decides as if slots that are free were its own")
def test_an_observing_pool_decides_on_slots_that_are_not_fenced_and_moves_nothing() -> None:
    loop = Loop(1)
    loop.knobs = replace(KNOBS, observe=True)
    loop.no_fences = True
    loop.run(4.0)
    loop.submit(a_job(workers_max=2))
    loop.gateways[0].offer("chat")
    assert moves(loop.run(10.0)) == []
    assert loop.arbiter is not None and loop.arbiter.seen().fences["n0:0"] is not FenceView.HELD  # type: ignore[index]
    assert all(record.state is SlotState.UNFENCED for record in loop.state.slots.values())
    kinds = {type(move).__name__ for move in loop.arbiter.decision.moves}
    assert kinds == {"GrantSeat", "GrantJob"}, loop.story()


# ---- another revision


def declare(loop: Loop, **changes: object) -> None:
    """What `up` with a changed file does."""
    spec = replace(loop.specs["chat"], **changes)  # type: ignore[index, arg-type]
    loop.specs[spec.name] = spec
    loop.tell(EndpointDeclared(spec))


def revisions(loop: Loop) -> list[str]:
    return sorted(seat.revision for seat in loop.state.seats.values() if seat.state is SeatState.READY)


def test_a_changed_model_rolls_seat_by_seat_with_the_new_one_first() -> None:
    loop = Loop(1, nodes={"n0": 3}, endpoints=(an_endpoint(replicas_min=2, replicas_max=2, revision="a"),))
    loop.run(30.0)
    assert revisions(loop) == ["a", "a"], loop.story()
    declare(loop, revision="b")
    least = 9
    for _ in range(300):
        loop.run(0.2)
        least = min(least, len(revisions(loop)))
    assert (revisions(loop), least) == (["b", "b"], 2), loop.story()
    kinds = [type(event.body) for event in moves(loop.events)][2:]
    assert kinds == [GrantSeat, DrainSeat, GrantSeat, DrainSeat], loop.story()


def test_without_a_free_slot_the_old_replica_drains_first_one_at_a_time() -> None:
    loop = Loop(1, nodes={"n0": 2}, endpoints=(an_endpoint(replicas_min=2, replicas_max=2, revision="a"),))
    loop.run(30.0)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    declare(loop, revision="b")
    least = 9
    for _ in range(400):
        loop.run(0.2)
        least = min(least, len(revisions(loop)))
    assert (revisions(loop), least) == (["b", "b"], 1), loop.story()
    assert not loop.gateways[0].held["chat"]


def test_a_revision_that_does_not_start_replaces_nobody() -> None:
    loop = Loop(1, nodes={"n0": 3}, endpoints=(an_endpoint(replicas_min=2, replicas_max=2, revision="a"),))
    loop.run(30.0)
    loop.cluster.serve.load_fails = True
    declare(loop, revision="bad")
    loop.run(120.0)
    assert revisions(loop) == ["a", "a"], loop.story()
    assert loop.arbiter is not None
    assert any("its successor does not come up" in why for why in loop.arbiter.waits.values()), loop.arbiter.waits
    loop.cluster.serve.load_fails = False
    declare(loop, revision="a")
    loop.run(60.0)
    assert revisions(loop) == ["a", "a"] and not loop.arbiter.waits, loop.story()


def test_a_change_that_a_running_replica_can_take_restarts_nothing() -> None:
    loop = serving()
    before = len(moves(loop.events))
    declare(loop, target_requests=9)
    loop.run(30.0)
    assert len(moves(loop.events)) == before, loop.story()
