"""``make sim SEEDS=n``: the arbiter's step and its ledger through seeded bad luck; every promise after each event.

A seed that fails is run again with less and less bad luck, and told as short as it still fails.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.autoscaler.chaos import Chaos

FAULTS_S = 90.0
SHORTEST_S = 1.0  # of faults: by so much a story is shortened


@dataclass(frozen=True, slots=True)
class Told:
    """How a seed ended: how many faults there were, and why it failed; "" if it did not."""

    seed: int
    faults: int
    why: str = ""


def played(seed: int, faults_s: float = FAULTS_S) -> Told:
    """One seed."""
    chaos = Chaos(seed)
    try:
        chaos.run(faults_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return Told(seed, chaos.faults, f"{type(error).__name__}: {error}")
    return Told(seed, chaos.faults)


def shortened(found: Told) -> tuple[float, Told]:
    """The least bad luck with which it still fails, as far as halving finds it, and how it fails then."""
    works_s, fails_s, story = 0.0, FAULTS_S, found
    while fails_s - works_s > SHORTEST_S:
        middle_s = (works_s + fails_s) / 2
        again = played(found.seed, middle_s)
        if again.why:
            fails_s, story = middle_s, again
        else:
            works_s = middle_s
    return fails_s, story


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
def main(seeds: int, first: int) -> None:
    """Play so many seeds; exit code 1 if one of them fails."""
    began_s, faults, failed = time.perf_counter(), 0, list[Told]()
    on = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=on, disable=not on.is_terminal) as bar,
        ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool,
    ):
        line = bar.add_task("seeds", total=seeds)
        for done in as_completed([pool.submit(played, seed) for seed in range(first, first + seeds)]):
            told = done.result()
            faults += told.faults
            bar.advance(line)
            if told.why:
                failed.append(told)
    took_s = time.perf_counter() - began_s
    for one in sorted(failed, key=lambda told: told.seed)[:3]:
        faults_s, story = shortened(one)
        print(f"--- seed {one.seed} fails within {faults_s:.0f} s of faults:\n{story.why}\n")
    bad = ", ".join(str(one.seed) for one in sorted(failed, key=lambda told: told.seed))
    print(
        f"{seeds} seeds, {faults} faults in {took_s:.0f} s ({faults / took_s:.0f} a second): "
        + (f"{len(failed)} failed: {bad}" if failed else "no promise was broken")
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
