from benchmarks.tides import stages
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    Event,
    GrantSeat,
    JobParked,
    JobRunning,
    ParkJob,
    ResumeJob,
    SeatGone,
    SeatLanded,
    SeatReady,
    SlotFreed,
)
from ebbtide.pool.ids import JobName, RecordId, SeatId, SlotId

JOB, SEAT = JobName("j"), SeatId("e/0")


def events(*timed: tuple[float, Body]) -> list[Event]:
    return [Event(RecordId(f"1.{number}"), at_s, None, body) for number, (at_s, body) in enumerate(timed)]


def test_each_stage_of_a_tide_is_timed_from_the_event_that_begins_it() -> None:
    found = stages(
        events(
            (10.0, ParkJob(JOB, "")),
            (10.2, SlotFreed(SlotId("n:0"))),
            (10.5, SlotFreed(SlotId("n:1"))),
            (10.5, JobParked(JOB, 7)),
            (10.6, GrantSeat(SEAT, (SlotId("n:0"),), "")),
            (11.0, SeatLanded(SEAT, "r")),
            (15.0, SeatReady(SEAT, (("engine", 3.5),))),
            (20.0, DrainSeat(SEAT, "")),
            (24.0, SlotFreed(SlotId("n:0"))),
            (24.0, SeatGone(SEAT)),
            (24.1, ResumeJob(JOB, "")),
            (24.3, JobRunning(JOB, 7)),
        )
    )
    rounded = {stage: [round(value, 3) for value in values] for stage, values in found.items()}
    assert rounded == {
        "reclaim: asked to slot proven free": [0.2, 0.5],
        "reclaim: asked to gang parked": [0.5],
        "replica: granted to process on its slot": [0.4],
        "replica: process to ready": [4.0],
        "replica: granted to ready": [4.4],
        "replica stage: engine": [3.5],
        "ebb: drain to slot free": [4.0],
        "resume: granted to training": [0.2],
    }
