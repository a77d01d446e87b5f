"""Which job or replica a move or fact is about. Pure."""

from typing import cast, get_args

from ebbtide.pool.events import Body, ParkJob, ParkSeat
from ebbtide.pool.ids import JobName, SeatId

_NAME_A_JOB = frozenset(kind for kind in get_args(Body) if "job" in kind.__dataclass_fields__)
_NAME_A_SEAT = frozenset(kind for kind in get_args(Body) if "seat" in kind.__dataclass_fields__)


def subject_job(body: Body) -> JobName | None:
    """The job that a move or fact is about; None: it is about something else. `JobSubmitted` has its spec instead."""
    return cast(ParkJob, body).job if type(body) in _NAME_A_JOB else None


def subject_seat(body: Body) -> SeatId | None:
    """The replica that a move or fact is about; None: it is about something else."""
    return cast(ParkSeat, body).seat if type(body) in _NAME_A_SEAT else None


def subject(body: Body) -> JobName | SeatId | None:
    """The job or the replica that a move or fact is about. Every move is about one of them."""
    return subject_job(body) or subject_seat(body)
