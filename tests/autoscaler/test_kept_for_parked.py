"""What a job was stopped to grow into is not kept from it for one that a person releases only then."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    Body,
    GrantJob,
    JobHeld,
    JobReleased,
    JobStopped,
    JobSubmitted,
    ResumeJob,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import JobName
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.referee_jobs import (
    parked_jobs_keep_their_slots_for_a_while,
    what_a_job_was_stopped_for_is_left_to_it,
)
from tests.builders.closed_loop import a_case
from tests.builders.policy import CONFIG, NOW, SEAT0, a_pool, fold, look, parked, signals, slots, with_job, with_ready
from tests.examples import examples

GROWS, ASIDE = JobName("grows"), JobName("aside")
S0 = slots(1)[0]
RESERVE = replace(CONFIG, reserve=1)  # of four slots one, and three are those of the parked job


def stopped_to_grow(
    *,
    others: Sequence[int] = (1,),
    most: int = 3,
    kind: WorkloadClass = WorkloadClass.PREEMPTIBLE,
    stopped_s: float = NOW - 2.0,
    released_s: float = NOW - 1.0,
    first: JobName = GROWS,
    there: bool = True,
) -> PoolState:
    """A person has put a job of three aside; another one was stopped to grow, and the first one was released.

    Args:
        others: nodes beside that of the one who was put aside, by their slots; all slots are free now.
        most: workers that the one may have which was stopped; it had one.
        kind: of that one.
        stopped_s: when it was.
        released_s: when the other one was.
        first: who is before the other in turn.
        there: it has stopped already, and waits for its slots.
    """
    nodes = {"n0": 3} | {f"n{number}": count for number, count in enumerate(others, 1)}
    at_s = {GROWS: 1_001.0, ASIDE: 1_001.0, first: 1_000.0}
    mine = slots(1, "n1")
    state = with_job(a_pool(nodes=nodes), a_job(GROWS, workers_max=most, workload_class=kind), mine, at_s=at_s[GROWS])
    state = with_job(state, a_job(ASIDE, workers_min=3), slots(3), at_s=at_s[ASIDE])
    state = parked(fold(state, JobHeld(ASIDE, "me", "r"), at_s=NOW - 30.0), ASIDE, at_s=NOW - 30.0)
    stopped: tuple[Body, ...] = (StopJob(GROWS, "r", preempts=False), *map(SlotFreed, mine))
    story = [(stopped_s, stopped), (released_s, (JobReleased(ASIDE, "me"),))]
    for then_s, bodies in sorted(story, key=lambda one: one[0]):
        state = fold(state, *bodies, at_s=then_s)
    return fold(state, JobStopped(GROWS, 4), at_s=NOW - 0.5) if there else state


def waiting(state: PoolState, name: str, at_s: float, workers: int = 1) -> PoolState:
    return fold(state, JobSubmitted(a_job(name, workers_min=workers, workers_max=workers), "i"), at_s=at_s)


def given_to(state: PoolState, reserve: int = 0) -> dict[str, int]:
    """How many slots each job gets."""
    moves = look(state, config=replace(CONFIG, reserve=reserve)).moves
    found = {move.job: move.slots for move in moves if isinstance(move, GrantJob)}
    found |= {move.job: state.jobs[move.job].gang for move in moves if isinstance(move, ResumeJob)}
    return {name: len(got) for name, got in found.items()}


@pytest.mark.proves("a job that was stopped to grow gets what one released later waits for")
def test_a_job_that_was_stopped_to_grow_gets_what_it_was_stopped_for() -> None:
    """Seed 1552: even its own slot was left in reserve, and the job after it resumed."""
    on_its_way = stopped_to_grow(there=False)
    assert look(on_its_way, config=RESERVE).moves == ()
    assert given_to(stopped_to_grow(), reserve=1) == {GROWS: 3}
    assert given_to(stopped_to_grow(others=(1, 1)), reserve=1) == {GROWS: 3}


def test_who_is_released_resumes_where_there_is_enough_for_both() -> None:
    for there in (False, True):
        state = stopped_to_grow(others=(1, 2), there=there)
        assert given_to(state) == {ASIDE: 3} | ({GROWS: 3} if there else {})


def test_third_jobs_have_these_slots_kept_from_them_as_ever() -> None:
    for there in (False, True):
        state = waiting(stopped_to_grow(most=2, there=there), "third", NOW - 0.2)
        assert given_to(state) == ({GROWS: 2} if there else {})


def test_what_is_said_to_one_that_needs_as_much_does_not_hold_for_it() -> None:
    state = waiting(stopped_to_grow(), "before", 900.0)
    assert given_to(state, reserve=1) == {GROWS: 3}
    last = waiting(state, "after", NOW - 0.2)
    assert {"before", "after"} <= dict(look(last, config=RESERVE).waits).keys()


@pytest.mark.parametrize(
    "changes",
    [{"released_s": NOW - 3.0}, {"released_s": NOW - 2.0}, {"first": ASIDE}],
    ids=["released before", "released at that moment", "before it in turn"],
)
def test_else_the_slots_of_who_is_released_are_kept_from_it_too(changes: dict[str, Any]) -> None:
    assert given_to(stopped_to_grow(stopped_s=NOW - 2.0, **changes)) == {ASIDE: 3, GROWS: 1}


def test_nor_does_it_take_what_one_before_it_in_turn_lacks_no_more_than_a_slot_of() -> None:
    state = with_ready(stopped_to_grow(first=ASIDE), SEAT0, (S0,), at_s=NOW - 0.1)
    found = look(state, traffic=signals(inflight=1, last_arrival_s=NOW))
    assert [(type(move), len(getattr(move, "slots", ()))) for move in found.moves] == [(GrantJob, 1)]


def test_who_was_put_aside_meanwhile_was_promised_nothing() -> None:
    state = stopped_to_grow(there=True)
    state = fold(state, JobHeld(GROWS, "me", "r"), JobReleased(GROWS, "me"), at_s=NOW - 0.3)
    assert given_to(state) == {ASIDE: 3, GROWS: 1}


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(WorkloadClass),
)
def test_it_gets_all_it_may_have_before_those_after_it_and_the_referee_agrees(
    others: list[int], most: int, reserve: int, thirds: int, there: bool, kind: WorkloadClass
) -> None:
    state = stopped_to_grow(others=others, most=most, kind=kind, there=there)
    for number in range(thirds):
        state = waiting(state, f"third{number}", NOW - 0.2, workers=1 + number)
    found = look(state, config=replace(CONFIG, reserve=reserve))
    after = fold(state, *found.moves, at_s=NOW)
    left = 3 + sum(others) - reserve
    mine = min(most, left)
    assert violations(after) == []
    if there:
        assert len(after.jobs[GROWS].gang) == mine
        assert len(after.free_slots()) >= reserve
    else:
        assert len(after.free_slots()) >= reserve + mine
    moved = {getattr(move, "job", "") for move in found.moves}
    assert (ASIDE in moved) is (left - mine >= 3), "it resumes wherever there is enough for both"
    assert {after.slots[slot].occupant for slot in slots(3)} <= {None, GROWS, ASIDE}
    case = replace(a_case(state, *found.moves), config=replace(CONFIG, reserve=reserve))
    case.books.promised[GROWS] = (1, 1 + mine)
    assert [*parked_jobs_keep_their_slots_for_a_while(case), *what_a_job_was_stopped_for_is_left_to_it(case)] == []


def test_the_referee_sees_third_jobs_and_those_stopped_after_the_release() -> None:
    late = waiting(stopped_to_grow(), "third", NOW - 0.2)
    soon = stopped_to_grow(released_s=NOW - 3.0)
    for state, name, wrong in ((late, GROWS, 0), (late, JobName("third"), 1), (soon, GROWS, 1)):
        case = a_case(state, GrantJob(name, (S0,), "r"))
        assert len(list(parked_jobs_keep_their_slots_for_a_while(case))) == wrong
