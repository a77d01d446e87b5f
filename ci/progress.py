"""What a pytest has tested so far, read from what it told (`ci.told`). Pure but for reading the file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one pytest process.

    Attributes:
        listed: the tests that were to run.
        outcomes: of those that ended: ``passed``, ``skipped`` or ``failed``.
        seconds: how long each took.
        running: those that began and did not end: where the process was when it was cut off.
    """

    listed: frozenset[str] = frozenset()
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    running: tuple[str, ...] = ()

    @property
    def failed(self) -> list[str]:
        """Those that ended badly, in the order in which they did."""
        return [name for name, outcome in self.outcomes.items() if outcome == "failed"]

    @property
    def untested(self) -> list[str]:
        """Those that were listed and never ended, without the ones that were running."""
        return sorted(self.listed - self.outcomes.keys() - set(self.running))

    def count(self, outcome: str) -> int:
        """How many tests ended so."""
        return sum(one == outcome for one in self.outcomes.values())

    def in_words(self) -> str:
        """For one line."""
        words = [f"{self.count(one)} {one}" for one in ("passed", "failed", "skipped") if self.count(one)]
        words += [f"{len(self.running)} cut off"] * bool(self.running)
        words += [f"{len(self.untested)} not run"] * bool(self.untested)
        return ", ".join(words) or "no tests"


def read(path: Path) -> Progress:
    """From the file; nothing was tested where there is none. A last line that was cut off is left out."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        lines = []
    return parse(lines)


def parse(lines: Iterable[str]) -> Progress:
    """From its lines."""
    listed: set[str] = set()
    outcomes: dict[str, str] = {}
    seconds: dict[str, float] = {}
    running: dict[str, None] = {}
    for line in lines:
        told = json.loads(line)
        listed.update(told.get("ids", ()))
        if (name := told.get("start")) is not None:
            running[name] = None
        if (name := told.get("end")) is not None:
            running.pop(name, None)
            outcomes[name] = told["outcome"]
            seconds[name] = told["seconds"]
    return Progress(frozenset(listed), outcomes, seconds, tuple(running))
