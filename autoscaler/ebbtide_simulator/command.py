"""``ebbtide simulate``: the policy and what teams do instead, on recorded traffic and jobs under a virtual clock."""

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebbtide.cli.terminal.completion_names import complete_files
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import leave_stdout, print_json, print_problems, print_table, warn
from ebbtide.config.errors import ConfigErrors
from ebbtide_simulator.outputs import STDOUT, check_outputs

if TYPE_CHECKING:
    from ebbtide_simulator.report.report import Report

Traced = tuple[Path, float, float]
"""A trace's file, its factor, and the day from which on it is read."""

MOST_NUMBERS = 2
EXTRA = ("matplotlib", "numba", "pyarrow")  # of the extra [simulate]: no other command needs them
KILLED = (
    "a process that played was killed, as is one for which there is no memory: --processes 1 plays one run at a time, "
    "and with --keep FOLDER no run that has ended is played again"
)


class _Trace(click.ParamType[Traced]):
    def __init__(self, name: str = "FILE[:factor[:from_day]]") -> None:
        """``name``: as help and errors show it."""
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Traced:
        """A file whose name ends in a colon and a number is given with a factor."""
        path, numbers = str(value), list[float]()
        while len(numbers) < MOST_NUMBERS and ":" in path:
            head, _, tail = path.rpartition(":")
            try:
                numbers.insert(0, float(tail))
            except ValueError:
                break
            path = head
        if not Path(path).exists() and (why := _misread(str(value))):
            self.fail(f"{why}: {self.name}", param, ctx)
        factor, from_day, *_ = [*numbers, *(1.0, 0.0)[len(numbers) :]]
        return Path(path), factor, from_day


def _misread(said: str) -> str:
    """Why a file that is there is not what was said; empty: none is there."""
    path, tails = said, list[str]()
    while path and not Path(path).exists():
        path, _, tail = path.rpartition(":")
        tails.insert(0, tail)
    no_number = next((tail for tail in tails if not _is_number(tail)), None)
    why = "more than two numbers follow it" if no_number is None else f"{no_number!r} is no number"
    return f"{path} is there, but {why}" if path else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("config", type=_FILE)
@click.option(
    "--serving",
    type=_Trace(),
    multiple=True,
    shell_complete=complete_files,
    help="Requests or rates; times the factor.",
)
@click.option(
    "--jobs",
    type=_Trace("FILE[:share[:from_day]]"),
    multiple=True,
    shell_complete=complete_files,
    help="Jobs, of which that share is kept.",
)
@click.option(
    "--ledger",
    type=_Trace("FOLDER[:factor[:from_day]]"),
    shell_complete=complete_files,
    help="A pool's recorded ledger instead, its demand times the factor.",
)
@click.option("--policies", default="all", show_default=True, help="Names with commas, as the table has them.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each.")
@click.option("--json", "json_path", type=_FILE, help="Write figures there; -: to stdout, instead of the table.")
@click.option("--report", "page_path", type=_FILE, help="Write a page with pictures there.")
@click.option("--frontier", is_flag=True, help="Play other settings of each policy too, on the first seed.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Finished runs stay there for later.")
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count() or 1, help="Runs side by side.")
def simulate(
    config: Path,
    serving: Sequence[Traced],
    jobs: Sequence[Traced],
    ledger: Traced | None,
    policies: str,
    seeds: int,
    json_path: Path | None,
    page_path: Path | None,
    frontier: bool,
    keep: Path | None,
    processes: int,
) -> None:
    """Play CONFIG's pool with recorded traffic and jobs, under our policy and under what teams do instead.

    The first --serving trace is given to the first endpoint of CONFIG, and so on. With --ledger CONFIG says what shall
    be other than it was: {} plays it again as it was. Equal seeds give equal results. With --keep a simulation that was
    broken off goes on where it was: runs that have ended are not played again by the same code on the same input.
    """
    _must_have_its_extra()
    # Here, since arrays and Parquet take half a second to import, for which every other command would wait.
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415

    from ebbtide_simulator import play  # noqa: PLC0415
    from ebbtide_simulator.scenes.given import load_inputs, load_ledger  # noqa: PLC0415
    from ebbtide_simulator.traffic.trace_files import BadTrace  # noqa: PLC0415

    check_outputs(json_path, page_path, keep, [config, *(path for path, *_ in (*serving, *jobs))])
    if ledger is not None and (serving or jobs):
        raise BadInput("--ledger has its own traffic and jobs: leave --serving and --jobs out")
    if ledger is None and not serving:
        raise BadInput("name traffic by --serving FILE, or a recorded pool by --ledger FOLDER")
    try:
        names = play.parse_policies(policies)
        file, inputs = load_inputs(config, serving, jobs) if ledger is None else load_ledger(config, *ledger)
        report, figures = play.play(file, inputs, names, seeds, processes, frontier=frontier, keep=keep, tell=warn)
    except ConfigErrors as error:
        print_problems(error.problems)
        raise BadInput(f"{config} describes no simulation: see above") from error
    except (BadTrace, play.UnknownPolicy) as error:  # any other error of a value is the simulator's own
        raise BadInput(str(error)) from error
    except BrokenProcessPool as error:
        raise CommandFailed(KILLED) from error
    _tell(report, figures, json_path, page_path)


def _must_have_its_extra() -> None:
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise CommandFailed(f"a simulation needs {', '.join(missing)}: pip install 'ebbtide[simulate]'")


def _tell(report: "Report", figures: dict[str, Any], json_path: Path | None, page_path: Path | None) -> None:
    """Files first, since whoever reads stdout may leave; then stdout. What cannot be is no reason to lose the rest.

    Raises:
        CommandFailed: something is not whole, or the simulator contradicts itself.
        BrokenPipeError: nothing else is wrong; click ends the command quietly then.
    """
    wrong, on_stdout = [], str(json_path) == STDOUT
    for option, path in (("--json", None if on_stdout else json_path), ("--report", page_path)):
        if path is None:
            continue
        try:
            path.write_text(json.dumps(figures, indent=1) + "\n" if option == "--json" else report.as_page())
        except OSError as error:
            wrong.append(_not_whole(f"{option} {path}", error))
    if figures["impossible"]:
        wrong.append("the simulator contradicts itself: " + "; ".join(figures["impossible"]))
    try:
        _print(report, figures if on_stdout else None)
    except OSError as error:
        gone = isinstance(error, BrokenPipeError)  # who reads has gone, and knows
        if gone and not wrong:
            raise
        leave_stdout()
        wrong += [] if gone else [_not_whole("stdout", error)]
    if wrong:
        raise CommandFailed("\n".join(wrong))


def _not_whole(what: str, error: OSError) -> str:
    return (
        f"{what} is not whole: {error.strerror or error}; make room or name another place (with --keep FOLDER nothing "
        "that has ended is played again)"
    )


def _print(report: "Report", figures: dict[str, Any] | None) -> None:
    """On stdout: the figures, or without them the tables."""
    if figures is not None:
        print_json(figures)
        return
    click.echo(report.title())
    for table in report.tables():
        print_table(table.columns, table.rows, title=f"\n{table.title}")
        if table.note:
            click.echo(table.note)
