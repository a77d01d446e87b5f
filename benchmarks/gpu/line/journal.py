"""What the line has done so far, a JSON line for each thing: written by the process that plays, read by its parent.

The parent makes the result of whatever stands there, so a line that is cut off keeps what it has.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class State(StrEnum):
    """Of a phase."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # what it needs failed, it was not asked for, or there is no time for it


@dataclass(slots=True)
class Told:
    """Of one phase.

    Attributes:
        figures: name -> value; the unit is the end of the name (``_s``, ``_mb``, ``_bytes``).
        why: of one that failed or was skipped.
        tails: of one that failed: the ends of the logs that matter, by path.
    """

    phase: str
    state: State
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    tails: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Journal:
    """The file."""

    path: Path

    def tell(self, told: Told) -> None:
        """Add how a phase stands."""
        self._add({"phase": told.phase, "state": told.state} | _rest(told))

    def sample(self, gpu_mb: float, pids: Mapping[int, float]) -> None:
        """Add the GPU's memory, in all and by process."""
        self._add(
            {"at_s": round(time.time(), 2), "gpu_mb": round(gpu_mb, 1), "pids": {str(p): m for p, m in pids.items()}}
        )

    def _add(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, default=str) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())  # in one piece: two threads write
        finally:
            os.close(descriptor)

    def phases(self) -> dict[str, Told]:
        """The last that was told of each phase, in their order."""
        found: dict[str, Told] = {}
        for line in self._lines():
            if "phase" in line:
                found[line["phase"]] = Told(**{**line, "state": State(line["state"])})
        return found

    def samples(self) -> list[dict[str, Any]]:
        """The GPU's memory over time."""
        return [line for line in self._lines() if "gpu_mb" in line]

    def _lines(self) -> Iterator[dict[str, Any]]:
        for text in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                yield json.loads(text)
            except ValueError:
                continue  # the last one of a process that was killed


def _rest(told: Told) -> dict[str, Any]:
    rest = {"seconds": round(told.seconds, 2), "figures": told.figures, "why": told.why, "tails": told.tails}
    return {name: value for name, value in rest.items() if value}
