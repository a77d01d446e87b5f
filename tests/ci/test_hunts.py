"""Which hunts a run begins with, and whether there is time for one."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci import usual
from ci.hunts import ENOUGH, LEAST_S, SLOWEST, STARTS_S, UNKNOWN_S, Budget, in_turn, slowness

WINDOW, WINDOWS = 10, 100
BUDGET_S, SET_UP_S = 60 * 70.0, 120.0


def hunted(commit: str, usual_s: dict[str, float], left_s: float, slow: float) -> set[str]:
    """The hunts of a run in which each takes as long as usually, on a machine that is ``slow``."""
    found = set()
    for hunt in in_turn(commit, usual_s):
        if Budget(left_s, slow).allows(usual_s[hunt]):
            found.add(hunt)
            left_s -= usual_s[hunt] * slow
    return found


def windows_without(runs: Sequence[set[str]], hunt: str) -> int:
    return sum(not any(hunt in run for run in runs[at : at + WINDOW]) for at in range(WINDOWS))


@pytest.mark.parametrize("slow", [1.0, 1.2, 1.4])
def test_each_hunt_has_its_turn_within_ten_runs_nearly_always(slow: float) -> None:
    commits = [random.Random(number).randbytes(20).hex() for number in range(WINDOWS + WINDOW - 1)]
    known = usual.load()
    usual_s = known.hunts_s
    assert len(usual_s) > 100 and len(known.parts_s) == 3, "all are on record"
    left_s = BUDGET_S - SET_UP_S - slow * sum(known.parts_s.values())
    runs = [hunted(commit, usual_s, left_s, slow) for commit in commits]
    missed = {hunt: windows_without(runs, hunt) for hunt in usual_s}
    assert {hunt: count for hunt, count in missed.items() if count > 5} == {}


def test_a_commit_hunts_the_same_again_and_another_one_something_else() -> None:
    hunts = [f"hunt{number}" for number in range(20)]
    assert in_turn("a", hunts) == in_turn("a", reversed(hunts))
    assert in_turn("a", hunts) != in_turn("b", hunts)
    assert sorted(in_turn("a", hunts)) == sorted(hunts)


@given(st.floats(0, 1e5), st.floats(1, SLOWEST), st.floats(0, 1e4))
def test_a_hunt_begins_only_if_what_is_left_would_not_cut_it_short(left_s: float, slow: float, usual_s: float) -> None:
    budget = Budget(left_s, slow)
    limit_s = budget.limit_s(usual_s)
    assert limit_s <= left_s
    if budget.allows(usual_s):
        assert limit_s >= max(STARTS_S, ENOUGH * usual_s * slow)
    else:
        assert left_s < max(STARTS_S, ENOUGH * usual_s * slow)


def test_a_hunt_of_less_than_a_second_does_not_begin_in_the_last_seconds() -> None:
    assert not Budget(1.0, 1.0).allows(0.7), "pytest alone takes longer to start"


def test_todays_slowness_is_that_of_the_parts_before() -> None:
    assert slowness({"test": 900.0, "clusters": 1000.0, "new": 9e9}, {"test": 600.0, "clusters": 1000.0}) == 1.25
    assert slowness({"test": 60.0}, {"test": 600.0}) == 1.0, "a quick day makes no hunt shorter than usual"
    assert slowness({"test": 9e9}, {"test": 600.0}) == SLOWEST
    assert slowness({}, {}) == 1.0 and UNKNOWN_S > LEAST_S
