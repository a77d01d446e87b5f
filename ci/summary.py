"""What a run says at its end: a line for each part, then everything that went wrong, by name. Pure but for the file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ci.part import Part


@dataclass(slots=True)
class Result:
    """Of a whole run.

    Attributes:
        parts: those that ran, in their order.
        not_begun: hunts for which there was no time.
        slowness: how many times longer than usual the parts took.
        interrupted: the run was ended from outside.
    """

    commit: str
    budget_min: float
    hardware: str
    set_up_s: float = 0.0
    parts: list[Part] = field(default_factory=list)
    not_begun: list[str] = field(default_factory=list)
    slowness: float = 1.0
    took_s: float = 0.0
    interrupted: bool = False

    def begin(self, name: str) -> Part:
        """A part that begins now; what comes of it is put into it as it comes."""
        self.parts.append(Part(name))
        return self.parts[-1]

    @property
    def clean(self) -> bool:
        """Whether everything that ran held, and no process was left by accident."""
        return not self.interrupted and all(part.clean for part in self.parts)

    def count(self, outcome: str) -> int:
        """How many tests of all parts ended so."""
        return sum(one == outcome for part in self.parts for one in part.outcomes.values())


def lines(result: Result) -> Iterator[str]:
    """For people; the last line is the one that counts."""
    yield f"ci: commit {result.commit}, {result.hardware}, budget {result.budget_min:g} min"
    yield f"  {'part':<10}{'min':>6}{'passed':>8}{'failed':>8}{'skipped':>9}{'flaky':>7}{'cut off':>9}{'not run':>9}"
    yield f"  {'set-up':<10}{result.set_up_s / 60:>6.1f}"
    for part in result.parts:
        counts = [sum(one == outcome for one in part.outcomes.values()) for outcome in ("passed", "failed", "skipped")]
        rest = [len(part.flakes), len(part.cut_off), len(part.untested)]
        columns = [f"{count:>{width}}" for count, width in zip([*counts, *rest], (8, 8, 9, 7, 9, 9), strict=True)]
        yield f"  {part.name:<10}{part.took_s / 60:>6.1f}{''.join(columns)}"
    yield f"  {'all':<10}{result.took_s / 60:>6.1f}   {result.slowness:.2f} times as slow as usual"
    for part in result.parts:
        yield from (f"{part.name}: {note}" for note in part.notes)
        yield from (f"{part.name}: ended what was left running: {process}" for process in part.left)
        yield from (f"{part.name}: flaky (failed, then passed alone): {test}" for test in part.flakes)
        yield from (f"FAILED in {part.name}: {trouble}" for trouble in part.troubles)
        yield from (f"FAILED in {part.name}: {test}" for test in part.failed)
        yield from (f"FAILED in {part.name}: cut off: {test}" for test in part.cut_off)
        yield from _few([f"FAILED in {part.name}: not run: {test}" for test in part.untested])
    yield from (f"hunt not run, no time was left: {hunt}" for hunt in result.not_begun)
    if result.interrupted:
        yield "FAILED: the run was interrupted"
    failed = sum(len(part.failed) + len(part.cut_off) + len(part.troubles) for part in result.parts)
    yield f"{result.count('passed')} passed, {failed} failed, {result.count('skipped')} skipped"


def _few(found: Sequence[str], most: int = 30) -> Iterator[str]:
    yield from found[:most]
    if len(found) > most:
        yield f"  and {len(found) - most} more; all are in out/ci/summary.json"


def write(result: Result, path: Path) -> None:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = asdict(result) | {"clean": result.clean}
    path.write_text(json.dumps(found, indent=1) + "\n")
