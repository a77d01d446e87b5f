"""How a rank hears what the arbiter wants and says where it stands.

A gate never blocks and never raises: a dead arbiter only means that nothing new is heard (fail static). A production
gate sends the latest report again and again from a thread of its own; nothing hangs on one message.

Only rank 0's gate is asked for directives; the other ranks follow rank 0's word, so that a gang cannot fall apart
because two ranks heard different things.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ebbtide.client.messages import DesiredState, JobDirective, Lease, RankPhase, RankReport


class Gate(Protocol):
    """The two directions of one rank's talk with the arbiter."""

    def directive(self) -> JobDirective | None:
        """The latest directive known; None before the first one."""

    def report(self, report: RankReport) -> None:
        """Say where this rank stands; the newest report replaces older ones that were not sent yet."""

    def begin(self) -> DesiredState:
        """This rank is about to run its first step: RUN, unless it was told to leave before, and then never."""


class SilentGate:
    """A gate to nobody: for ranks that run without an arbiter."""

    def directive(self) -> JobDirective | None:
        """Nothing is ever wanted."""
        return None

    def report(self, report: RankReport) -> None:
        """Nobody listens."""

    def begin(self) -> DesiredState:
        """Nothing is ever wanted."""
        return DesiredState.RUN


@dataclass(frozen=True, slots=True)
class Away:
    """Park, then come back: after ``polls`` looks at the gate while parked, or once ``until`` says so."""

    polls: int = 1
    until: Callable[[RankReport], bool] | None = None
    then: DesiredState = DesiredState.RUN


class ScriptedGate:
    """Plays an arbiter with a plan: after so many finished steps, this is wanted. For tests and control runs."""

    def __init__(self, plan: Mapping[int, DesiredState | Away], *, lease: Lease) -> None:
        """``plan`` maps finished steps to what is wanted then; each entry is used once."""
        self._plan = dict(plan)
        self._lease = lease
        self._away: Away | None = None
        self._polls_left = 0
        self._latest = JobDirective(number=0, want=DesiredState.RUN, lease=lease)
        self.reports: list[RankReport] = []

    def directive(self) -> JobDirective | None:
        """The latest; while the gang is parked each look counts towards its return."""
        last = self.reports[-1] if self.reports else None
        if self._away is not None and last is not None and last.phase is RankPhase.PARKED:
            self._polls_left -= 1
            ready = self._away.until(last) if self._away.until is not None else self._polls_left <= 0
            if ready:
                want, self._away = self._away.then, None
                self._lease = replace(self._lease, epoch=self._lease.epoch + 1)
                self._say(want, self._lease if want is DesiredState.RUN else None)
        return self._latest

    def report(self, report: RankReport) -> None:
        """Take note, and issue what the plan has for the end of the step that begins now."""
        self.reports.append(report)
        entry = self._plan.pop(report.step + 1, None) if report.phase is RankPhase.RUNNING else None
        if isinstance(entry, Away):
            self._away, self._polls_left = entry, entry.polls
            self._say(DesiredState.PARK, None)
        elif entry is not None:
            self._say(entry, self._lease if entry is DesiredState.RUN else None)

    def begin(self) -> DesiredState:
        """The plan has nothing for the time before a step."""
        return DesiredState.RUN

    def _say(self, want: DesiredState, lease: Lease | None) -> None:
        self._latest = JobDirective(number=self._latest.number + 1, want=want, lease=lease)
