"""What ``MINUTES=N`` measures: it goes on where the run before it stopped."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from evidence import again, carried
from evidence.results import Case
from evidence.stamps import Stamp, stamps_of, with_stamps


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """A result of five cases of a minute each; the code behind them is ``now``."""
    found = [Case(f"case {number}", ("gateway",), 60.0) for number in range(5)]
    monkeypatch.setattr(again, "cases_of", lambda name: found)
    monkeypatch.setattr(again, "digest_of", lambda processes: "now")
    monkeypatch.setattr(carried, "same", lambda: {})
    return found


STAMP = Stamp("c", "h", "2026-01-01 10:00", 60.0, ("gateway",), "now")


class Measuring:
    """Measures each case that it is given, which takes a minute, and keeps the result."""

    def __init__(self) -> None:
        self.now_s, self.document, self.told = 0.0, with_stamps({}, {}), list[str]()

    def run(self, minutes: float | None, chosen: list[str]) -> list[str]:
        done = []
        for name in self._turn(minutes, chosen):
            self.now_s += 60.0
            done.append(name)
            stamps = {**stamps_of(self.document), name: STAMP}
            self.document = with_stamps(self.document, stamps)
        return done

    def _turn(self, minutes: float | None, chosen: list[str]) -> Iterator[str]:
        return again.in_turn("x", self.document, chosen, minutes, clock=lambda: self.now_s, tell=self.told.append)


def test_runs_one_after_the_other_measure_every_case_once_and_then_nothing(cases: list[Case]) -> None:
    measuring, names = Measuring(), [case.name for case in cases]
    assert measuring.run(2.5, names) == names[:2]
    assert measuring.told[-1] == "x: 2 of 5 missing or stale cases were begun"
    assert measuring.run(2.5, names) == names[2:4]
    assert measuring.run(2.5, names) == names[4:]
    assert measuring.run(2.5, names) == [] and "every case is fresh" in measuring.told[-1]


def test_without_a_bound_all_that_is_chosen_is_measured_fresh_or_not(cases: list[Case]) -> None:
    measuring = Measuring()
    assert measuring.run(None, ["case 3", "case 1"]) == ["case 3", "case 1"]
    assert measuring.run(None, ["case 3", "case 1"]) == ["case 3", "case 1"]


def test_what_was_not_chosen_is_not_measured(cases: list[Case]) -> None:
    assert Measuring().run(60.0, ["case 2"]) == ["case 2"]


def test_when_there_is_time_for_none_it_says_how_long_the_shortest_takes(cases: list[Case]) -> None:
    measuring = Measuring()
    assert measuring.run(0.5, [case.name for case in cases]) == []
    assert measuring.told == ["x: 0 of 5 missing or stale cases were begun: the shortest takes 1 min"]


def test_a_change_of_the_code_brings_all_of_it_back_the_oldest_first(cases: list[Case]) -> None:
    measuring = Measuring()
    stamps = {f"case {n}": replace(STAMP, digest="then", date=f"2026-01-0{9 - n} 10:00") for n in range(5)}
    measuring.document = with_stamps({}, stamps)
    assert measuring.run(3.5, [case.name for case in cases]) == ["case 4", "case 3", "case 2"]
