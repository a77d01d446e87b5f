"""Events of jobs."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from ebbtide.pool.backoff import backoff_s
from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    CancelJob,
    Event,
    GrantJob,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobForgotten,
    JobLoading,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    JobSubmitted,
    ParkJob,
    ResumeJob,
    StopJob,
)
from ebbtide.pool.handlers.slot_handlers import occupy, reclaim
from ebbtide.pool.ids import Epoch, JobName, node_of
from ebbtide.pool.lookup.records import having, without
from ebbtide.pool.rules.record_retention import is_over
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_TABLE, JobState, SlotState, advance

PREEMPTION_WINDOW_S = 3600.0  # JobSpec.max_preemptions_per_h counts within this time


def job_record(state: PoolState, job: JobName) -> JobRecord:
    """The record of ``job``.

    Raises:
        IllegalTransition: the pool knows no such job.
    """
    try:
        return state.jobs[job]
    except KeyError:
        raise IllegalTransition(f"job {job} is not known") from None


def _put(state: PoolState, record: JobRecord) -> PoolState:
    return replace(state, jobs=having(state.jobs, {record.spec.name: record}))


def _move(record: JobRecord, then: JobState, at_s: float) -> JobRecord:
    advance(JOB_TABLE, f"job {record.spec.name}", record.state, then)
    return replace(record, state=then, since_s=at_s, loading=False)


def _must_hold_nothing(state: PoolState, record: JobRecord, why: str) -> None:
    held = state.held_by(record.spec.name, record.epoch)
    if held:  # guard: parked, stopped and recovered mean that every slot is proven free
        raise IllegalTransition(f"job {record.spec.name} {why}, but {', '.join(held)} is not proven free")


def _submitted(state: PoolState, event: Event, body: JobSubmitted) -> PoolState:
    known = state.jobs.get(body.spec.name)
    fresh = JobRecord(
        spec=body.spec,
        incarnation=body.incarnation,
        state=JobState.WAITING,
        since_s=event.at_s,
        submitted_s=event.at_s,
        submission=state.submissions,
        registered_s=event.at_s,
    )
    state = replace(state, submissions=state.submissions + 1)
    if known is None:
        return _put(state, fresh)
    advance(JOB_TABLE, f"job {body.spec.name}", known.state, JobState.WAITING)
    if known.state is not JobState.ENDED:  # guard: one job of a name lives at a time
        raise IllegalTransition(f"job {body.spec.name} is {known.state.value}: one of that name at a time")
    # guard: a restored job keeps its counts
    if body.restored:  # for its author it is the same run: all that was counted stays
        fresh = replace(
            known,
            spec=body.spec,
            incarnation=body.incarnation,
            state=JobState.WAITING,
            since_s=event.at_s,
            registered_s=event.at_s,
            # guard: a restored job drops the lease of before
            epoch=Epoch(0),  # what its last gang held may still be on its way back
            gang_epoch=Epoch(0),
            outcome="",
            restores=known.restores + 1,
        )
        return _put(state, fresh)
    if body.fresh:  # guard: a job that begins anew has no step of before
        return _put(state, replace(fresh, directive=known.directive))
    return _put(
        state,
        replace(
            fresh,
            step=known.step,
            durable_step=known.durable_step,
            furthest_step=known.furthest_step,
            directive=known.directive,
        ),
    )


def _grant(state: PoolState, event: Event, body: GrantJob) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.STARTING, event.at_s)
    if record.cancelled:  # guard: a cancelled job is granted no slot
        raise IllegalTransition(f"job {body.job} is cancelled: no slot for it")
    _not_held(record)  # guard: a held job is granted nothing
    # guard: a gang has as many workers as its job asks for when granted
    if not record.spec.workers_min <= len(body.slots) <= record.spec.workers_max:
        raise IllegalTransition(
            f"job {body.job} cannot run on {len(body.slots)} slots: "
            f"it asks for {record.spec.workers_min}..{record.spec.workers_max}"
        )
    epoch = state.next_epoch
    state = occupy(state, body.slots, body.job, SlotState.LEASED, event.at_s)
    return _put(
        state,
        replace(
            moved,
            gang=body.slots,
            epoch=epoch,
            gang_epoch=epoch,
            directive=record.directive + 1,
            left_early=False,
            started_from=record.furthest_step,
            cause=event.id,
        ),
    )


def _loading(state: PoolState, event: Event, body: JobLoading) -> PoolState:
    record = job_record(state, body.job)
    if record.state is not JobState.STARTING:  # guard: only a job that starts loads
        raise IllegalTransition(f"job {body.job} is {record.state.value}: it does not start")
    return _put(state, replace(record, loading=True))


def _running(state: PoolState, event: Event, body: JobRunning) -> PoolState:
    before = job_record(state, body.job)
    record = _move(before, JobState.RUNNING, event.at_s)
    # guard: lost steps are counted once
    repeats = body.lost_steps if before.state is JobState.STARTING else 0  # a resumed gang was counted when it started
    return _put(
        state,
        replace(
            record,
            ran_since_s=event.at_s,
            stood_aside=False,
            step=max(body.step, record.durable_step),
            crash_lost_steps=record.crash_lost_steps + repeats,
        ),
    )


def _got_to(record: JobRecord, step: int) -> JobRecord:
    """``record`` after a gang finished ``step``: one that no gang reached before ends a series of failures."""
    if step <= record.furthest_step:  # guard: only progress ends a series of failures
        return record
    return replace(record, furthest_step=step, failures_in_a_row=0)


def _preemptible(record: JobRecord) -> None:
    if record.spec.workload_class is WorkloadClass.NON_PREEMPTIBLE:  # guard: a non-preemptible job is not preempted
        raise IllegalTransition(f"job {record.spec.name} is non-preemptible: it is never asked to step aside")


def _not_held(record: JobRecord) -> None:
    if record.held is not None:
        raise IllegalTransition(f"job {record.spec.name} is held by {record.held.by}: no slot for it until its release")


def _preempted(record: JobRecord, at_s: float) -> tuple[float, ...]:
    # guard: preemptions of more than an hour ago do not count
    return (*(t for t in record.preempted_s if at_s - t < PREEMPTION_WINDOW_S), at_s)


def _park(state: PoolState, event: Event, body: ParkJob) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.PARKING, event.at_s)
    # guard: a person's wish to park goes before a job's class
    if record.held is None:  # a person's wish goes before its class, and counts against no bound on preemptions
        _preemptible(record)
    if not record.spec.in_place:  # guard: no job is parked that cannot park in place
        raise IllegalTransition(f"job {body.job} declares in_place: false: stop it instead")
    moved = replace(
        moved,
        directive=record.directive + 1,
        asked_s=event.at_s,
        stopped_to_grow=False,
        # guard: a park that a person wished counts as no preemption
        preempted_s=_preempted(record, event.at_s) if record.held is None else record.preempted_s,
        tiers=body.tiers,
        cause=event.id,
    )
    state = _put(reclaim(state, record.gang, event.at_s), moved)
    for node in dict.fromkeys(map(node_of, record.gang)):
        # guard: no park takes more host memory than its node lends
        if state.parked_bytes(node) > state.nodes.get(node, inf):
            raise IllegalTransition(
                f"job {body.job} cannot park: node {node} lends {state.nodes[node]} bytes of host memory, "
                f"{state.parked_bytes(node)} would be used"
            )
    return state


def _parked(state: PoolState, event: Event, body: JobParked) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.PARKED, event.at_s)
    _must_hold_nothing(state, record, "reports parked")
    # guard: a parked rank's older word takes no step back
    step = max(body.step, record.durable_step)  # its word may be older than its last checkpoint
    return _put(state, _got_to(replace(moved, step=step, parks=record.parks + 1), step))


def _resume(state: PoolState, event: Event, body: ResumeJob) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.RESUMING, event.at_s)
    _not_held(record)  # guard: a held job does not resume
    epoch = state.next_epoch
    state = occupy(state, record.gang, body.job, SlotState.LEASED, event.at_s)
    return _put(state, replace(moved, epoch=epoch, directive=record.directive + 1, cause=event.id))


def _stop(state: PoolState, event: Event, body: StopJob) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.STOPPING, event.at_s)
    was_aside = record.state in (JobState.PARKED, JobState.PARKING)
    # One that is aside already was asked by whoever might; a person's wish goes before its class.
    newly = (
        body.preempts  # guard: growing is no preemption
        # guard: a park that turns into a restart is one preemption; a gang that is aside is stopped whatever its class
        and not was_aside
        # guard: a person's wish to stop goes before a job's class; a stop that a person wished counts as no preemption
        and record.held is None
    )
    if newly:
        _preemptible(record)
    moved = replace(
        moved,
        directive=record.directive + 1,
        asked_s=record.asked_s if was_aside else event.at_s,
        stopped_to_grow=not body.preempts,
        left_early=record.state is JobState.STARTING,
        restarts=record.restarts + body.preempts,
        # a park that turns into a restart is one preemption, not two
        preempted_s=_preempted(record, event.at_s) if newly else record.preempted_s,
        cause=event.id,
    )
    return _put(reclaim(state, state.held_by(body.job, record.epoch), event.at_s), moved)


def _cancel(state: PoolState, event: Event, body: CancelJob) -> PoolState:
    record = job_record(state, body.job)
    lost = record.state is JobState.ENDED and record.outcome.startswith("lost:")
    if (
        record.cancelled  # guard: a second cancel is refused
        or (record.state is JobState.ENDED and not lost)  # guard: a cancel of a job that is over is refused
    ):
        raise IllegalTransition(f"job {body.job} is {'cancelled' if record.cancelled else 'over'} already")
    moved = replace(
        record,
        cancelled=True,
        held=None,  # guard: a cancelled job is held no more
        directive=record.directive + 1,
        cause=event.id,
    )
    if lost:  # it is not restored; a driver that is on its way already hears that its job is cancelled
        return _put(state, replace(moved, outcome=f"cancelled: {body.reason} (it was {record.outcome})"))
    if record.state in (JobState.WAITING, JobState.RECOVERING, JobState.STOPPING):
        return _put(state, moved)  # its controller is told at its next report; slots are on their way already
    moved = _move(replace(moved, left_early=record.state is JobState.STARTING), JobState.STOPPING, event.at_s)
    return _put(reclaim(state, state.held_by(body.job, record.epoch), event.at_s), moved)


def _durable(state: PoolState, event: Event, body: JobDurable) -> PoolState:
    record = job_record(state, body.job)
    if body.step < record.durable_step:  # guard: the durable step never goes back
        raise IllegalTransition(f"job {body.job}: durable step went back from {record.durable_step} to {body.step}")
    # guard: a new durable step ends a series of restores
    restores = 0 if body.step > record.durable_step else record.restores
    moved = replace(record, durable_step=body.step, step=max(record.step, body.step), restores=restores)
    return _put(state, _got_to(moved, body.step))


def _stopped(state: PoolState, event: Event, body: JobStopped) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.WAITING, event.at_s)
    if record.state is not JobState.STOPPING:  # guard: only a job that was asked to stop has stopped
        raise IllegalTransition(f"job {body.job} is {record.state.value}, it was not asked to stop")
    _must_hold_nothing(state, record, "reports stopped")
    step = max(body.step, record.durable_step)
    return _put(state, _got_to(replace(moved, gang=(), step=step), step))


def _crashed(state: PoolState, event: Event, body: JobCrashed) -> PoolState:
    record = job_record(state, body.job)
    reached = record.durable_step + body.lost_steps
    furthest = max(reached, record.furthest_step)
    # guard: a crash after progress is no failure
    failures = 0 if furthest > record.started_from else record.failures_in_a_row + 1
    moved = replace(
        _move(record, JobState.RECOVERING, event.at_s),
        # guard: the rest of a crashed gang hears of the crash
        directive=record.directive + 1,  # whoever is left has carried out the last one and must hear of this
        crashes=record.crashes + 1,
        step=record.durable_step,  # guard: a crash falls back to the durable step
        furthest_step=furthest,
        failures_in_a_row=failures,
        not_before_s=event.at_s + backoff_s(failures),
        last_error=body.why,
        crashed_s=event.at_s,
    )
    return _put(reclaim(state, state.held_by(body.job, record.epoch), event.at_s), moved)


def _recovered(state: PoolState, event: Event, body: JobRecovered) -> PoolState:
    record = job_record(state, body.job)
    moved = _move(record, JobState.WAITING, event.at_s)
    if record.state is not JobState.RECOVERING:  # guard: only a job that crashed has recovered
        raise IllegalTransition(f"job {body.job} is {record.state.value}: there is nothing to recover from")
    _must_hold_nothing(state, record, "is said to have recovered")
    return _put(state, replace(moved, gang=()))


def _ended(state: PoolState, event: Event, body: JobEnded) -> PoolState:
    record = job_record(state, body.job)
    moved = replace(
        _move(record, JobState.ENDED, event.at_s),
        directive=record.directive + 1,  # a gang that outlived its driver is to stop
        outcome=f"{body.outcome}: {body.detail}",
        # guard: a hold ends with its job, unless the driver was lost
        held=record.held if body.outcome == "lost" else None,  # the pool may bring it back: for its holder the same job
        gang=(),
    )
    return _put(reclaim(state, state.held_by(body.job, record.epoch), event.at_s), moved)


def _forgotten(state: PoolState, event: Event, body: JobForgotten) -> PoolState:
    record = job_record(state, body.job)
    if record.state is not JobState.ENDED:  # guard: no job that lives is forgotten
        raise IllegalTransition(f"job {body.job} is {record.state.value}: only what is over is forgotten")
    if not is_over(state, body.job):  # guard: no job is forgotten before its slots are proven free
        raise IllegalTransition(f"job {body.job} is not forgotten before every slot that it had is proven free")
    return replace(state, jobs=without(state.jobs, (body.job,)))


HANDLERS: dict[type[Body], Callable[[PoolState, Event, Any], PoolState]] = {
    JobSubmitted: _submitted,
    GrantJob: _grant,
    JobLoading: _loading,
    JobRunning: _running,
    ParkJob: _park,
    JobParked: _parked,
    ResumeJob: _resume,
    StopJob: _stop,
    CancelJob: _cancel,
    JobDurable: _durable,
    JobStopped: _stopped,
    JobCrashed: _crashed,
    JobRecovered: _recovered,
    JobEnded: _ended,
    JobForgotten: _forgotten,
}
