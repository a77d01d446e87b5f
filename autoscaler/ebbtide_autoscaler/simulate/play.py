"""All runs of a simulation, side by side, with their progress."""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ebbtide_autoscaler.simulate.contenders import CONTENDERS
from ebbtide_autoscaler.simulate.file import SimulationFile
from ebbtide_autoscaler.simulate.report import Report, played
from ebbtide_autoscaler.simulate.scene import Inputs


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
    file: SimulationFile, inputs: Inputs, names: Sequence[str], seeds: int, processes: int
) -> tuple[Report, dict[str, Any]]:
    """Every contender on every seed; the report, and its figures.

    Raises:
        BadTrace: a scene cannot be, by its numbers.
    """
    report, began_s = Report.of(file, inputs, seeds), time.perf_counter()
    tasks = [(name, seed) for seed in range(seeds) for name in names]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    on = Console(file=sys.stderr)
    with (
        Progress(*columns, console=on, transient=True, disable=not on.is_terminal) as bar,
        ProcessPoolExecutor(min(processes, len(tasks)), mp_context=get_context("spawn")) as pool,
    ):
        line = bar.add_task("simulating", total=len(tasks))
        running = {pool.submit(played, file, inputs, name, seed): (name, seed) for name, seed in tasks}
        try:
            for done in as_completed(running):
                report.add(*running[done], done.result())
                bar.advance(line)
        finally:
            pool.shutdown(cancel_futures=True)
    return report, report.as_json(time.perf_counter() - began_s)
