"""All runs of a simulation, side by side, with their progress."""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ebbtide_autoscaler.collecting import collect_seldom
from ebbtide_autoscaler.simulate.casting import File, Given, scene
from ebbtide_autoscaler.simulate.contenders import CONTENDERS
from ebbtide_autoscaler.simulate.frontier import turns
from ebbtide_autoscaler.simulate.knobs import Knobs
from ebbtide_autoscaler.simulate.report import Report, played


def chosen(policies: str) -> list[str]:
    """The contenders of a list with commas, or all.

    Raises:
        ValueError: there is none of that name.
    """
    names = list(CONTENDERS) if policies == "all" else [name.strip() for name in policies.split(",")]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise ValueError(f"no policy {', '.join(unknown)}: there are {', '.join(CONTENDERS)}")
    return list(dict.fromkeys(names))


def play(
    file: File,
    inputs: Given,
    names: Sequence[str],
    seeds: int,
    processes: int,
    *,
    frontier: bool = False,
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
        tell: is told what is left out, before anything runs.

    Raises:
        BadTrace: a scene cannot be, by its numbers; nothing has run then.
    """
    report, began_s = Report.of(file, inputs, seeds), time.perf_counter()
    for remark in report.inputs["remarks"]:
        (tell or _nobody)(remark)
    tasks: list[tuple[str, int, Knobs | None]] = [(name, seed, None) for seed in range(seeds) for name in names]
    if frontier:
        tasks += [(name, 0, one) for name in names for one in turns(name, report.inputs["slots"])]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    on = Console(file=sys.stderr)
    with (
        Progress(*columns, console=on, transient=True, disable=not on.is_terminal) as bar,
        ProcessPoolExecutor(
            min(processes, len(tasks)), mp_context=get_context("spawn"), initializer=collect_seldom
        ) as pool,
    ):
        line = bar.add_task("simulating", total=len(tasks))
        try:
            for checked in [pool.submit(check, file, inputs, seed) for seed in range(1, seeds)]:
                checked.result()
            running = {pool.submit(played, file, inputs, *task): task for task in tasks}
            for done in as_completed(running):
                name, seed, knobs = running[done]
                if knobs is None:
                    report.add(name, seed, done.result())
                else:
                    report.turn(name, knobs, done.result())
                bar.advance(line)
        finally:
            pool.shutdown(cancel_futures=True)
    return report, report.as_json(time.perf_counter() - began_s)


def check(file: File, inputs: Given, seed: int) -> None:
    """Raises BadTrace: what this seed draws cannot be, though another seed's may."""
    scene(file, inputs, seed)


def _nobody(remark: str) -> None:
    pass
