"""``ebbtide demo --quick``: one tide on this machine, and a table of it."""

import tempfile
from pathlib import Path

import click

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_table
from ebbtide.system.interrupts import terminated_is_interrupted
from ebbtide_quickstart.quick_demo import DemoFailed, Tide, play

PROMISES = ("steps_lost", "steps_repeated", "double_occupancy_s")


@click.command()
@click.option("--quick", is_flag=True, help="One replica, one job, one park and resume: two to three minutes.")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="Where it works, a new folder; default: below TMPDIR."
)
@json_option
def demo(quick: bool, folder: Path | None, as_json: bool) -> None:
    """Show one tide on this machine: a request takes a job's slot, and the job goes on without losing a step.

    It brings up a small pool of its own and takes it down again. No GPU is needed.
    """
    if not quick:
        raise BadInput("give --quick; the long demo, with its proof and report, is `make demo` in a checkout")
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="ebbtide-demo-"))
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty: name a new folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with terminated_is_interrupted():
            tide = play(folder.resolve(), say=lambda line: click.echo(line, err=True))
    except DemoFailed as error:
        raise CommandFailed(f"{error}\nWhat it wrote is in {folder}") from error
    if as_json:
        print_json({"stages": [{"stage": words, "took_s": took_s} for words, took_s in tide.stages], **tide.figures})
    else:
        _show(tide)
    if any(tide.figures[name] for name in PROMISES):
        raise CommandFailed(f"a promise was broken, which is a bug of ours; what it wrote is in {folder}")


def _show(tide: Tide) -> None:
    rows: list[tuple[str, str]] = [(words, f"{took_s:.1f} s") for words, took_s in tide.stages]
    figures = tide.figures
    rows += [
        ("first token, since the command began", f"{figures['first_token_after_s']:.1f} s"),
        (f"steps lost by parking at step {figures['parked_at_step']}", str(figures["steps_lost"])),
        (f"steps repeated, of {figures['steps']}", str(figures["steps_repeated"])),
        ("seconds with two occupants on one slot", f"{figures['double_occupancy_s']:g}"),
        ("all of it", f"{figures['total_s']:.0f} s"),
    ]
    print_table(("what", "took"), rows)
    click.echo("Next: ebbtide init")
