"""Whole stories, each with the state that it must end in."""

from ebbtide.pool.events import (
    Body,
    DrainSeat,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobDurable,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    ParkJob,
    ResumeJob,
    SeatDied,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.handlers.apply import replay
from ebbtide.pool.ids import RecordId
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.platform.pool.builder import JOB, NODE, S0, S1, S2, SEAT, after, pool


def slots(state: PoolState) -> list[tuple[str, str | None]]:
    """State and occupant of every slot, in order."""
    return [(record.state.value, record.occupant) for record in state.slots.values()]


def test_one_tide_in_place() -> None:
    """1. A job runs on all slots. 2. A replica needs one: the job parks. 3. The replica lands, serves, drains and is
    gone. 4. The job resumes on exactly its slots, under a new epoch, with the step at which it parked.
    """
    state = after(pool(), GrantJob(JOB, (S0, S1, S2), "r"), JobRunning(JOB, 1))
    assert slots(state) == [("leased", JOB)] * 3
    state = after(state, ParkJob(JOB, "r"))
    assert slots(state) == [("reclaiming", JOB)] * 3
    state = after(state, SlotFreed(S0), GrantSeat(SEAT, (S0,), "r"))
    assert state.jobs[JOB].state is JobState.PARKING, "a replica may start on what is proven free already"
    assert slots(state) == [("opening", SEAT), ("reclaiming", JOB), ("reclaiming", JOB)]
    state = after(state, SlotFreed(S1), SlotFreed(S2), JobParked(JOB, 8))
    assert state.claims_on(S0) == (JOB,)
    assert state.parked_bytes(NODE) == 30
    state = after(state, SeatLanded(SEAT, "a"), SeatReady(SEAT, ()), DrainSeat(SEAT, "r"), SeatStopped(SEAT, "drained"))
    assert slots(state)[0] == ("reclaiming", SEAT)
    state = after(state, SlotFreed(S0), SeatGone(SEAT), ResumeJob(JOB, "r"))
    assert state.parked_bytes(NODE) == 30, "its state is in host memory until all of it is back"
    state = after(state, JobRunning(JOB, 9))
    job = state.jobs[JOB]
    assert (job.gang, job.epoch, job.gang_epoch, job.step, job.parks, job.restarts) == ((S0, S1, S2), 3, 1, 9, 1, 0)
    assert slots(state) == [("leased", JOB)] * 3
    assert state.parked_bytes(NODE) == 0


def test_a_parked_job_goes_on_smaller() -> None:
    """1. A job parks. 2. The replica stays: the job is told to stop, publishes, and waits. 3. It starts with two."""
    state = after(pool(), GrantJob(JOB, (S0, S1, S2), "r"), JobRunning(JOB, 1), ParkJob(JOB, "r"))
    state = after(state, SlotFreed(S0), SlotFreed(S1), SlotFreed(S2), JobParked(JOB, 8), GrantSeat(SEAT, (S1,), "r"))
    state = after(state, StopJob(JOB, "r", preempts=True))
    assert state.parked_bytes(NODE) == 0, "its claim has gone: it will never resume in place"
    assert state.claims_on(S1) == ()
    state = after(state, JobDurable(JOB, 8), JobStopped(JOB, 8), GrantJob(JOB, (S0, S2), "r"), JobRunning(JOB, 8))
    job = state.jobs[JOB]
    assert (job.gang, job.step, job.restarts, job.parks) == ((S0, S2), 8, 1, 1)
    assert slots(state) == [("leased", JOB), ("opening", SEAT), ("leased", JOB)]


def test_a_rank_dies_while_another_has_parked() -> None:
    """1. Half of the gang has parked, then a rank dies. 2. What is not proven free stays reclaimed. 3. The job waits
    again, at its durable step, and the lost steps are counted.
    """
    state = after(pool(), GrantJob(JOB, (S0, S1), "r"), JobRunning(JOB, 1), JobDurable(JOB, 4), ParkJob(JOB, "r"))
    state = after(state, SlotFreed(S0), JobCrashed(JOB, "killed", 3))
    assert slots(state)[:2] == [("free", None), ("reclaiming", JOB)]
    state = after(state, SlotFreed(S1), JobRecovered(JOB))
    job = state.jobs[JOB]
    assert (job.state, job.gang, job.step) == (JobState.WAITING, (), 4)
    state = after(state, GrantJob(JOB, (S0, S1), "r"), JobRunning(JOB, 4, lost_steps=3))
    assert state.jobs[JOB].crash_lost_steps == 3


def test_a_ready_replica_dies_and_comes_back_in_its_place() -> None:
    """1. It dies. 2. Serve starts another on the same slots under the same lease. 3. Nothing else has moved."""
    before = after(pool(), GrantSeat(SEAT, (S0,), "r"), SeatLanded(SEAT, "a"), SeatReady(SEAT, ()))
    state = after(before, SeatDied(SEAT, "w"))
    assert state.seats[SEAT].state is SeatState.STARTING
    assert state.slots == before.slots
    assert after(state, SeatReady(SEAT, ())).seats[SEAT].state is SeatState.READY


def test_nobody_lands() -> None:
    """1. Slots are granted, no replica comes. 2. The seat is given up, proven free. 3. It may be tried again."""
    state = after(pool(), GrantSeat(SEAT, (S0,), "r"), SeatStopped(SEAT, "nobody landed"))
    assert state.slots[S0].state is SlotState.RECLAIMING
    state = after(state, SlotFreed(S0), SeatGone(SEAT))
    assert (state.seats[SEAT].state, state.seats[SEAT].failures, state.seats[SEAT].slots) == (SeatState.COLD, 1, ())
    assert violations(after(state, GrantSeat(SEAT, (S1,), "r"))) == []


def test_replay_goes_on_from_any_state() -> None:
    """1. A state. 2. Events folded in two parts give what they give in one."""
    bodies: tuple[Body, ...] = (GrantJob(JOB, (S0,), "r"), JobRunning(JOB, 1), ParkJob(JOB, "r"), SlotFreed(S0))
    events = [Event(RecordId(f"1-{n}"), 1.0, None, body) for n, body in enumerate(bodies)]
    assert replay(events[2:], replay(events[:2], pool())) == replay(events, pool())
