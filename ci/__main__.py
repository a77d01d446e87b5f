"""``python -m ci``: what ``.ci/run`` and the Makefile start."""

import json
import os
import sys
import time
from collections.abc import Callable

import click

from ci import parts, usual
from ci import run as ci
from ci.summary import Result

DEFAULT_MIN = 70.0
ONE_PART_MIN = 24 * 60.0

TRIES = click.option(
    "--tries", type=click.IntRange(1, 2), default=1, show_default=True, help="2: what fails runs again alone."
)


@click.group()
def main() -> None:
    """Run the checks and tests of the repository within a budget of time."""


@main.command()
@click.option(
    "--minutes", type=float, default=DEFAULT_MIN, envvar="CI_MINUTES", show_default=True, help="For all of it."
)
@click.option(
    "--began-s", type=float, default=None, envvar="CI_BEGAN_S", help="When set-up began, in seconds since 1970."
)
@TRIES
def run(minutes: float, began_s: float | None, tries: int) -> None:
    """Check, test, clusters, then as many hunts as there is time for."""
    began_s = time.time() if began_s is None else began_s
    result = ci.run(budget_min=minutes, began_s=began_s, tries=tries, commit=ci.head())
    ci.tell(result)
    sys.exit(not result.clean)


@main.command()
@TRIES
def test(tries: int) -> None:
    """All tests that need neither a GPU nor a Ray cluster."""
    _alone(ci.test, tries)


@main.command()
@TRIES
def clusters(tries: int) -> None:
    """Tests with a real Ray cluster, a process for each module."""
    _alone(ci.clusters, tries)


@main.command()
def check() -> None:
    """Formats, lint, types, import contracts, guards, layout."""
    _alone(ci.check, 1)


@main.command()
@click.option("--minutes", type=float, default=ONE_PART_MIN, help="Begin no hunt that would not end in time.")
@TRIES
def hunts(minutes: float, tries: int) -> None:
    """The long forms of tests, in the turn of this commit."""
    _alone(ci.hunt, tries, minutes)


@main.command()
def remember() -> None:
    """Take the durations of the last whole run as the usual ones."""
    told = json.loads((ci.ROOT / ci.OUT).read_text())
    known = usual.load()
    known.parts_s.update({part["name"]: part["took_s"] for part in told["parts"] if part["name"] != "hunts"})
    for part in told["parts"]:
        target = {"clusters": known.modules_s, "hunts": known.hunts_s}.get(part["name"], {})
        target.update(part["units_s"])
        if part["name"] == parts.TEST:
            known.files_s.clear()
            for test, seconds in part["seconds"].items():
                file = test.partition("::")[0]
                known.files_s[file] = known.files_s.get(file, 0.0) + seconds
    usual.save(usual.Usual(told["hardware"], known.parts_s, known.modules_s, known.hunts_s, known.files_s))
    click.echo(f"written: {os.path.relpath(usual.PATH)}")


def _alone(part: Callable[..., None], tries: int, minutes: float = ONE_PART_MIN) -> None:
    began_s = time.time()
    result = Result(ci.head(), minutes, ci.hardware())
    with ci.interrupted_into(result):
        part(result, limit_s=60 * minutes, tries=tries)
    result.took_s = time.time() - began_s
    ci.tell(result)
    sys.exit(not result.clean)


if __name__ == "__main__":
    main()
