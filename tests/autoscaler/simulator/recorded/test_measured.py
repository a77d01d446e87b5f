"""How long moves took is told from events: from the word on, and of nobody's namesake."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    Body,
    Event,
    GrantJob,
    JobEnded,
    JobRunning,
    JobStopped,
    JobSubmitted,
    ParkJob,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import JobName, NodeId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.recorded.measured import Durations
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.simulator.ledgers import an_event, pool_of
from tests.examples import examples

JOB = JobName("train")
GANG = tuple(slot_id(NodeId("n"), number) for number in range(2))


def durations(lived: Iterable[tuple[float, Body]]) -> Durations:
    """Of a pool of two slots in which this happened."""
    found, state = Durations(), PoolState()
    events: list[Event] = [*pool_of({"n": [(0.0, 600.0)]}), *(an_event(at_s, body) for at_s, body in lived)]
    for one in events:
        before, state = state, apply(state, one)
        found.take(one, before, state)
    return found


def trains(from_s: float, step: int = 0) -> list[tuple[float, Body]]:
    """It is granted both slots, and trains four seconds later."""
    return [(from_s - 4.0, GrantJob(JOB, GANG, "why")), (from_s, JobRunning(JOB, step))]


def leaves(at_s: float) -> list[tuple[float, Body]]:
    """Its slots are free."""
    return [(at_s, SlotFreed(slot)) for slot in GANG]


@settings(max_examples=examples(30), deadline=None, database=None, derandomize=True)
@given(trains_s=st.integers(1, 1000), parks_s=st.integers(0, 100), stops_s=st.integers(1, 100))
def test_a_job_that_cannot_park_and_stops_was_told_to_go_when_it_was_to_park(
    trains_s: int, parks_s: int, stops_s: int
) -> None:
    told_s = 10.0 + trains_s
    found = durations(
        [
            (1.0, JobSubmitted(a_job(host_bytes_per_worker=1), "1")),
            *trains(10.0),
            (told_s, ParkJob(JOB, "why")),
            (told_s + parks_s, StopJob(JOB, "it cannot park in place", preempts=True)),
            *leaves(told_s + parks_s + stops_s),
            (told_s + parks_s + stops_s, JobStopped(JOB, 50)),
        ]
    )
    assert found.of["stop_s"] == [parks_s + stops_s] and not found.of["aside_s"]
    assert found.steps == {JOB: (2 * trains_s, 50)}
    assert found.step_slot_s(JOB) == pytest.approx(2 * trains_s / 50)


@pytest.mark.parametrize("outcome", ["finished", "failed", "cancelled", "lost"])
def test_what_a_job_did_is_none_of_its_namesakes(outcome: str) -> None:
    """The second one is stopped before it trains: nobody waited for a safe point, and its steps came from before."""
    found = durations(
        [
            (1.0, JobSubmitted(a_job(), "1")),
            *trains(10.0),
            (1010.0, JobEnded(JOB, outcome, "")),  # type: ignore[arg-type]  # one of the four
            *leaves(1011.0),
            (80_000.0, JobSubmitted(a_job(), "2")),
            (80_001.0, GrantJob(JOB, GANG, "why")),
            (80_005.0, StopJob(JOB, "why", preempts=True)),
            *leaves(80_006.0),
            (80_006.5, JobStopped(JOB, 700)),
        ]
    )
    assert not found.steps and not found.of["stop_s"]
    assert found.times(Times(), {JOB: 2}).step_s == Times().step_s
