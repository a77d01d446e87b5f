"""One line of JSON per finished step and rank: the evidence that no step was lost, repeated or changed.

``steps/rank<r>-<lease epoch>-<pid>-<n>.jsonl`` belongs to one process; each line goes out in one write, so that a
killed process leaves whole lines (a torn last line is skipped by the reader). ``gangs.jsonl`` has a line for each start
of a gang: from which step it went on, how many finished steps it must run again, and under which settings of NCCL its
sums were made.

Bounds: a process keeps its two newest files of ``SEGMENT_BYTES``; at each start of a gang the oldest files of earlier
gangs go until ``KEPT_BYTES`` are left, and of ``gangs.jsonl`` the oldest half beyond ``GANGS_BYTES``. So the log of a
job takes at most ``KEPT_BYTES + 2 * world * SEGMENT_BYTES + GANGS_BYTES``; 64 MiB are some 300,000 steps of one rank.

Not guaranteed: lines of the last moments after a power failure (the log is not synced), and lines of steps that ended
while the disk was full, or the last ones before a process was killed while the disk hung: training never fails, nor
waits, for want of evidence.
"""

import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 8 << 20
KEPT_BYTES = 64 << 20
LAST_GANGS = 4  # a few, so that a start asks few nodes
GANGS_BYTES = 1 << 20  # some 10,000 starts
_NAME = re.compile(r"rank(\d+)-(\d+)-(\d+)-(\d+)\.jsonl")
_TAIL_BYTES = 1 << 20  # more than any one line: ids of a global batch of 100 000 samples
_AGAIN_S = 5.0  # a disk that was full is not asked at every step
_PATIENCE_S = 0.5  # a line takes microseconds, on a network filesystem that is busy some milliseconds
_MOST_WAITING = 10_000  # lines of some 300 bytes, while the disk hangs: a quarter of an hour at ten steps a second

_logger = logging.getLogger(__name__)


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
    nodes: tuple[str, ...] = ()  # by rank; empty: it did not say
    rescued: int = 0  # the step that the gang before had parked and not published, if this one has saved it
    nccl: Mapping[str, str] = field(default_factory=dict)  # as rank 0's NCCL has read them; empty: it was not used


