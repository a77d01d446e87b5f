"""``make bench``: every measurement of the line, part after part; ``results/line.json``.

Each part runs with its competitors in the same run, and is saved when it has ended (`benchmarks.parts`).
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import decide, gateway_overhead, ledger_commit, tides
from benchmarks.parts import Run, measure
from benchmarks.record import Book, Measured
from benchmarks.rows import Bar, Row
from evidence.provenance import RESULTS

BOOK = Book("line", "make bench", "benchmarks.line")
OUT = Path("out") / "bench"

Measure = Callable[[bool], tuple[list[Row], list[Bar]]]


@dataclass(frozen=True, slots=True)
class Part:
    """How it is measured, and the bars that it sets with their goals."""

    measure: Measure
    goals: dict[str, str]


PARTS = {
    "decide": Part(decide.measure, {"decide_1000": f"p99 at 1,000 slots under {decide.GOAL_MS:g} ms"}),
    "ledger_commit": Part(ledger_commit.measure, {}),
    "tides": Part(tides.measure, {"reclaim_in_place": "under one training step + 1 s", "resume_in_place": "under 2 s"}),
    "gateway_overhead": Part(
        gateway_overhead.measure,
        {
            "gateway_ttft_1": f"adds under {gateway_overhead.TTFT_GOAL_MS:g} ms p50",
            "gateway_cpu_vs_ray_llm": "at most 1 x ray.serve.llm at every load",
            "replica_start": "at most 1 x ray.serve.llm",
        },
    ),
}


def main(argv: Sequence[str] | None = None, parts: dict[str, Part] | None = None, results: Path = RESULTS) -> int:
    """Measure; gives the exit code: 1 if something failed, whatever the bars are."""
    parts = PARTS if parts is None else parts
    parser = argparse.ArgumentParser(prog="python -m benchmarks.line")
    parser.add_argument("--quick", action="store_true", help="few rounds; written to out/, not to results/")
    parser.add_argument("--only", choices=sorted(parts), action="append", help="only these parts; the others stay")
    parser.add_argument("--minutes", type=float, help="only parts that are missing or stale, as long as there is time")
    options = parser.parse_args(argv)
    chosen = {name: part for name, part in parts.items() if not options.only or name in options.only}
    goals = {name: part.goals for name, part in parts.items()}
    run = Run(BOOK, goals, OUT, OUT.parent if options.quick else results, options.quick)
    measures = {name: partial(_measured, part.measure, options.quick) for name, part in chosen.items()}
    return measure(run, measures, minutes=options.minutes)


def _measured(part: Measure, quick: bool, folder: Path) -> Measured:
    rows, bars = part(quick)
    return Measured(rows, bars)


if __name__ == "__main__":
    sys.exit(main())
