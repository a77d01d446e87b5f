"""``make bench-storage``: reads, writes and engine starts, part after part; ``benchmarks/results/storage.json``.

Each part is saved when it has ended (``record``). A part or an engine start that fails is named in the output and in
the result, what could not be measured counts as not met, and the exit code is 1.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import record
from benchmarks.bulk import engine_loads, fio, outcome, peers, rounds, stub_driver
from benchmarks.bulk.weights import make_weights
from benchmarks.parts import Run, measure
from benchmarks.record import Book, Measured
from evidence.provenance import RESULTS

BOOK = Book("storage", "make bench-storage", "benchmarks.bulk")
OUT = Path("out") / "bench-storage"
READ_BYTES, WRITE_BYTES = 8 * 10**9, 10 * 10**9
ROUNDS = 5
QUICK_BYTES = 10**9


@dataclass(frozen=True, slots=True)
class Part:
    """How it is measured, the bars that it sets with their goals, and whether fio gives it a ceiling."""

    measure: Callable[..., Measured]
    goals: dict[str, str]
    needs_fio: bool = True


def reads(folder: Path, *, quick: bool, huge: bool) -> Measured:
    """Cold and warm."""
    missing = peers.install(folder.parent / "peers")
    for name, why in missing.items():
        print(f"  {name} cannot be installed: {why}", flush=True)
    environment = peers.environment(folder.parent / "peers", stub_driver.build(folder.parent / "stub"))
    print("  making weights", flush=True)
    weights = make_weights(folder / "store", QUICK_BYTES if quick else READ_BYTES)
    count = 1 if quick else ROUNDS
    print(f"  cold: {count} rounds", flush=True)
    cold = rounds.read_contest(weights, count, environment, warm=False, huge=huge)
    print(f"  warm: {count} rounds", flush=True)
    warm = rounds.read_contest(weights, count, environment, warm=True, huge=huge)
    sizes = {"weights_bytes": weights.size_bytes, "rounds_cold": count, "rounds_warm": count}
    return Measured(
        rounds.rows_of("cold read", cold) + rounds.rows_of("warm read", warm),
        rounds.read_bars(cold),
        _out("cold read", cold) + _out("warm read", warm),
        sizes | {"huge_pages": huge, "not_installed": missing},
        {"fio": fio.version()} | peers.versions(folder.parent / "peers"),
    )


def writes(folder: Path, *, quick: bool, huge: bool) -> Measured:
    """Durable."""
    size_bytes, count = (QUICK_BYTES, 1) if quick else (WRITE_BYTES, ROUNDS)
    print(f"  {count} rounds", flush=True)
    found = rounds.write_contest(folder, size_bytes, count, huge=huge)
    sizes = {"state_bytes": size_bytes, "rounds": count, "huge_pages": huge}
    case = "durable write"
    versions = {"fio": fio.version()}
    return Measured(rounds.rows_of(case, found), rounds.write_bars(found), _out(case, found), sizes, versions)


def loads(folder: Path, *, quick: bool, huge: bool) -> Measured:
    """Starts of real engines."""
    return engine_loads.measure(folder, quick=quick)


PARTS = {
    "reads": Part(
        reads,
        {
            "cold_read_ratio": ">= 0.95 of fio, hashed",
            "cold_read_cpu": "<= 0.06 CPU s/GB",
            "cold_read_vs_peers": "> 1 x the best that returns tensors, and >= 0.97 x kvikio",
        },
    ),
    "writes": Part(writes, {"durable_write_ratio": ">= 0.90 of fio", "durable_write_vs_dcp": ">= 3 x DCP"}),
    "loads": Part(
        loads,
        {"tp2_bytes_per_rank": "0.5 of TP=1's bytes", "artefact_restart": ">= 2.0 x sooner"},
        needs_fio=False,
    ),
}
GOALS = {name: part.goals for name, part in PARTS.items()}


def main(argv: Sequence[str] | None = None, parts: dict[str, Part] | None = None, results: Path = RESULTS) -> int:
    """Measure; gives the exit code: 1 if something failed, whatever the bars are."""
    parts = PARTS if parts is None else parts
    options = _parser().parse_args(argv)
    chosen = [name for name in parts if not options.only or name in options.only]
    if any(parts[name].needs_fio for name in chosen) and (why := fio.missing()):
        _parser().error(why)
    if options.gently:
        os.environ[outcome.GENTLY] = "1"
    target = OUT.parent if options.quick else results
    goals = {name: part.goals for name, part in parts.items()}
    with fio.huge_pages() as huge:
        if not huge:
            print("no huge pages can be reserved (that needs root): fio is slower than it could be", flush=True)
        run = Run(BOOK, goals, options.dir, target, options.quick)
        return measure(
            run,
            {name: partial(parts[name].measure, quick=options.quick, huge=huge) for name in chosen},
            minutes=options.minutes,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk")
    parser.add_argument("--quick", action="store_true", help="little and once; written to out/, never to results/")
    parser.add_argument(
        "--only", choices=sorted(PARTS), action="append", help="only these parts; the others stay as they stand there"
    )
    parser.add_argument("--minutes", type=float, help="only parts that are missing or stale, as long as there is time")
    parser.add_argument("--dir", type=Path, default=OUT, help="on the filesystem to be measured; 40 GB are needed")
    parser.add_argument(
        "--gently",
        action="store_true",
        help="forget the pages of the files at hand only, on a machine that others use; cold is then less cold",
    )
    return parser


def _out(case: str, contest: rounds.Contest) -> list[record.Gap]:
    """Contenders that failed."""
    return [record.Gap(case, name, series.failed) for name, series in contest.series.items() if series.failed]


if __name__ == "__main__":
    sys.exit(main())
