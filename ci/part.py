"""A part of a run: units of tests, each a pytest of its own, with a second try of what failed.

A test that fails and then passes alone is a flake: a defect of the test or of the product, counted and named. A unit
that is cut off keeps what it had tested; its other tests get their second try too, where there is time. A test that
was listed and did not end is never silently left out: its part fails.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci import command
from ci.command import Ended
from ci.progress import Progress, read
from ci.told import FILE

MOST_AGAIN = 20  # if more than that failed, something is broken, and no second try would say anything new
AGAIN_S = 420.0  # pytest ends most tests after 300 s; one that is allowed more has no second try to its end
SHARE_AGAIN = 0.1  # or more than this part of the tests


@dataclass(frozen=True, slots=True)
class Unit:
    """One pytest process: a name for people, and its arguments.

    Attributes:
        always: of the arguments, those that each of its tests needs when it runs alone, too.
    """

    name: str
    arguments: tuple[str, ...]
    always: tuple[str, ...] = ()


@dataclass(slots=True)
class Part:
    """What came of a part.

    Attributes:
        outcomes: of each test by its last try: ``passed``, ``skipped`` or ``failed``.
        seconds: of each test, in its first try.
        units_s: how long each unit took, in its first try.
        flakes: tests that failed and passed alone.
        cut_off: tests, or units before their first test, that did not end in time.
        untested: tests that were listed and did not run, and units that did not begin.
        troubles: what else is wrong, in words.
        notes: what happened on the way, whether or not a second try made it good.
        left: processes that a unit had left running; they were ended.
    """

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    units_s: dict[str, float] = field(default_factory=dict)
    flakes: list[str] = field(default_factory=list)
    cut_off: list[str] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Tests that failed each time they were tried."""
        return [name for name, outcome in self.outcomes.items() if outcome == "failed"]

    @property
    def clean(self) -> bool:
        """Whether every test that was listed ended well."""
        return not (self.failed or self.cut_off or self.untested or self.troubles)


Run = Callable[[Sequence[str], float, Path], Ended]
"""Runs pytest with arguments, for at most that many seconds, telling into a file."""


def pytest_with_all_it_starts(arguments: Sequence[str], limit_s: float, told: Path) -> Ended:
    """The real one; what it prints goes to this process's stdout."""
    return command.run(
        [sys.executable, "-m", "pytest", "-p", "ci.told", *arguments], limit_s=limit_s, env={FILE: str(told)}
    )


def run_part(
    part: Part,
    units: Iterable[tuple[Unit, float]],
    *,
    until_s: float,
    tries: int,
    run: Run = pytest_with_all_it_starts,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run all units, one after the other, and put into ``part`` what comes of them, also when it is interrupted.

    Args:
        units: each with the seconds after which it is cut off.
        until_s: when the part must have ended, by ``clock``.
        tries: 2 for a second try, of what failed after its unit, and of what hung after all units.
    """
    began_s = clock()
    hung: list[str] = []
    always: dict[str, tuple[str, ...]] = {}
    try:
        for unit, limit_s in units:
            left_s = until_s - clock()
            if left_s <= 0:
                part.untested.append(unit.name)
                continue
            progress = _first(part, unit, min(limit_s, left_s), run)
            hung += progress.running
            again = [*progress.failed, *progress.untested]
            always |= dict.fromkeys([*again, *progress.running], unit.always)
            if tries > 1:
                _again(part, again, always, until_s, run, clock)
        if tries > 1:
            _again(part, hung, always, until_s, run, clock)
    finally:
        part.took_s = clock() - began_s


def _first(part: Part, unit: Unit, limit_s: float, run: Run) -> Progress:
    progress, ended = Progress(), None
    with tempfile.TemporaryDirectory(prefix="told-") as folder:
        told = Path(folder) / "told.jsonl"
        try:
            ended = run([*unit.always, *unit.arguments], limit_s, told)
        finally:
            progress = read(told)
            part.outcomes |= progress.outcomes
            part.seconds |= progress.seconds
            part.untested += progress.untested
            part.cut_off += progress.running
    part.units_s[unit.name] = ended.seconds
    part.left += ended.left
    unexplained = not (progress.failed or progress.running or progress.untested)
    if ended.code is None:
        part.notes.append(f"{unit.name} was cut off after {ended.seconds:.0f} s: {progress.in_words()}")
    elif ended.code not in (0, 1):
        part.notes.append(f"{unit.name} ended with exit code {ended.code}: {progress.in_words()}")
    if not progress.listed or (ended.code != 0 and unexplained):
        part.troubles.append(f"{unit.name} did not begin or end as it should: exit code {ended.code}")
    return progress


def _again(
    part: Part,
    tests: Sequence[str],
    always: Mapping[str, Sequence[str]],
    until_s: float,
    run: Run,
    clock: Callable[[], float],
) -> None:
    """Each of ``tests`` alone, with the arguments that it needs ``always``, if they are few."""
    if len(tests) > max(MOST_AGAIN, SHARE_AGAIN * len(part.outcomes)):
        part.troubles.append(f"{len(tests)} tests failed or did not end: too many for a second try")
        return
    for test in tests:
        left_s = until_s - clock()
        if left_s <= 0:
            return
        print(f"\nFAILED OR CUT OFF, AND TRIED AGAIN ALONE: {test}", flush=True)
        with tempfile.TemporaryDirectory(prefix="told-") as folder:
            told = Path(folder) / "told.jsonl"
            ended = run([*always[test], "-q", test], min(left_s, AGAIN_S), told)
            outcome = read(told).outcomes.get(test, "failed")
        if ended.code == 0 and outcome != "failed":
            if test not in part.untested:
                part.flakes.append(test)
            part.outcomes[test] = outcome
            part.cut_off = [name for name in part.cut_off if name != test]
            part.untested = [name for name in part.untested if name != test]
