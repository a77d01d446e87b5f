"""``python -m benchmarks.gpu.line --budget-s 560``: the whole line on the GPU of this machine, within its budget.

Plays in a process of its own, in phases; each that fails says why, and the next goes on. Before the budget is spent all
of it is ended, by pid. Prints a table last; writes benchmarks/results/gpu_line.json and one archive of logs.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from benchmarks.gpu.line.journal import Journal, State, Told
from benchmarks.gpu.line.logs import archive, modes
from benchmarks.gpu.line.outcome import bars_of, document, table
from benchmarks.gpu.line.phases import SHORT, names
from benchmarks.gpu.line.play import Spec, environment
from benchmarks.gpu.line.pool import log_folders
from benchmarks.gpu.line.script import NOT_ASKED_FOR
from benchmarks.rows import write
from evidence.family import adopt_orphans, end_descendants, wait_for
from evidence.provenance import RESULTS

END_S = 15.0  # before the budget is spent: to end some forty processes, and to pack their logs
LEAST_S = 60.0
DRY_RUN_S = 600.0
NO_GPU = "there is no GPU that torch can use: run this where there is one, or try --dry-run-cpu"


@click.command(help=__doc__)
@click.option("--budget-s", type=click.FloatRange(LEAST_S), default=560.0, show_default=True)
@click.option("--phases", "wanted", default="all", show_default=True, help="all, short, or names with commas")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path), help="instead of a random one")
@click.option("--dry-run-cpu", "dry", is_flag=True, help="one logical GPU, a tiny model: shows that it runs")
@click.option("--out", type=click.Path(path_type=Path), help="folder of the result and the logs")
@click.option("--work", type=click.Path(path_type=Path), help="folder for all else; it must not be there yet")
def main(budget_s: float, wanted: str, model: Path | None, dry: bool, out: Path | None, work: Path | None) -> None:
    """Play, end what was started, tell."""
    began_s = time.time()
    if not dry and not _has_gpu():
        raise click.ClickException(NO_GPU)
    if dry and click.get_current_context().get_parameter_source("budget_s") is click.core.ParameterSource.DEFAULT:
        budget_s = DRY_RUN_S
    spec = Spec(
        work=str(_made(work)),
        cpu=dry,
        until_s=began_s + budget_s - END_S,
        phases=_wanted(wanted),
        model=str(model.absolute()) if model else "",
    )
    cut_off = _play(spec)
    took_s = time.time() - began_s
    sys.exit(_tell(spec, out or (Path("out") if dry else RESULTS), took_s=took_s, cut_off=cut_off))


def _has_gpu() -> bool:
    """Asked in another process: a context of this one would stand on the GPU all the time."""
    asked = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", asked]).returncode == 0


def _made(work: Path | None) -> Path:
    if work is None:
        return Path(tempfile.mkdtemp(prefix="ebbline-", dir="/tmp"))  # short: Ray makes sockets below it
    try:
        work.mkdir(parents=True)
    except FileExistsError:
        raise click.ClickException(f"--work: {work} is there already; name a new folder") from None
    return work.absolute()


def _wanted(wanted: str) -> tuple[str, ...]:
    if wanted in ("all", "short"):
        return names() if wanted == "all" else SHORT
    found = tuple(filter(None, (one.strip() for one in wanted.split(","))))
    if unknown := [one for one in found if one not in names()]:
        raise click.UsageError(f"--phases: there is no {', '.join(unknown)}; there are: {', '.join(names())}")
    return found


def _play(spec: Spec) -> bool:
    """Gives whether it was cut off."""
    work = Path(spec.work)
    (work / "logs").mkdir(exist_ok=True)
    file = work / "spec.json"
    file.write_text(json.dumps(asdict(spec)))
    adopt_orphans()
    command = [sys.executable, "-m", "benchmarks.gpu.line.play", str(file)]
    child = subprocess.Popen(command, env={**os.environ, **environment(work)}, start_new_session=True)
    cut_off = True
    try:
        cut_off = wait_for(child.pid, spec.until_s - time.time()) is None
    except KeyboardInterrupt:
        click.echo("interrupted: ending what was started", err=True)
    if cut_off:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGABRT)  # faulthandler shows where it was
    end_descendants(grace_s=2.0)
    return cut_off


def _tell(spec: Spec, out: Path, *, took_s: float, cut_off: bool) -> int:
    work = Path(spec.work)
    journal = Journal(work / "journal.jsonl")
    phases = {name: _ended(told, cut_off=cut_off) for name, told in journal.phases().items()}
    folders = [*log_folders(spec.setting(), work / "home"), work]
    found = document(phases, journal.samples(), modes(folders), dry=spec.cpu, took_s=took_s, cut_off=cut_off)
    path = write(found, out)
    packed = out / f"{found['name']}_logs.tar.gz"
    count = archive(folders, packed)
    for told in phases.values():
        for log, end in told.tails.items():
            print(f"--- {told.phase}: {log}\n{end}", flush=True)
    console = Console()
    console.print(table(phases))
    bars = bars_of(phases, dry=spec.cpu)
    for bar in bars:
        met = "not measured" if bar.value is None else "met" if bar.met else "MISSED"
        console.print(f"{met} {bar.bar}: {'-' if bar.value is None else bar.value} (goal {bar.goal})")
    console.print(f"{path}; {count} logs in {packed}; {took_s:.0f} s")
    failed = [name for name, told in phases.items() if told.state is State.FAILED]
    skipped = [name for name, told in phases.items() if told.state is State.SKIPPED and told.why != NOT_ASKED_FOR]
    for what, which in (("failed", failed), ("not played", skipped)):
        if which:
            console.print(f"{what}: {', '.join(which)}", style="bold red")
    return 1 if failed or skipped or cut_off or not phases else 0


def _ended(told: Told, *, cut_off: bool) -> Told:
    """A phase that was under way when all was ended has failed."""
    if told.state is State.BEGUN:
        told.state, told.why = State.FAILED, "the budget was spent" if cut_off else "its process ended"
    return told


if __name__ == "__main__":
    main()
