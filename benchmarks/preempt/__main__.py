"""``make bench-preempt``: three sizes of state and the cost of a step, part after part; results/preempt.json.

Each part is saved when it has ended (`benchmarks.parts`). All of it takes an hour and a half and wants a quiet machine
with 20 GB of memory and 20 GB of disk; `steady` alone takes 20 minutes.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.bulk import fio, outcome
from benchmarks.parts import Run, measure
from benchmarks.preempt import contest, image, judge, steady
from benchmarks.preempt.room import must_fit
from benchmarks.record import Book, Measured
from evidence.provenance import RESULTS

BOOK = Book("preempt", "make bench-preempt", "benchmarks.preempt")
OUT = Path("out") / "bench-preempt"
SIZES = {"0.5GB": 500_000_000, "2GB": 2_000_000_000, "6GB": 6_000_000_000}
STEADY = "steady"
GOALS = {**dict.fromkeys(SIZES, judge.GOALS), STEADY: steady.GOALS}
ROUNDS, PAIRS, STEPS, STEP_S = 5, 12, 200, 0.2  # at least ten pairs, the issue says; a shared machine wants more
# Of a quick run, which shows that everything runs and measures nothing.
QUICK_SIZES = {"0.5GB": 20_000_000}
QUICK_ROUNDS, QUICK_PAIRS, QUICK_STEPS, QUICK_STEP_S = 1, 2, steady.TURN_STEPS, 0.02


def size(folder: Path, *, size_bytes: int, rounds: int) -> Measured:
    """All contenders at one size."""
    must_fit(size_bytes, folder)
    missing = {"storage, fio": why} if (why := fio.missing()) else {}
    criu, why = image.find(os.environ, Path.cwd())
    if criu is None:
        missing[contest.CRIU] = why
    with fio.huge_pages() as huge:
        found = contest.run(folder, size_bytes, rounds, criu, huge=huge)
    sizes = {"state_bytes": size_bytes, "rounds": rounds, "threads": 1, "huge_pages": huge}
    return Measured(judge.rows_of(found), judge.bars_of(found), judge.gaps_of(found, missing), sizes)


def chosen_parts(options: argparse.Namespace) -> dict[str, Callable[[Path], Measured]]:
    """What is to be measured, by name."""
    quick = options.quick
    sizes = QUICK_SIZES if quick else SIZES
    rounds = options.rounds or (QUICK_ROUNDS if quick else ROUNDS)
    parts: dict[str, Callable[[Path], Measured]] = {
        name: partial(size, size_bytes=size_bytes, rounds=rounds) for name, size_bytes in sizes.items()
    }
    parts[STEADY] = partial(
        steady.measure,
        pairs=options.pairs or (QUICK_PAIRS if quick else PAIRS),
        steps=options.steps or (QUICK_STEPS if quick else STEPS),
        step_s=options.step_s or (QUICK_STEP_S if quick else STEP_S),
    )
    return {name: part for name, part in parts.items() if not options.only or name in options.only}


def main(argv: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Measure; gives the exit code: 1 if something failed, whatever the bars are."""
    options = _parser().parse_args(argv)
    if options.gently:
        os.environ[outcome.GENTLY] = "1"
    target = OUT.parent if options.quick else results
    return measure(Run(BOOK, GOALS, options.dir, target, options.quick), chosen_parts(options), minutes=options.minutes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preempt")
    parser.add_argument("--quick", action="store_true", help="little and once; written to out/, never to results/")
    parser.add_argument(
        "--only", choices=[*SIZES, STEADY], action="append", help="only these parts; the others stay as they stand"
    )
    parser.add_argument("--minutes", type=float, help="only parts that are missing or stale, as long as there is time")
    parser.add_argument("--dir", type=Path, default=OUT, help="on the filesystem to be measured; 16 GB are needed")
    parser.add_argument("--rounds", type=int, help=f"of each size; {ROUNDS} by default")
    parser.add_argument("--pairs", type=int, help=f"of the steady cost; {PAIRS} by default")
    parser.add_argument("--steps", type=int, help=f"of each side of a pair; {STEPS} by default; tens")
    parser.add_argument("--step-s", type=float, help=f"of a step, in seconds; {STEP_S} by default")
    parser.add_argument(
        "--gently", action="store_true", help="forget the pages of the files at hand only, on a machine that others use"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
