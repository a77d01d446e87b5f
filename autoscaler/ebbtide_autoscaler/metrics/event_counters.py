"""What an event adds to the metrics: counters that the ledger keeps, and durations. Pure.

``count_event`` says what one event adds to a counter, from the state before it and the event alone. Folding it over the
ledger gives each counter's value, so a new arbiter goes on where the last one was: never back, nothing twice.
``time_event`` says which durations an event ends; histograms count from the start of an arbiter's process.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ebbtide.pool.events import (
    Event,
    GrantSeat,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobParked,
    JobRunning,
    JobStopped,
    ParkJob,
    SeatDied,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import Epoch, JobName, SeatId, node_of
from ebbtide.pool.state import JobRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import JOB_CLAIMS_SLOTS, JobState, SeatState, SlotState
from ebbtide.telemetry import arbiter, handover, pool, training
from ebbtide.telemetry.metric_family import Sample
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation

LEDGER_FAMILIES = (
    arbiter.EVENTS,
    arbiter.STARTS,
    pool.REPLICA_STARTS,
    pool.REPLICA_LOADS,
    pool.REPLICA_WAKES,
    pool.REPLICA_FAILURES,
    pool.REPLICA_DEATHS,
    training.DURABLE_STEPS,
    training.PREEMPTIONS,
    training.GROWTHS,
    training.CRASHES,
    training.LOST_STEPS,
    training.CRASH_LOST_STEPS,
    training.ENDED,
)
"""The counters that come from the ledger."""

COMING = frozenset({SeatState.PLACING, SeatState.STARTING})


def count_event(before: PoolState, event: Event) -> Iterator[Sample]:
    """What ``event``, about to be applied to ``before``, adds to the ledger's counters."""
    body = event.body
    yield Sample(arbiter.EVENTS, 1, (body.kind,))
    match body:
        case ParkJob(job=name):
            yield Sample(training.PREEMPTIONS, 1, ("park" if before.jobs[name].held is None else "held",))
        case StopJob(job=name, preempts=True):
            yield Sample(training.PREEMPTIONS, 1, (_stopped_as(before.jobs[name]),))
        case StopJob(job=name, preempts=False) if _grows(before, name):
            yield Sample(training.GROWTHS, 1)
        case JobCrashed(job=name, lost_steps=lost):
            during = (before.jobs[name].state.value,)
            yield Sample(training.CRASHES, 1, during)
            yield Sample(training.LOST_STEPS, lost, during)
        case JobRunning(job=name, lost_steps=lost) if before.jobs[name].state is JobState.STARTING:
            yield Sample(training.CRASH_LOST_STEPS, lost)  # a resumed gang was counted when it started
        case JobDurable(job=name, step=step):
            yield Sample(training.DURABLE_STEPS, step - before.jobs[name].durable_step)
        case JobEnded(outcome=outcome):
            yield Sample(training.ENDED, 1, (outcome,))
        case SeatReady(seat=seat) if before.seats[seat].state is SeatState.WAKING:
            yield Sample(pool.REPLICA_WAKES, 1, (before.seats[seat].endpoint,))
        case SeatReady(seat=seat, weights=weights):
            yield Sample(pool.REPLICA_STARTS, 1, (before.seats[seat].endpoint,))
            for weight in weights:
                yield Sample(pool.REPLICA_LOADS, weight.ranks, (before.seats[seat].endpoint, weight.way))
        case SeatDied(seat=seat):
            yield Sample(pool.REPLICA_DEATHS, 1, (before.seats[seat].endpoint,))
        case SeatStopped(seat=seat) if before.seats[seat].state in COMING:
            yield Sample(pool.REPLICA_FAILURES, 1, (before.seats[seat].endpoint,))


def _stopped_as(job: JobRecord) -> str:
    if job.state in JOB_CLAIMS_SLOTS:
        return "park_to_restart"
    return "restart" if job.held is None else "held"


def _grows(before: PoolState, name: JobName) -> bool:
    """Whether a job that is stopped without a preemption is to come back larger: not held, its nodes do not drain."""
    job = before.jobs[name]
    drains = any(node_of(slot) in before.draining for slot in job.gang)
    return job.state is JobState.RUNNING and job.held is None and not drains


