"""What a move or fact is about is asked by type, not by the name of a field."""

from typing import Any, get_args

import pytest

from ebbtide.pool.events import Move, NodeLost, ParkJob, ParkSeat, StopJob
from ebbtide.pool.ids import EndpointName, JobName, NodeId, seat_id
from ebbtide.pool.subject import subject, subject_job, subject_seat

JOB, SEAT = JobName("a"), seat_id(EndpointName("chat"), 0)
VALUES: dict[str, Any] = {"job": JOB, "seat": SEAT, "slots": (), "reason": "r", "preempts": True}


@pytest.mark.parametrize("kind", get_args(Move))
def test_every_move_is_about_a_job_or_a_replica(kind: Any) -> None:
    fields = kind.__dataclass_fields__
    move = kind(**{name: VALUES[name] for name in fields if name in VALUES})
    assert subject(move) == (JOB if "job" in fields else SEAT)


def test_a_job_is_no_replica() -> None:
    assert (subject_job(ParkJob(JOB, "r")), subject_seat(ParkJob(JOB, "r"))) == (JOB, None)
    assert (subject_job(ParkSeat(SEAT, "r")), subject_seat(ParkSeat(SEAT, "r"))) == (None, SEAT)
    assert subject(StopJob(JOB, "r", preempts=True)) == JOB
    assert subject(NodeLost(NodeId("n"))) is None
