"""Plays phases in their order within a budget: what fails is told with its reason, and the next goes on."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.line.journal import Journal, State, Told

NOT_ASKED_FOR = "it was not asked for"


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the script.

    Attributes:
        play: does it; gives its figures. What it raises is why it failed.
        needs: phases without which it cannot be played.
        least_s: with less time left, beside what it must leave, it is not begun.
        leave_s: it must leave so much to later phases.
    """

    name: str
    play: Callable[[], Mapping[str, Any]]
    needs: tuple[str, ...] = ()
    least_s: float = 10.0
    leave_s: float = 0.0


class Budget:
    """The time of a phase: until ``until_s`` (seconds since 1970), less what the phase under way must leave."""

    def __init__(self, until_s: float) -> None:
        self.leave_s = 0.0
        self._until_s = until_s

    def left_s(self) -> float:
        """Seconds that are left to the phase under way."""
        return self._until_s - time.time() - self.leave_s


class PartlyFailed(Exception):
    """A phase failed, and has figures all the same."""

    def __init__(self, why: str, figures: Mapping[str, Any]) -> None:
        super().__init__(why)
        self.figures = dict(figures)


def play_all(
    phases: Sequence[Phase],
    journal: Journal,
    *,
    wanted: Sequence[str],
    budget: Budget,
    tails: Callable[[], Mapping[str, str]],
    say: Callable[[str], None],
) -> None:
    """Play those that are wanted, and those that they need.

    Args:
        budget: of all of them; what it leaves is set anew for each.
        tails: ends of the logs that matter, for a phase that failed.
    """
    names, stood = with_needs(phases, wanted), dict[str, State]()
    for phase in phases:
        budget.leave_s = phase.leave_s
        why = _why_skipped(phase, names, stood, budget.left_s())
        if why:
            stood[phase.name] = State.SKIPPED
            journal.tell(Told(phase.name, State.SKIPPED, why=why))
            say(f"{phase.name}: skipped: {why}")
            continue
        journal.tell(Told(phase.name, State.BEGUN))
        say(f"{phase.name}: begins, {budget.left_s():.0f} s left")
        told = _play(phase, tails)
        stood[phase.name] = told.state
        journal.tell(told)
        say(f"{phase.name}: {told.state} after {told.seconds:.1f} s{f': {told.why}' if told.why else ''}")


def with_needs(phases: Sequence[Phase], wanted: Sequence[str]) -> set[str]:
    """The names of those that are wanted and of all that they need."""
    needs, names = {phase.name: phase.needs for phase in phases}, set[str]()
    open_ = list(wanted)
    while open_:
        name = open_.pop()
        if name not in names:
            names.add(name)
            open_ += needs[name]
    return names


def _why_skipped(phase: Phase, names: set[str], stood: Mapping[str, State], left_s: float) -> str:
    if phase.name not in names:
        return NOT_ASKED_FOR
    if lacking := [name for name in phase.needs if stood.get(name) is not State.DONE]:
        return f"it needs {', '.join(lacking)}"
    if left_s < phase.least_s:
        return f"{left_s:.0f} s are left, it needs {phase.least_s:.0f}"
    return ""


def _play(phase: Phase, tails: Callable[[], Mapping[str, str]]) -> Told:
    began_s = time.monotonic()
    try:
        figures = dict(phase.play())
    except Exception as error:  # noqa: BLE001 - the next phase may show what this one could not
        figures = error.figures if isinstance(error, PartlyFailed) else {}
        traceback.print_exc()
        return Told(
            phase.name, State.FAILED, time.monotonic() - began_s, figures, f"{error}" or repr(error), dict(tails())
        )
    return Told(phase.name, State.DONE, time.monotonic() - began_s, figures)
