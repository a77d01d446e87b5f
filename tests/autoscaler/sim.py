"""``make sim SEEDS=n``: the arbiter's step and its ledger through seeded bad luck; every promise after each event.

A seed that fails is run again with less and less bad luck, and told as short as it still fails.

What counts as a fault: whatever `faults` did that had an effect (somebody was killed, a clock was set, traffic
changed), and every message to or from a living arbiter that was lost, late or repeated. They are printed apart.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from os import cpu_count

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.autoscaler.chaos import FAULTS_S, Chaos
from tests.autoscaler.referee import Referee

SHORTEST_S = 1.0  # of faults: by so much a story is shortened


@dataclass(frozen=True, slots=True)
class Told:
    """How a seed ended: what happened in it, and why it failed; "" if it did not.

    Attributes:
        seed: it.
        struck: faults that had an effect, by kind; those of single messages left out.
        messages: that were lost, late or repeated.
        events: in its ledger.
        judged: decisions, by the referee.
        cpu_s: of its process.
        why: it failed.
    """

    seed: int
    struck: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    events: int = 0
    judged: int = 0
    cpu_s: float = 0.0
    why: str = ""


def played(seed: int, faults_s: float = FAULTS_S) -> Told:
    """One seed."""
    began_s, why = time.process_time(), ""
    chaos = Chaos(seed)
    try:
        chaos.run(faults_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        why = f"{type(error).__name__}: {error}"
    loop = chaos.loop
    judged = loop.referee.judged if isinstance(loop.referee, Referee) else 0
    return Told(seed, chaos.struck, loop.weather.struck, len(loop.events), judged, time.process_time() - began_s, why)


def played_all(seeds: range) -> Iterator[Told]:
    """All of them, on all cores, in whichever order they end."""
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("forkserver")) as pool:
        for done in as_completed([pool.submit(played, seed) for seed in seeds]):
            yield done.result()


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
    began_s, struck, told_all, failed = time.perf_counter(), Counter[str](), list[Told](), list[Told]()
    on = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=on, disable=not on.is_terminal) as bar:
        line = bar.add_task("seeds", total=seeds)
        for told in played_all(range(first, first + seeds)):
            struck += told.struck
            told_all.append(told)
            bar.advance(line)
            if told.why:
                failed.append(told)
    took_s = time.perf_counter() - began_s
    failed.sort(key=lambda told: told.seed)
    for one in failed[:3]:
        faults_s, story = shortened(one)
        print(f"--- seed {one.seed} fails within {faults_s:.0f} s of faults:\n{story.why}\n")
    print(", ".join(f"{kind} {count}" for kind, count in struck.most_common()))
    bad = ", ".join(str(one.seed) for one in failed)
    messages, cpu_s = sum(told.messages for told in told_all), sum(told.cpu_s for told in told_all)
    both = struck.total() + messages
    print(
        f"{seeds} seeds, {sum(told.events for told in told_all)} events, "
        f"{sum(told.judged for told in told_all)} decisions judged; "
        f"{both} faults in {took_s:.0f} s, {both / cpu_s:.0f} per second of CPU: "
        f"{messages} messages lost, late or repeated, and {struck.total()} of the {len(struck)} kinds above, "
        f"{struck.total() / cpu_s:.0f} per second of CPU"
    )
    print(f"{len(failed)} failed: {bad}" if failed else "no promise was broken")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
