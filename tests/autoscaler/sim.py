"""``make sim SEEDS=n``: the arbiter's step and its ledger through seeded bad luck; every promise after each event.

A seed that fails is run again with less and less bad luck, and told as short as it still fails. Seeds are played in
blocks, and each block that ended stands in ``--out`` with the code that it is of: ``MINUTES=n`` plays those that are
missing or stale.

What counts as a fault: whatever `faults` did that had an effect (a process was killed, a clock was set, traffic
changed), and every message to or from a living arbiter that was lost, late or repeated. They are printed apart.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.rows import result
from evidence.again import in_turn
from evidence.result_file import read, write
from evidence.results import SIM_BLOCK, SIM_SEEDS, sim_case
from evidence.stamps import Begun, Stamp, stamps_of, with_stamps
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


@dataclass(slots=True)
class Block:
    """Some seeds that were played together."""

    seeds: range
    told: list[Told] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def failed(self) -> list[Told]:
        """Those in which a promise was broken, in the order of their seeds."""
        return sorted((one for one in self.told if one.why), key=lambda one: one.seed)

    def as_row(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "case": sim_case(self.seeds[0]),
            "faults": sum((one.struck for one in self.told), Counter[str]()).total(),
            "messages": sum(one.messages for one in self.told),
            "events": sum(one.events for one in self.told),
            "judged": sum(one.judged for one in self.told),
            "cpu_s": round(sum(one.cpu_s for one in self.told), 1),
            "failed": [one.seed for one in self.failed],
        }


def played_block(seeds: range, bar: Callable[[], None]) -> Block:
    """All seeds of a block; ``bar`` is told of each that has ended."""
    block, began_s = Block(seeds), time.perf_counter()
    for told in played_all(seeds):
        block.told.append(told)
        bar()
    block.took_s = time.perf_counter() - began_s
    return block


def tell(blocks: Sequence[Block]) -> None:
    """What struck, and what failed."""
    told = [one for block in blocks for one in block.told]
    failed = [one for block in blocks for one in block.failed]
    for one in failed[:3]:
        faults_s, story = shortened(one)
        print(f"--- seed {one.seed} fails within {faults_s:.0f} s of faults:\n{story.why}\n")
    struck = sum((one.struck for one in told), Counter[str]())
    print(", ".join(f"{kind} {count}" for kind, count in struck.most_common()))
    messages, cpu_s = sum(one.messages for one in told), max(sum(one.cpu_s for one in told), 1e-9)
    both, took_s = struck.total() + messages, sum(block.took_s for block in blocks)
    print(
        f"{len(told)} seeds, {sum(one.events for one in told)} events, {sum(one.judged for one in told)} decisions "
        f"judged; {both} faults in {took_s:.0f} s, {both / cpu_s:.0f} per second of CPU: "
        f"{messages} messages lost, late or repeated, and {struck.total()} of the {len(struck)} kinds above, "
        f"{struck.total() / cpu_s:.0f} per second of CPU"
    )
    bad = ", ".join(str(one.seed) for one in failed)
    print(f"{len(failed)} failed: {bad}" if failed else "no promise was broken")


def save(block: Block, stamp: Stamp, path: Path) -> None:
    """Put a block into the file. One in which a seed failed gets no stamp, and so is the first to be played again."""
    old = read(path)
    row = block.as_row()
    rows = {one["case"]: one for one in (*old.get("rows", ()), row)}
    stamps = {**stamps_of(old), row["case"]: stamp}
    ordered = sorted(rows, key=lambda case: int(case.split()[1].partition("-")[0]))
    document = result("sim", "make sim", [], []) | {"rows": [rows[case] for case in ordered]}
    kept = {case: stamps[case] for case in ordered if case in stamps and not rows[case]["failed"]}
    write(with_stamps(document, kept), path)


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=SIM_SEEDS, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--minutes", type=float, default=None, help="So long, blocks that are missing or stale in --out's file.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where whole blocks go as JSON.")
def main(seeds: int, first: int, minutes: float | None, out: Path | None) -> None:
    """Play seeds; exit code 1 if one of them fails."""
    begin = range(first, first + seeds)
    blocks: dict[str, range] = {}
    for start in range(first - first % SIM_BLOCK, first + seeds, SIM_BLOCK):
        there = range(max(start, begin.start), min(start + SIM_BLOCK, begin.stop))
        blocks[sim_case(start)] = there
    old = json.loads(out.read_text()) if out is not None and out.exists() else {}
    done: list[Block] = []
    on = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=on, disable=not on.is_terminal) as bar:
        line = bar.add_task("seeds", total=seeds)
        for case in in_turn("sim", old, list(blocks), minutes):
            begun = Begun.now(("simulated arbiter",))
            done.append(played_block(blocks[case], lambda: bar.advance(line)))
            if out is not None and len(blocks[case]) == SIM_BLOCK:
                save(done[-1], begun.ended(), out)
    if done:
        tell(done)
    sys.exit(any(block.failed for block in done))


if __name__ == "__main__":
    main()
