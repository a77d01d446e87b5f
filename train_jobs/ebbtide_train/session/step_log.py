"""One line of JSON per finished step and rank: the evidence that no step was lost, repeated or changed.

``steps/rank<r>-<lease epoch>-<pid>.jsonl`` belongs to one process; each line goes out in one write, so that a killed
process leaves whole lines (a torn last line is skipped by the reader). ``gangs.jsonl`` has a line for each start of
a gang: from which step it went on, and how many finished steps it must run again.

Not guaranteed: lines of the last moments after a power failure; the log is not synced.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"rank(\d+)-(\d+)-(\d+)\.jsonl")
_TAIL_BYTES = 1 << 20  # more than any one line: ids of a global batch of 100 000 samples


@dataclass(frozen=True, slots=True)
class StepLine:
    """One finished step as one rank saw it."""

    step: int  # from 0
    rank: int
    world: int
    loss: str  # float.hex() of the mean over this rank's samples
    samples: tuple[int, ...]
    t: float  # seconds since 1970, when it was finished
    step_s: float


@dataclass(frozen=True, slots=True)
class GangLine:
    """One start of a gang."""

    lease_epoch: int
    world: int
    restored: int  # finished steps that it goes on from
    lost_steps: int  # finished steps of the gang before that must be run again
    t: float


class StepLog:
    """This process's file."""

    def __init__(self, run_dir: Path, *, rank: int, lease_epoch: int) -> None:
        folder = run_dir / "steps"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{rank}-{lease_epoch}-{os.getpid()}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, line: StepLine) -> None:
        """Write one line; on a full disk the step goes on and the line is missing."""
        os.write(self._fd, (json.dumps(asdict(line)) + "\n").encode())

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def note_gang(run_dir: Path, line: GangLine) -> None:
    """Record the start of a gang."""
    with (run_dir / "gangs.jsonl").open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def gang_lines(run_dir: Path) -> list[GangLine]:
    """All starts of gangs, oldest first."""
    path = run_dir / "gangs.jsonl"
    return [GangLine(**record) for record in _records(path.read_bytes())] if path.exists() else []


def step_lines(run_dir: Path) -> list[StepLine]:
    """Every step line of every process of this job, in no particular order."""
    lines = []
    for path in sorted((run_dir / "steps").glob("*.jsonl")):
        for record in _records(path.read_bytes()):
            lines.append(StepLine(**{**record, "samples": tuple(record["samples"])}))
    return lines


def finished_by_last_gang(run_dir: Path) -> int:
    """Finished steps as the newest gang's log has them: at least what it started from; 0 without any gang."""
    gangs = gang_lines(run_dir)
    if not gangs:
        return 0
    newest = max(gangs, key=lambda line: line.lease_epoch)
    finished = newest.restored
    for path in (run_dir / "steps").glob("*.jsonl"):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[2]) != newest.lease_epoch:
            continue
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            finished = max([finished, *(record["step"] + 1 for record in _records(file.read()))])
    return finished


def _records(raw: bytes) -> Iterator[dict[str, Any]]:
    for text in raw.splitlines():
        try:
            record = json.loads(text)
        except ValueError:  # the torn line of a killed process, or the cut first line of a tail
            continue
        if isinstance(record, dict):
            yield record