@dataclass(frozen=True, slots=True)
class Openings:
    """Since when the fences of seats that are being placed are gone, by seat and epoch of its lease."""

    since_s: Mapping[tuple[SeatId, Epoch], float] = field(default_factory=dict)


def opened_fences(
    openings: Openings, state: PoolState, seen: Observation, now_s: float
) -> tuple[tuple[Sample, ...], Openings]:
    """Which fences of granted slots are gone now; a fence is not in the ledger, so it is looked for at each tick."""
    placing = [one for one in state.seats.values() if one.state is SeatState.PLACING and not one.fenced]
    if not placing and not openings.since_s:
        return (), openings
    since_s = {(seat.id, seat.epoch): openings.since_s.get((seat.id, seat.epoch)) for seat in placing}
    samples = []
    for seat in placing:
        is_open = all(seen.fences.get(slot, FenceView.ABSENT) is FenceView.ABSENT for slot in seat.slots)
        if since_s[seat.id, seat.epoch] is None and is_open:
            since_s[seat.id, seat.epoch] = now_s
            samples.append(_stage(handover.GRANTED_TO_OPEN, now_s - seat.granted_s))
    return tuple(samples), Openings({key: at_s for key, at_s in since_s.items() if at_s is not None})


def time_event(before: PoolState, event: Event, openings: Openings) -> Iterator[Sample]:
    """The durations that ``event``, about to be applied to ``before``, brings to their end."""
    body, at_s = event.body, event.at_s
    match body:
        case SlotFreed(slot=slot) if before.slots[slot].state is SlotState.RECLAIMING:
            yield _stage(handover.ASKED_TO_FREED, at_s - before.slots[slot].since_s)
        case JobParked(job=name):
            yield _stage(handover.ASKED_TO_PARKED, at_s - before.jobs[name].asked_s)
        case JobStopped(job=name) if not before.jobs[name].cancelled:
            yield _stage(handover.ASKED_TO_STOPPED, at_s - before.jobs[name].since_s)
        case JobRunning(job=name):
            kind = "resume" if before.jobs[name].state is JobState.RESUMING else "start"
            yield Sample(handover.JOB_START, at_s - before.jobs[name].since_s, (kind,))
        case GrantSeat(slots=slots):
            for slot in slots:
                yield _stage(handover.FREED_TO_GRANTED, at_s - before.slots[slot].since_s)
        case SeatLanded(seat=seat):
            record = before.seats[seat]
            open_s = openings.since_s.get((seat, record.epoch), record.granted_s)
            yield _stage(handover.OPEN_TO_LANDED, at_s - open_s)
        case SeatParked(seat=seat):
            yield _stage(handover.ASKED_TO_WARM, at_s - before.seats[seat].asked_s)
        case SeatReady(seat=seat) if before.seats[seat].state is SeatState.WAKING:
            yield _stage(handover.GRANTED_TO_WOKEN, at_s - before.seats[seat].granted_s)
        case SeatReady():
            yield from _ready(before.seats[body.seat], body, at_s)
        case SeatStopped(seat=seat) if before.seats[seat].state is SeatState.DRAINING:
            yield _stage(handover.ASKED_TO_DRAINED, at_s - before.seats[seat].asked_s)


def _ready(seat: SeatRecord, body: SeatReady, at_s: float) -> Iterator[Sample]:
    yield Sample(handover.REPLICA_START, at_s - seat.granted_s, (seat.endpoint,))
    if seat.granted_s < seat.since_s:  # else its predecessor died there, and it did not have to land
        yield _stage(handover.LANDED_TO_READY, at_s - seat.since_s)
    for name, seconds in body.stages_s:
        stage = name if name in handover.START_STAGES else "other"
        yield Sample(handover.REPLICA_STAGE, seconds, (seat.endpoint, stage))


def _stage(stage: str, seconds: float) -> Sample:
    # Two arbiters on two machines may have clocks that differ by more than a stage takes.
    return Sample(handover.HANDOVER, max(0.0, seconds), (stage,))
