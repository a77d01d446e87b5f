"""Answers that were lost: what became of the question is read back, and only what is not done is asked again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.helper.client import Workload
from ebbtide.helper.errors import Lost, OutcomeUnknown, Undone, Unreachable
from ebbtide_train.interactive import errors
from ebbtide_train.interactive.parking import helper_snapshots
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.process_tree.tree import Process

LEADER = Process(5, 7)
LOST = OutcomeUnknown("did not answer", "read back")


class Played:
    """A helper whose answers are written down beforehand; every question is noted."""

    def __init__(self, states: list[tuple[str, str]], **answers: list[Exception | None]) -> None:
        """``states``: driver's word and what is under way, for each time that it is asked; the last one stays."""
        self._states, self._answers = states, answers
        self.asked: list[str] = []

    def state(self, name: str) -> list[Workload]:
        driver, busy = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return [Workload(name, 5, 7, 1, "live", True, driver=driver, busy=busy)]

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def ask(*_given: object) -> None:
            self.asked.append(verb)
            answer = self._answers.get(verb, [None]).pop(0) if self._answers.get(verb) else None
            if answer is not None:
                raise answer

        return ask


def snapshots(helper: Any) -> HelperSnapshots:
    found = HelperSnapshots(helper, "s")
    found.register(LEADER)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_snapshots, "_POLL_S", 0.001)
    monkeypatch.setattr(helper_snapshots, "READ_BACK_S", 0.2)


def test_what_is_still_under_way_is_waited_for_and_not_asked_for_again() -> None:
    helper = Played([("running", ""), ("running", "lock"), ("running", "lock"), ("locked", "")], lock=[LOST])
    assert snapshots(helper).leave_gpu(LEADER)
    assert helper.asked == ["register", "lock", "checkpoint"]


def test_what_is_not_done_is_asked_for_once_more() -> None:
    helper = Played([("running", ""), ("running", "")], lock=[LOST])
    assert snapshots(helper).leave_gpu(LEADER)
    assert helper.asked == ["register", "lock", "lock", "checkpoint"]


def test_what_is_done_in_part_is_led_back_where_it_cannot_be_done_wholly() -> None:
    mixed = "mixed: 5 locked, 6 checkpointed"
    helper = Played([("running", ""), (mixed, ""), (mixed, "")], checkpoint=[LOST, Undone("no", "another way")])
    with pytest.raises(errors.CannotPark, match="it stays on its GPU: no"):
        snapshots(helper).leave_gpu(LEADER)
    assert helper.asked == ["register", "lock", "checkpoint", "checkpoint", "restore", "unlock"]


def test_where_nobody_says_what_became_of_it_nothing_more_is_asked() -> None:
    helper = Played([("running", ""), ("running", "lock")], lock=[LOST])
    with pytest.raises(errors.OutcomeUnknown, match="under way"):
        snapshots(helper).leave_gpu(LEADER)
    assert helper.asked == ["register", "lock"]


def test_where_the_driver_does_not_say_where_it_is_nothing_is_begun() -> None:
    helper = Played([("unknown: no answer within 5 s", "")])
    with pytest.raises(errors.CannotPark, match="nobody says where it is on its GPU: unknown: no answer"):
        snapshots(helper).leave_gpu(LEADER)
    assert helper.asked == ["register"]


def test_what_the_driver_has_lost_is_a_crash() -> None:
    helper = Played([("running", "")], checkpoint=[Lost("it is FAILED", "kill it")])
    with pytest.raises(errors.SessionCrashed, match="FAILED"):
        snapshots(helper).leave_gpu(LEADER)


@pytest.mark.parametrize("word", ["", "unused"])
def test_of_what_is_on_no_gpu_the_driver_is_asked_nothing(word: str) -> None:
    helper = Played([(word, "")])
    one = snapshots(helper)
    assert not one.leave_gpu(LEADER)
    one.return_to_gpu(LEADER, {})
    assert helper.asked == ["register"]


@pytest.mark.parametrize(
    ("states", "answers", "asked"),
    [
        ([("checkpointed", "")], {}, ["restore", "unlock"]),
        ([("locked", "")], {}, ["unlock"]),
        ([("mixed: 5 locked, 6 checkpointed", "")], {}, ["restore", "unlock"]),
        ([("checkpointed", ""), ("locked", "")], {"restore": [LOST]}, ["restore", "unlock"]),
        ([("checkpointed", ""), ("checkpointed", "")], {"restore": [LOST]}, ["restore", "restore", "unlock"]),
        ([("checkpointed", ""), ("running", "")], {"unlock": [LOST]}, ["restore", "unlock"]),
    ],
)
def test_back_it_goes_on_from_where_the_driver_has_it(
    states: list[tuple[str, str]], answers: dict[str, list[Exception | None]], asked: list[str]
) -> None:
    helper = Played(states, **{verb: list(said) for verb, said in answers.items()})
    snapshots(helper).return_to_gpu(LEADER, {})
    assert helper.asked == ["register", *asked]


def test_back_a_refusal_and_a_silence_are_told_apart() -> None:
    helper = Played([("checkpointed", "")], restore=[Undone("no", "another way")])
    with pytest.raises(errors.CannotRevive, match="does not bring it back: no"):
        snapshots(helper).return_to_gpu(LEADER, {})
    helper = Played([("checkpointed", "")], restore=[LOST, LOST])
    with pytest.raises(errors.OutcomeUnknown, match="did not answer"):
        snapshots(helper).return_to_gpu(LEADER, {})


def test_a_helper_that_is_away_leaves_the_image_to_say_so() -> None:
    class Away(Played):
        def state(self, name: str) -> list[Workload]:
            raise Unreachable("no helper answers", "start it")

    helper = Away([("", "")], dump=[Unreachable("no helper answers", "start it")])
    one = snapshots(helper)
    assert not one.leave_gpu(LEADER)
    with pytest.raises(errors.CannotPark, match="no helper answers"):
        one.image(LEADER, Path("/image"))


class AtWork(Played):
    """At work on an image for so many looks; then it answers, or is silent, as ``after`` says."""

    def __init__(self, looks: int, after: Exception | None = None) -> None:
        super().__init__([("", "")])
        self.looks, self._after = looks, after

    def facts(self) -> dict[str, Any]:
        self.looks -= 1
        if self.looks < 0 and self._after is not None:
            raise self._after
        return {"busy": {"/image": "dump"} if self.looks >= 0 else {"/other": "dump"}}


def test_an_image_that_a_helper_still_makes_is_waited_for() -> None:
    helper = AtWork(300)  # which is longer than a helper may be silent here
    snapshots(helper).settled(Path("/image"))
    assert helper.looks == -1


def test_a_helper_that_falls_silent_is_waited_for_as_long_as_one_takes_to_start() -> None:
    helper = AtWork(3, Unreachable("no helper answers", "start it"))
    snapshots(helper).settled(Path("/image"))
    assert helper.looks < -1
