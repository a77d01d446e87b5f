"""One size of state: every contender in its own processes, round after round, in turning order."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.bulk import fio
from benchmarks.bulk.outcome import drop_cached
from benchmarks.preempt import image
from benchmarks.preempt.events import Event, Story, line, spans
from benchmarks.preempt.savers import SAVERS
from benchmarks.progress import Progress

OURS, RESTART, CRIU, EVICTION = "park in place", "stop and restart", "CRIU image", "eviction alone"
CHILD_S = 600.0
# Tensors in huge pages, as a session has them (TrainingSession.open): torch reads it at its first allocation.
ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1", "OMP_NUM_THREADS": "1"}
Contender = Callable[[Path], Story]


@dataclass(slots=True)
class Series:
    """One contender over all rounds."""

    stories: list[Story] = field(default_factory=list)
    failed: str = ""

    def spans(self, name: str) -> list[float]:
        """Of all rounds, in seconds; empty if it has no such span."""
        return [found[name] for story in self.stories if name in (found := spans(story))]

    def figures(self, name: str) -> list[float]:
        """Of all rounds."""
        return [value for story in self.stories for value in story.figures.get(name, ())]


@dataclass(slots=True)
class Contest:
    """All contenders of one size.

    Attributes:
        ceilings: of the storage, by fio, one for each round; empty where there is no fio.
    """

    series: dict[str, Series]
    size_bytes: int
    ceilings: list[fio.Ceiling] = field(default_factory=list)


def contenders(size_bytes: int, criu: Path | None) -> dict[str, Contender]:
    """By name."""
    found: dict[str, Contender] = {
        OURS: partial(_alone, "park", size_bytes),
        EVICTION: partial(_alone, "evict", size_bytes),
        RESTART: partial(_restarted, "stop", "start again", size_bytes),
    }
    for name in SAVERS:
        found[after_kill(name)] = partial(_restarted, f"{name}: save", f"{name}: load", size_bytes)
    if criu is not None:
        found[CRIU] = lambda folder: image.dump_and_restore(criu, folder, size_bytes, _environment(), drop_cached)
    return found


def after_kill(saver: str) -> str:
    """What a contender is called that saves, dies and starts again."""
    return f"{saver}, kill, restart"


def run(folder: Path, size_bytes: int, rounds: int, criu: Path | None, *, huge: bool = False) -> Contest:
    """Let all run; who fails once is out, and the reason stands in the result. ``huge``: fio's buffers can be."""
    everyone = contenders(size_bytes, criu)
    names = list(everyone)
    found = Contest({name: Series() for name in names}, size_bytes)
    reference = _alone("undisturbed", size_bytes, _fresh(folder)).loss
    progress = Progress("turn", [1.0] * rounds * len(names))
    for number in range(rounds):
        if not fio.missing():
            found.ceilings.append(fio.write(folder, size_bytes, huge=huge))
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            print(progress.begins(f"round {number + 1}, {name}"), flush=True)
            print(progress.ended(_take_turn(name, found.series[name], everyone[name], folder, reference)), flush=True)
    return found


def _take_turn(name: str, series: Series, contender: Contender, folder: Path, reference: str) -> str:
    """Runs it; how that went, in words."""
    if series.failed:
        return "out"
    try:
        story = contender(_fresh(folder))
        if story.loss != reference and name != EVICTION:  # that one takes no step after
            raise RuntimeError(
                f"the loss after it came back is {story.loss or 'not told'}, undisturbed it is {reference}"
            )
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        series.failed = str(error)[:300]
        return f"out: {series.failed}"
    series.stories.append(story)
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spans(story).items()) or "measured"


def _fresh(folder: Path) -> Path:
    place = folder / "turn"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.sync()  # else the next one waits for what the last one wrote
    return place


def _alone(role: str, size_bytes: int, folder: Path) -> Story:
    """A contender that stays in one process."""
    return Story.of(_child(role, size_bytes, folder))


def _restarted(leaving: str, coming: str, size_bytes: int, folder: Path) -> Story:
    """A contender of two processes: the first leaves its slot at its end, if not before.

    In between the page cache forgets what was saved: while a job is away its slot is somebody else's, who loads
    weights, and so is the cache.
    """
    lines = _child(leaving, size_bytes, folder)
    lines.append(line(Event.FREE))
    drop_cached([path for path in folder.rglob("*") if path.is_file()])
    lines.append(line(Event.ASKED))
    return Story.of(lines + _child(coming, size_bytes, folder))


def _child(role: str, size_bytes: int, folder: Path) -> list[str]:
    """What it told until its end.

    Raises:
        RuntimeError: it did not end well.
    """
    command = [sys.executable, "-m", "benchmarks.preempt.child", role, str(folder), str(size_bytes)]
    with (folder / "errors").open("w") as errors:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=CHILD_S,
            env=_environment(),
            check=False,
        )
    if done.returncode:
        told = (folder / "errors").read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"{role} ended with {done.returncode}: {told[-1][:250] if told else 'it wrote nothing'}")
    return done.stdout.splitlines()


def _environment() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT}
