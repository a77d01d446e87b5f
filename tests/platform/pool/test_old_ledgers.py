"""Ledgers that were written before a field or a rule was added still replay."""

import json

from pydantic import TypeAdapter

from ebbtide.pool.events import (
    EndpointDeclared,
    Event,
    GrantJob,
    JobCrashed,
    JobDurable,
    JobRecovered,
    JobSubmitted,
    SeatDied,
    SeatReady,
    SeatStopped,
    SlotFreed,
)
from ebbtide.pool.handlers.apply import replay
from ebbtide.pool.ids import RecordId
from ebbtide.pool.rules.promises import violations
from tests.platform.pool.builder import ENDPOINT, JOB, READY, RUNNING, S0, S1, SEAT, SPEC, pool

EVENTS: TypeAdapter[list[Event]] = TypeAdapter(list[Event])
NEW = {"restored", "fresh", "max_failures", "revision", "replica", "failed", "weights"}
NEW |= {"warm_replicas", "park_bytes", "cannot_park"}
"""Fields that the first ledgers did not have."""


def as_of_old(events: list[Event]) -> list[Event]:
    """What is read from a ledger that lacks them."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            needed = {"replica"} if value.get("kind") == "seat_landed" else set()
            return {name: strip(part) for name, part in value.items() if name not in NEW - needed}
        return [strip(part) for part in value] if isinstance(value, list) else value

    return EVENTS.validate_json(json.dumps(strip(EVENTS.dump_python(events, mode="json"))))


def test_a_ledger_without_the_later_fields_replays_to_the_same_state() -> None:
    bodies = (EndpointDeclared(ENDPOINT), *READY, SeatDied(SEAT, "w"), SeatReady(SEAT, ()), SeatStopped(SEAT, "w"))
    events = [Event(RecordId(f"1-{n}"), 100.0 + n, None, body) for n, body in enumerate(bodies)]
    assert as_of_old(events) == events
    assert replay(as_of_old(events), pool()) == replay(events, pool())


def test_a_job_that_was_granted_slots_right_after_a_crash_replays() -> None:
    """The first arbiters did not make it wait: that is a matter of the policy, no rule of the ledger."""
    bodies = (*RUNNING, JobDurable(JOB, 5), JobCrashed(JOB, "w", 0), SlotFreed(S0), SlotFreed(S1), JobRecovered(JOB))
    twice = (*bodies, *RUNNING[:1], JobCrashed(JOB, "w", 0), SlotFreed(S0), SlotFreed(S1), JobRecovered(JOB))
    events = [
        Event(RecordId(f"1-{n}"), 100.0, None, body) for n, body in enumerate((*twice, GrantJob(JOB, (S0,), "r")))
    ]
    state = replay(as_of_old(events), pool())
    assert state.jobs[JOB].not_before_s > 100.0
    assert violations(state) == []


def test_a_submission_of_old_is_no_restored_one() -> None:
    event = Event(RecordId("1-0"), 1.0, None, JobSubmitted(SPEC, "i"))
    (old,) = as_of_old([event])
    assert isinstance(old.body, JobSubmitted) and not old.body.restored and old.body.spec.max_failures == 3
