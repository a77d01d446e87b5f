"""A part: second tries, flakes, what was cut off, and tests that must not be lost in silence."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ci.command import Ended
from ci.part import MOST_AGAIN, Part, Unit, run_part

Script = Callable[[Sequence[str], int], tuple[int | None, list[dict[str, object]]]]


class Pytest:
    """Plays pytest: ``script`` gives the exit code and the lines that it tells, by arguments and try."""

    def __init__(self, script: Script, takes_s: float = 10.0) -> None:
        self.script, self.takes_s, self.now_s = script, takes_s, 0.0
        self.calls: list[tuple[tuple[str, ...], float]] = []

    def run(self, arguments: Sequence[str], limit_s: float, told: Path) -> Ended:
        tries = sum(one == tuple(arguments) for one, _ in self.calls)
        self.calls.append((tuple(arguments), limit_s))
        code, lines = self.script(arguments, tries)
        told.write_text("".join(json.dumps(line) + "\n" for line in lines))
        took_s = min(limit_s, self.takes_s) if code is not None else limit_s
        self.now_s += took_s
        return Ended(code, took_s)

    def part(self, *units: Unit, tries: int = 2, until_s: float = 1e6, limit_s: float = 1e6) -> Part:
        limited = [(unit, limit_s) for unit in units]
        part = Part("test")
        run_part(part, limited, until_s=until_s, tries=tries, run=self.run, clock=lambda: self.now_s)
        return part


def listed(*ids: str) -> dict[str, object]:
    return {"ids": list(ids)}


def end(name: str, outcome: str = "passed") -> dict[str, object]:
    return {"end": name, "outcome": outcome, "seconds": 1.0}


UNIT = Unit("m.py", ("-q", "m.py"))


def test_a_part_in_which_all_passes_is_clean() -> None:
    part = Pytest(lambda *_: (0, [listed("a", "b"), end("a"), end("b", "skipped")])).part(UNIT)
    assert part.clean and part.outcomes == {"a": "passed", "b": "skipped"} and part.took_s == 10.0


def test_what_fails_and_passes_alone_is_a_flake_and_named() -> None:
    def script(arguments: Sequence[str], _: int) -> tuple[int, list[dict[str, object]]]:
        if arguments[-1] == "a":
            return 0, [listed("a"), end("a")]
        return 1, [listed("a", "b"), end("a", "failed"), end("b")]

    part = Pytest(script).part(UNIT)
    assert part.clean and part.flakes == ["a"] and part.outcomes["a"] == "passed"


def test_what_fails_twice_has_failed() -> None:
    part = Pytest(lambda *_: (1, [listed("a", "b"), end("a", "failed"), end("b")])).part(UNIT)
    assert not part.clean and part.failed == ["a"] and not part.flakes


def test_with_one_try_nothing_is_tried_again() -> None:
    pytest_ = Pytest(lambda *_: (1, [listed("a"), end("a", "failed")]))
    assert pytest_.part(UNIT, tries=1).failed == ["a"] and len(pytest_.calls) == 1


def test_a_unit_that_hangs_names_the_test_and_keeps_what_it_had_tested() -> None:
    def script(arguments: Sequence[str], _: int) -> tuple[int | None, list[dict[str, object]]]:
        if arguments[-1] == "late":
            return 0, [listed("late"), end("late")]
        if arguments[-1] == "hangs":
            return None, [listed("hangs"), {"start": "hangs"}]
        return None, [listed("good", "hangs", "late"), end("good"), {"start": "hangs"}]

    part = Pytest(script).part(UNIT, limit_s=100.0)
    assert part.took_s < 1000
    assert part.outcomes == {"good": "passed", "late": "passed"}, "the test behind the one that hangs is tried too"
    assert part.cut_off == ["hangs"] and part.untested == [] and not part.clean
    assert part.notes == ["m.py was cut off after 100 s: 1 passed, 1 cut off, 1 not run"]


def test_the_other_units_run_though_one_hangs_and_the_part_ends_in_time() -> None:
    def script(arguments: Sequence[str], _: int) -> tuple[int | None, list[dict[str, object]]]:
        if arguments[-1] == "n.py":
            return 0, [listed("n"), end("n")]
        return None, [listed("hangs"), {"start": "hangs"}]

    pytest_ = Pytest(script)
    part = pytest_.part(UNIT, Unit("n.py", ("n.py",)), limit_s=100.0, until_s=150.0)
    assert part.outcomes == {"n": "passed"} and part.cut_off == ["hangs"]
    assert part.took_s <= 150.0
    assert pytest_.calls[-1][1] == 40.0, "its second try has what is left"


def test_units_for_which_no_time_is_left_are_told() -> None:
    pytest_ = Pytest(lambda *_: (0, [listed("a"), end("a")]), takes_s=100.0)
    part = pytest_.part(UNIT, Unit("n.py", ("n.py",)), until_s=100.0)
    assert part.untested == ["n.py"] and not part.clean


def test_a_part_that_ends_with_fewer_tests_than_its_list_fails() -> None:
    part = Pytest(lambda *_: (0, [listed("a", "b"), end("a")])).part(UNIT, tries=1)
    assert part.untested == ["b"] and not part.clean


@pytest.mark.parametrize("code", [2, 3, 4, 5, -9])
def test_a_pytest_that_tells_of_no_test_fails_its_part(code: int) -> None:
    part = Pytest(lambda *_: (code, [])).part(UNIT)
    assert part.troubles and not part.clean


def test_a_pytest_that_dies_after_its_last_test_fails_its_part() -> None:
    part = Pytest(lambda *_: (-11, [listed("a"), end("a")])).part(UNIT)
    assert part.troubles and not part.clean


def test_when_too_many_fail_nothing_is_tried_again() -> None:
    names = [f"t{number}" for number in range(MOST_AGAIN + 1)]
    pytest_ = Pytest(lambda *_: (1, [listed(*names), *(end(name, "failed") for name in names)]))
    part = pytest_.part(UNIT)
    assert len(pytest_.calls) == 1 and part.failed == names and "too many" in part.troubles[0]


def test_what_is_interrupted_has_told_what_it_tested() -> None:
    class Interrupted(BaseException):
        pass

    def run(arguments: Sequence[str], limit_s: float, told: Path) -> Ended:
        told.write_text("".join(json.dumps(line) + "\n" for line in [listed("a", "b"), end("a"), {"start": "b"}]))
        raise Interrupted

    part = Part("test")
    with pytest.raises(Interrupted):
        run_part(part, [(UNIT, 10.0)], until_s=1e9, tries=2, run=run)
    assert part.outcomes == {"a": "passed"} and part.cut_off == ["b"] and not part.clean
