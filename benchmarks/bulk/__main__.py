"""``make bench-storage``: reads, writes and engine starts in one result, ``results/storage.json``.

A part that fails is named in the output, its bars stand there as not met, and the exit code is 1.
"""

import argparse
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.bulk import engine_loads, fio, peers, rounds, stub_driver
from benchmarks.bulk.weights import make_weights
from benchmarks.rows import Bar, Row, result, write

OUT = Path("out") / "bench-storage"
READ_BYTES, WRITE_BYTES = 8 * 10**9, 10 * 10**9
ROUNDS = 5
QUICK_BYTES = 10**9
Part = tuple[list[Row], list[Bar]]


def reads(folder: Path, *, quick: bool, huge: bool) -> Part:
    """Cold and warm."""
    missing = peers.install(folder.parent / "peers")
    for name, why in missing.items():
        print(f"  {name} cannot be installed: {why}", flush=True)
    environment = peers.environment(folder.parent / "peers", stub_driver.build(folder.parent / "stub"))
    print("  making weights", flush=True)
    weights = make_weights(folder / "store", QUICK_BYTES if quick else READ_BYTES)
    count = 1 if quick else ROUNDS
    cold = rounds.read_contest(weights, count, environment, warm=False, huge=huge)
    warm = rounds.read_contest(weights, 1 if quick else 3, environment, warm=True, huge=huge)
    return rounds.rows_of("cold read", cold) + rounds.rows_of("warm read", warm), rounds.read_bars(cold)


def writes(folder: Path, *, quick: bool, huge: bool) -> Part:
    """Durable."""
    found = rounds.write_contest(folder, QUICK_BYTES if quick else WRITE_BYTES, 1 if quick else ROUNDS, huge=huge)
    return rounds.rows_of("durable write", found), rounds.write_bars(found)


def loads(folder: Path, *, quick: bool, huge: bool) -> Part:
    """Starts of real engines."""
    rows: list[Row] = []
    bars: list[Bar] = []
    for more_rows, more_bars in engine_loads.measure(folder, quick=quick):
        rows, bars = rows + more_rows, bars + more_bars
    return rows, bars


PARTS: dict[str, tuple[Callable[..., Part], tuple[str, ...]]] = {
    "reads": (reads, ("cold_read_ratio", "cold_read_cpu", "cold_read_vs_peers")),
    "writes": (writes, ("durable_write_ratio", "durable_write_vs_dcp")),
    "loads": (loads, ("tp2_bytes_per_rank", "artefact_restart")),
}
"""Each part, and the bars that it sets."""


def main() -> int:
    """Measure; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk")
    parser.add_argument("--quick", action="store_true", help="little and once; written to out/, not to results/")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="only these parts; written to out/")
    parser.add_argument("--dir", type=Path, default=OUT, help="on the filesystem to be measured; 40 GB are needed")
    options = parser.parse_args()
    if why := fio.missing():
        parser.error(why)
    rows: list[Row] = []
    bars: list[Bar] = []
    failed: list[str] = []
    with fio.huge_pages() as huge:
        if not huge:
            print("no huge pages can be reserved (that needs root): fio is slower than it could be", flush=True)
        for name, (part, promised) in PARTS.items():
            if options.only and name not in options.only:
                continue
            print(f"== {name}", flush=True)
            folder = options.dir.absolute() / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            began_s = time.monotonic()
            try:
                more_rows, more_bars = part(folder, quick=options.quick, huge=huge)
            except Exception as error:  # noqa: BLE001 - outermost: the other parts are worth having all the same
                traceback.print_exc()
                failed.append(f"{name}: {error!r}")
                more_rows, more_bars = [], [Bar(bar, f"not measured: {error!r}"[:200], None, False) for bar in promised]
            rows, bars = rows + more_rows, bars + more_bars
            shutil.rmtree(folder, ignore_errors=True)
            print(f"== {name}: {time.monotonic() - began_s:.0f} s", flush=True)
    found = result("storage", "make bench-storage", rows, bars)
    path = write(found, OUT.parent) if options.quick or options.only else write(found)
    for one in rows:
        print(f"{one.case:20} {one.metric:60} {one.median:>12} {one.unit:8} ({one.min} .. {one.max}, n={one.n})")
    for bar in bars:
        print(f"{'met   ' if bar.met else 'MISSED'} {bar.bar}: {bar.value}, goal {bar.goal}")
    for what in failed:
        print(f"failed: {what}", file=sys.stderr)
    print(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
