"""What ledger and GPU memory say of the moves: how long each took, and when the memory was really free. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.pool.events import (
    Event,
    GrantSeat,
    JobParked,
    JobRunning,
    ParkJob,
    ParkSeat,
    ResumeJob,
    SeatReady,
    WakeSeat,
)

IDLE_SLACK_MB = 64.0  # what NVML's figure of an empty GPU moves by, and a context that is being torn down


@dataclass(frozen=True, slots=True)
class Aside:
    """One time that a job stepped aside in place and came back; seconds from the decision on, None: it did not come.

    Attributes:
        job: which one.
        parked_s: until every rank was parked and the slot proven free.
        free_s: until the GPU's memory was back at its idle level; None where that is not known, or it was not.
        least_mb: the least that was taken until a replica was there; None where that is not known.
        resume_s: from the decision to resume until it trained.
    """

    job: str
    parked_s: float | None
    free_s: float | None
    least_mb: float | None
    resume_s: float | None


@dataclass(frozen=True, slots=True)
class Start:
    """One start or wake of a replica: seconds from the grant on, where they went, and how the weights came."""

    seat: str
    woken: bool
    took_s: float
    stages_s: Mapping[str, float]
    weights: str


def asides(events: Iterable[Event], samples: Sequence[Mapping[str, Any]], *, idle_mb: float | None) -> list[Aside]:
    """All of them, in order; ``samples`` as the journal has them."""
    found: list[Aside] = []
    decided: dict[str, float] = {}
    parked: dict[str, float] = {}
    resumed: dict[str, float] = {}
    ready_s: list[float] = []
    for event in events:
        body, at_s = event.body, event.at_s
        match body:
            case ParkJob(job):
                decided[job] = at_s
            case JobParked(job) if job in decided:
                parked[job] = at_s
            case SeatReady():
                ready_s.append(at_s)
            case ResumeJob(job):
                resumed[job] = at_s
            case JobRunning(job) if job in decided and job in resumed:
                began_s = decided.pop(job)
                came_s, done_s = resumed.pop(job), parked.pop(job, None)
                until_s = min([came_s, *(one for one in ready_s if one > began_s)])
                seen = [one for one in samples if began_s <= one["at_s"] <= until_s]
                free_s, least_mb = _free(seen, idle_mb)
                found.append(
                    Aside(job, _since(began_s, done_s), _since(began_s, free_s), least_mb, _since(came_s, at_s))
                )
            case _:
                pass
    return found + [Aside(job, _since(at_s, parked.get(job)), None, None, None) for job, at_s in decided.items()]


def _free(seen: Sequence[Mapping[str, Any]], idle_mb: float | None) -> tuple[float | None, float | None]:
    """When the memory was first at its idle level, and the least that it fell to; a sample holds until the next one."""
    if idle_mb is None or not seen:
        return None, None
    at_s = next((float(one["at_s"]) for one in seen if one["gpu_mb"] <= idle_mb + IDLE_SLACK_MB), None)
    return at_s, min(float(one["gpu_mb"]) for one in seen)


def _since(from_s: float, to_s: float | None) -> float | None:
    return None if to_s is None else round(to_s - from_s, 3)


def stops(events: Iterable[Event], job: str) -> list[int]:
    """At which steps, finished ones counted, a job was parked."""
    parked = (event.body for event in events if isinstance(event.body, JobParked))
    return [body.step for body in parked if body.job == job]


def starts(events: Iterable[Event]) -> list[Start]:
    """All starts and wakes of replicas that ended well, in order."""
    found: list[Start] = []
    granted: dict[str, tuple[float, bool]] = {}
    for event in events:
        match event.body:
            case GrantSeat(seat):
                granted[seat] = (event.at_s, False)
            case WakeSeat(seat):
                granted[seat] = (event.at_s, True)
            case SeatReady(seat) as ready if seat in granted:
                at_s, woken = granted.pop(seat)
                ways = sorted({f"{one.way}{f' ({one.why})' if one.why else ''}" for one in ready.weights})
                stages = {name: round(seconds, 2) for name, seconds in ready.stages_s}
                found.append(Start(seat, woken, round(event.at_s - at_s, 2), stages, ", ".join(ways)))
            case _:
                pass
    return found


def parks_of_replicas(events: Iterable[Event]) -> int:
    """How often a replica was told to park."""
    return sum(isinstance(event.body, ParkSeat) for event in events)
