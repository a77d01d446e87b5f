"""All runs of a simulation, side by side, with their progress."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ebbtide.pool.plural import many
from ebbtide.system.process import exit_with_parent, started_ticks
from ebbtide_autoscaler.process.gc_tuning import collect_seldom
from ebbtide_simulator.played.kept import Kept
from ebbtide_simulator.played.one_run import Played, play_one
from ebbtide_simulator.policies.contenders import CONTENDERS
from ebbtide_simulator.policies.knobs import Knobs
from ebbtide_simulator.report.frontier import settings_of
from ebbtide_simulator.report.report import Report
from ebbtide_simulator.scenes.casting import File, Given, scene

Task = tuple[str, int, Knobs | None]
"""A contender, a seed, and knobs other than those at which it is compared."""


class UnknownPolicy(ValueError):
    """There is none of that name."""


def parse_policies(policies: str) -> list[str]:
    """The contenders of a list with commas; ``all`` is everybody.

    Raises:
        UnknownPolicy: there is none of that name.
    """
    said = [name.strip() for name in policies.split(",")]
    names = [name for one in said for name in (CONTENDERS if one == "all" else (one,))]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise UnknownPolicy(
            f"no policy {', '.join(name or repr(name) for name in unknown)}: there are {', '.join(CONTENDERS)}, and all"
        )
    return list(dict.fromkeys(names))


def play(
    file: File,
    inputs: Given,
    names: Sequence[str],
    seeds: int,
    processes: int,
    *,
    frontier: bool = False,
    keep: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[Report, dict[str, Any]]:
    """Every contender on every seed; the report, and its figures.

    Args:
        file: the pool.
        inputs: traces, or a recorded ledger.
        names: of the contenders.
        seeds: so many worlds, from 0 on.
        processes: at once.
        frontier: the first seed with other settings of each contender too.
        keep: a folder for runs that have ended, which is there; those in it are not played again.
        tell: is told what is left out, before anything runs, and what was not played or kept.

    Raises:
        BadTrace: a scene cannot be, by its numbers; nothing has run then.
        BrokenProcessPool: a process that played was killed.
    """
    report, began_s = Report.of(file, inputs, seeds), time.perf_counter()
    kept, tell = None if keep is None else Kept(keep, file, inputs), tell or _nobody
    for remark in report.inputs["remarks"]:
        tell(remark)
    tasks: list[Task] = [(name, seed, None) for seed in range(seeds) for name in names]
    if frontier:
        tasks += [(name, 0, one) for name in names for one in settings_of(name, report.inputs["slots"])]
    left = [task for task in tasks if not _found(kept, report, task)]
    if len(left) < len(tasks):
        tell(f"{keep}: {many(len(tasks) - len(left), 'run')} of {len(tasks)} had ended before")
    with (
        _progress() as bar,
        ProcessPoolExecutor(
            max(1, min(processes, len(left))),
            mp_context=get_context("spawn"),
            initializer=partial(_begin, os.getpid(), started_ticks(os.getpid()) or 0),
        ) as pool,
        _broken_off_together(),
    ):
        line = bar.add_task("simulating", total=len(left))
        try:
            for checked in [pool.submit(check, file, inputs, seed) for seed in range(1, seeds) if left]:
                checked.result()
            running = {pool.submit(play_one, file, inputs, *task): task for task in left}
            for done in as_completed(running):
                _add(report, running[done], done.result())
                _keep(kept, running[done], done.result(), tell)
                bar.advance(line)
        except KeyboardInterrupt:
            tell(_broken_off(len(tasks) - len(left) + int(bar.tasks[line].completed), len(tasks), keep))
            raise
    return report, report.as_json(time.perf_counter() - began_s)


def _broken_off(ended: int, of: int, keep: Path | None) -> str:
    there = f"they are in {keep}, and the same command goes on there" if keep else "--keep FOLDER keeps them"
    return f"broken off when {ended} of {many(of, 'run')} had ended: {there}"


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    on = Console(file=sys.stderr)
    return Progress(*columns, console=on, transient=True, disable=not on.is_terminal)


@contextmanager
def _broken_off_together() -> Iterator[None]:
    """Whatever ends this early ends those that play: a run may take minutes, and nobody waits for it any more."""
    others, whole = active_children(), False
    try:
        yield
        whole = True
    finally:
        for child in () if whole else set(active_children()).difference(others):
            child.kill()


def _begin(parent: int, started: int) -> None:
    """A process that plays: it goes with the one that asked for it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the one that asked ends the others
    exit_with_parent(parent, started)
    collect_seldom()


def _found(kept: Kept | None, report: Report, task: Task) -> bool:
    """Whether this run has ended before; it is in the report then."""
    found = None if kept is None else kept.find(*task)
    if found is not None:
        _add(report, task, found)
    return found is not None


def _add(report: Report, task: Task, found: Played) -> None:
    name, seed, knobs = task
    if knobs is None:
        report.add(name, seed, found)
    else:
        report.add_point(name, knobs, found)


def _keep(kept: Kept | None, task: Task, found: Played, tell: Callable[[str], None]) -> None:
    """What cannot be kept is played again one day: no reason to lose the rest."""
    try:
        if kept is not None:
            kept.keep(*task, found)
    except OSError as error:
        tell(f"{task[0]}, seed {task[1]}, is not kept: {error}")


def check(file: File, inputs: Given, seed: int) -> None:
    """Raises BadTrace: what this seed draws cannot be, though another seed's may."""
    scene(file, inputs, seed)


def _nobody(remark: str) -> None:
    pass
