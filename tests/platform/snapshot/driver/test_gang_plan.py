"""The order of a gang's steps, for all mixtures of states that a caller's death can leave behind."""

from itertools import product

import pytest

from ebbtide.snapshot.driver.gang_plan import WAYS, Verb, goals_back, next_step
from ebbtide.snapshot.driver.process_states import STEADY, Call, ProcessState, after

RUNNING, LOCKED, CHECKPOINTED = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED
MIXTURES = list(product(sorted(STEADY, key=lambda state: state.value), repeat=3))


@pytest.mark.parametrize("verb", Verb)
def test_any_mixture_gets_to_the_goal_in_the_order_that_cannot_hang(verb: Verb) -> None:
    for mixture in MIXTURES:
        seen = dict(enumerate(mixture))
        goals = dict.fromkeys(seen, WAYS[verb].goal)
        made: list[Call] = []
        while step := next_step(seen, goals):
            assert step.pids
            if step.call is Call.CHECKPOINT:
                assert RUNNING not in seen.values(), "a rank is checkpointed while another still runs"
            if step.call is Call.UNLOCK:
                assert CHECKPOINTED not in seen.values(), "a rank runs while another is still away"
            for pid in step.pids:
                then = after(seen[pid], step.call)
                assert then is not None, f"the driver would refuse {step.call} of a rank that is {seen[pid]}"
                seen[pid] = then
            made.append(step.call)
            assert len(made) <= 3
        assert seen == goals


def test_a_verb_begins_only_where_it_can_end() -> None:
    for way in WAYS.values():
        assert way.goal in way.starts
        assert set(way.back) <= way.starts
        assert way.starts <= STEADY


@pytest.mark.parametrize("verb", Verb)
def test_nobody_is_restored_on_the_way_back_who_was_found_checkpointed(verb: Verb) -> None:
    """Its GPU may have been given away since."""
    back = goals_back(verb, {1: CHECKPOINTED}, Call.LOCK)
    assert back.get(1, CHECKPOINTED) is CHECKPOINTED


def test_a_lock_that_fails_unlocks_everyone_also_who_was_found_locked() -> None:
    for verb in (Verb.LOCK, Verb.PARK):
        assert goals_back(verb, {1: RUNNING, 2: LOCKED}, Call.LOCK) == {1: RUNNING, 2: RUNNING}


def test_who_runs_again_is_not_stopped_because_another_cannot_be_unlocked() -> None:
    assert goals_back(Verb.RESUME, {1: CHECKPOINTED, 2: CHECKPOINTED}, Call.UNLOCK) == {}
