"""Events of a person who holds a job aside, and lets it go on.

A hold is a wish that stays: whatever the job does meanwhile (park, stop, crash, be lost and restored), it gets no slots
until it is released. It ends with the job, for one of the same name that is submitted later is another run. Who asks
that nothing of it stays on its node may do so later, too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import Body, Event, JobHeld, JobReleased
from ebbtide.pool.handlers.job_handlers import job_record
from ebbtide.pool.lookup.records import having
from ebbtide.pool.state import Hold, JobRecord, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState


def _put(state: PoolState, record: JobRecord) -> PoolState:
    return replace(state, jobs=having(state.jobs, {record.spec.name: record}))


def _held(state: PoolState, event: Event, body: JobHeld) -> PoolState:
    record = job_record(state, body.job)
    if record.state is JobState.ENDED or record.cancelled:  # guard: what is over or cancelled is not held
        raise IllegalTransition(f"job {body.job} is {'cancelled' if record.cancelled else 'over'}: nothing to hold")
    # guard: a job is held by one person at a time
    if record.held is not None and (record.held.off_node or not body.off_node):
        raise IllegalTransition(f"job {body.job} is held by {record.held.by} already")
    if record.held is None:
        held = Hold(body.by, body.reason, event.at_s, body.off_node)
    else:  # whose word stands
        held = replace(record.held, off_node=True)
    return _put(state, replace(record, held=held, cause=event.id))


def _released(state: PoolState, event: Event, body: JobReleased) -> PoolState:
    record = job_record(state, body.job)
    if record.held is None:
        raise IllegalTransition(f"job {body.job} is not held")
    # A restart elsewhere is worth its cost once the job has waited for its slots long enough: that time begins now.
    # guard: a released job waits from its release on
    asked_s = event.at_s if record.state is JobState.PARKED else record.asked_s
    # guard: nothing is owed to a released job before it has run
    away = record.stood_aside or record.state not in JOB_HOLDS_SLOTS
    return _put(state, replace(record, held=None, stood_aside=away, asked_s=asked_s, cause=event.id))


HANDLERS: dict[type[Body], Callable[[PoolState, Event, Any], PoolState]] = {JobHeld: _held, JobReleased: _released}