class StepLog:
    """This process's files. A thread writes them: a shared directory that hangs may hold up no step.

    While the directory answers, a step waits for its line, so that a process that is killed leaves one for each step
    that it has finished. A step waits for at most ``_PATIENCE_S``, and not at all while lines of earlier steps wait.
    """

    def __init__(self, run_dir: Path, *, rank: int, lease_epoch: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = run_dir / "steps"
        self._stem = f"rank{rank}-{lease_epoch}-{os.getpid()}"
        self._segment_bytes = segment_bytes
        self._number = 0
        self._size = 0
        self._fd = -1
        self._not_before_s = 0.0
        self._torn = False
        self.missed = 0  # lines that could not be written
        self._lines: deque[bytes] = deque()  # that wait; the first one may be under way
        self._changed = threading.Condition()
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="step-log", daemon=True)
        self._writer.start()

    def append(self, line: StepLine) -> None:
        """Write one line; on a full or read-only disk, or one that hangs, the step goes on.

        A line that could not be written is missing; those that a disk which hangs keeps waiting come later.
        """
        raw = (json.dumps({name: getattr(line, name) for name in StepLine.__slots__}) + "\n").encode()
        with self._changed:
            if len(self._lines) >= _MOST_WAITING or self._closed:
                self.missed += 1
                return
            caught_up = not self._lines
            self._lines.append(raw)
            self._changed.notify_all()
            if caught_up:
                self._changed.wait_for(lambda: not self._lines, _PATIENCE_S)

    def close(self) -> None:
        """Write what waits, but not for long, and close the file; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._writer.join(_PATIENCE_S)

    def _write(self) -> None:
        self._try(self._open)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closed)
                if not self._lines:
                    break
                raw = self._lines[0]
            written = time.monotonic() >= self._not_before_s and self._try(partial(self._append, raw))
            with self._changed:
                self.missed += not written
                self._lines.popleft()
                self._changed.notify_all()
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            _logger.warning("lines of the step log in %s are missing: %s", self._folder, error)
            self._not_before_s = time.monotonic() + _AGAIN_S
            self._let_go()  # a filesystem that turned read-only may have to be unmounted before it can be mended
            return False
        return True

    def _append(self, raw: bytes) -> None:
        if self._fd < 0:
            self._open()
        elif self._size >= self._segment_bytes:
            self._let_go()
            self._number, self._torn = self._number + 1, False
            self._open()
        if self._torn:
            raw = b"\n" + raw
        written = os.write(self._fd, raw)
        self._size += written
        self._torn = written < len(raw)  # the disk filled up within the line
        if self._torn:
            raise OSError("no space left for a whole line")

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path(self._number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._path(self._number - 2).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}-{number}.jsonl"


def note_gang(run_dir: Path, line: GangLine, *, kept_bytes: int = KEPT_BYTES, gangs_bytes: int = GANGS_BYTES) -> None:
    """Record the start of a gang, and let go of what is beyond the bounds. A disk that refuses is only logged."""
    try:
        path = run_dir / "gangs.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        if path.stat().st_size > gangs_bytes:
            _drop_oldest_half(path)
        _drop_oldest_files(run_dir / "steps", kept_bytes, present=line.lease_epoch)
    except OSError as error:
        _logger.warning("the start of a gang is not on record in %s: %s", run_dir, error)


def gang_lines(run_dir: Path) -> list[GangLine]:
    """All starts of gangs that are still on record, oldest first."""
    path = run_dir / "gangs.jsonl"
    if not path.exists():
        return []
    records = _records(path.read_bytes())
    return [GangLine(**{**record, "nodes": tuple(record.get("nodes", ()))}) for record in records]


def last_nodes(run_dir: Path, *, also: str) -> list[str]:
    """The nodes of the last gangs of a job, the newest first, and ``also``; each once.

    Of more than one gang, since one may die before it has freed what the one before it left.
    """
    try:
        lines = gang_lines(run_dir)[-LAST_GANGS:]
    except OSError as error:
        _logger.warning("on which nodes the last gang was is not known: %s", error)
        lines = []
    return list(dict.fromkeys([node for line in reversed(lines) for node in line.nodes] + [also]))


def step_lines(run_dir: Path) -> list[StepLine]:
    """Every step line of every process of this job, in no particular order."""
    lines = []
    for path in sorted((run_dir / "steps").glob("[!.]*.jsonl")):
        for record in _records(path.read_bytes()):
            lines.append(StepLine(**{**record, "samples": tuple(record["samples"])}))
    return lines


def finished_by_last_gang(run_dir: Path) -> int:
    """Finished steps as the newest gang's log has them: at least what it started from; 0 without any gang."""
    gangs = gang_lines(run_dir)
    if not gangs:
        return 0
    newest = gangs[-1]  # by their order: lease epochs begin anew with a new ledger
    finished = newest.restored
    for path in (run_dir / "steps").glob("*.jsonl"):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[2]) != newest.lease_epoch:
            continue
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            finished = max([finished, *(record["step"] + 1 for record in _records(file.read()))])
    return finished


def _drop_oldest_files(folder: Path, kept_bytes: int, *, present: int) -> None:
    files = []
    for path in folder.glob("*.jsonl"):
        match = _NAME.fullmatch(path.name)
        if match is not None and int(match[2]) != present:
            files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    for _, size, path in sorted(files, reverse=True):
        kept_bytes -= size
        if kept_bytes < 0:
            path.unlink(missing_ok=True)


def _drop_oldest_half(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.write_bytes(b"".join(lines[len(lines) // 2 :]))
    draft.rename(path)


def _records(raw: bytes) -> Iterator[dict[str, Any]]:
    for text in raw.splitlines():
        try:
            record = json.loads(text)
        except ValueError:  # the torn line of a killed process, or the cut first line of a tail
            continue
        if isinstance(record, dict):
            yield record
