"""Phases in their order: what fails does not stop the next, what is needed is played, and time is kept."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.line.journal import Journal, State
from benchmarks.gpu.line.phases import SCRIPT, SHORT, names
from benchmarks.gpu.line.script import Budget, PartlyFailed, Phase, play_all, with_needs


def played(
    folder: Path, phases: list[Phase], wanted: list[str], left_s: float = 1e9
) -> dict[str, tuple[State, str, Mapping[str, Any]]]:
    journal = Journal(folder / "journal.jsonl")
    play_all(
        phases,
        journal,
        wanted=wanted,
        budget=Budget(time.time() + left_s),
        tails=lambda: {"a.log": "the end"},
        say=lambda _: None,
    )
    return {name: (told.state, told.why, told.figures) for name, told in journal.phases().items()}


def fails() -> Mapping[str, Any]:
    raise ValueError("no GPU memory")


def fails_partly() -> Mapping[str, Any]:
    raise PartlyFailed("two requests failed", {"answered": 6})


def test_one_that_fails_is_told_with_its_reason_and_the_next_goes_on(tmp_path: Path) -> None:
    phases = [
        Phase("a", lambda: {"took_s": 1.5}),
        Phase("b", fails, ("a",)),
        Phase("c", lambda: {}, ("b",)),
        Phase("d", fails_partly, ("a",)),
        Phase("e", lambda: {"x": 1}),
    ]
    assert played(tmp_path, phases, ["a", "b", "c", "d", "e"]) == {
        "a": (State.DONE, "", {"took_s": 1.5}),
        "b": (State.FAILED, "no GPU memory", {}),
        "c": (State.SKIPPED, "it needs b", {}),
        "d": (State.FAILED, "two requests failed", {"answered": 6}),
        "e": (State.DONE, "", {"x": 1}),
    }
    told = Journal(tmp_path / "journal.jsonl").phases()["b"]
    assert told.tails == {"a.log": "the end"}


def test_what_is_not_asked_for_is_skipped_unless_it_is_needed(tmp_path: Path) -> None:
    phases = [Phase("a", dict), Phase("b", dict, ("a",)), Phase("c", dict), Phase("d", dict, ("b",))]
    found = played(tmp_path, phases, ["d"])
    assert [name for name, (state, *_) in found.items() if state is State.DONE] == ["a", "b", "d"]
    assert found["c"] == (State.SKIPPED, "it was not asked for", {})


def test_one_for_which_there_is_no_time_is_not_begun(tmp_path: Path) -> None:
    phases = [Phase("long", fails, least_s=100.0), Phase("short", dict, least_s=5.0)]
    found = played(tmp_path, phases, ["long", "short"], left_s=50.3)
    assert found["long"] == (State.SKIPPED, "50 s are left, it needs 100", {})
    assert found["short"][0] is State.DONE


def test_a_phase_leaves_to_later_ones_what_it_must(tmp_path: Path) -> None:
    budget = Budget(time.time() + 100.0)

    def left() -> Mapping[str, Any]:
        return {"left_s": budget.left_s()}

    phases = [
        Phase("greedy", left, leave_s=60.0),
        Phase("too long", fails, least_s=50.0, leave_s=60.0),
        Phase("last", left),
    ]
    journal = Journal(tmp_path / "journal.jsonl")
    names = [phase.name for phase in phases]
    play_all(phases, journal, wanted=names, budget=budget, tails=dict, say=lambda _: None)
    told = journal.phases()
    assert 30 < told["greedy"].figures["left_s"] <= 40 and 90 < told["last"].figures["left_s"] <= 100
    assert told["too long"].state is State.SKIPPED


def test_a_journal_that_was_cut_off_keeps_what_it_has(tmp_path: Path) -> None:
    played(tmp_path, [Phase("a", lambda: {"x": 1}), Phase("b", dict)], ["a", "b"])
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n", whole.index(b'"done"')) + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert Journal(path).phases()["a"].figures == {"x": 1}


@given(st.lists(st.sampled_from(names()), min_size=1))
def test_needs_are_among_what_is_played_and_come_before(wanted: list[str]) -> None:
    phases = [Phase(name, dict, needs, least_s) for name, needs, least_s, _ in SCRIPT]
    chosen = with_needs(phases, wanted)
    assert set(wanted) <= chosen
    for place, (name, needs, *_) in enumerate(SCRIPT):
        assert set(needs) <= set(names()[:place])
        if name in chosen:
            assert set(needs) <= chosen


def test_the_short_form_has_the_proof_in_it() -> None:
    assert set(SHORT) <= set(names()) and {"burst", "control", "down"} <= set(SHORT)
