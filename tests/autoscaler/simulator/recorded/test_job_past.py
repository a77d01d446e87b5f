"""What became of each submission of a job, whatever names come again."""

from collections.abc import Iterable

import pytest

from ebbtide.pool.events import Body, GrantJob, JobEnded, JobRunning, JobSubmitted, SlotFreed
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import JobName, NodeId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide_simulator.recorded.job_past import JobPast, JobPasts
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.simulator.ledgers import an_event, pool_of

JOB = JobName("train")
GANG = tuple(slot_id(NodeId("n"), number) for number in range(2))


def pasts(lived: Iterable[tuple[float, Body]], ends_s: float) -> tuple[JobPast, ...]:
    """Of a pool of two slots in which this happened."""
    found, state = JobPasts(), PoolState()
    found.begin(0.0, state)
    for one in [*pool_of({"n": [(0.0, ends_s)]}, until_s=ends_s), *(an_event(at_s, body) for at_s, body in lived)]:
        before, state = state, apply(state, one)
        found.take(one, before, state)
    return found.all(ends_s)


def is_lost(*, restored: bool) -> list[tuple[float, Body]]:
    """It trains on two slots from 10 to 1010 s, its driver dies, and at 2000 s it is submitted again."""
    return [
        (5.0, JobSubmitted(a_job(), "1")),
        (6.0, GrantJob(JOB, GANG, "why")),
        (10.0, JobRunning(JOB, 0)),
        (1010.0, JobEnded(JOB, "lost", "")),
        *((1011.0, SlotFreed(slot)) for slot in GANG),
        (2000.0, JobSubmitted(a_job(), "2", restored=restored)),
    ]


def test_a_job_that_was_lost_and_is_submitted_anew_leaves_its_past() -> None:
    old, new = pasts(is_lost(restored=False), 3000.0)
    assert (old.submit_s, old.first_s, old.trained_s, old.end_s, old.finished) == (5.0, 6.0, 2000.0, 1010.0, False)
    assert (new.submit_s, new.first_s, new.trained_s, new.end_s) == (2000.0, None, 0.0, None)


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_was_lost_and_is_brought_back_is_the_same(ends: bool) -> None:
    end: list[tuple[float, Body]] = [(2500.0, JobEnded(JOB, "finished", ""))] if ends else []
    [one] = pasts([*is_lost(restored=True), *end], 3000.0)
    assert (one.submit_s, one.trained_s, one.finished) == (5.0, 2000.0, ends)
    assert one.end_s == (2500.0 if ends else None)


def test_a_job_that_was_lost_for_good_was_over_then() -> None:
    [one] = pasts(is_lost(restored=True)[:-1], 3000.0)
    assert (one.end_s, one.finished) == (1010.0, False)
