"""``make bench``: every measurement of the line in one result, ``results/line.json``.

Parts run one after the other, each with its competitors in the same run. A part that fails is named in the output,
its bars stand there as not met, and the exit code is 1.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable

from benchmarks import decide, gateway_overhead, ledger_commit, tides
from benchmarks.rows import Bar, Row, result, write

Measure = Callable[[bool], tuple[list[Row], list[Bar]]]

PARTS: dict[str, tuple[Measure, tuple[str, ...]]] = {
    "decide": (decide.measure, ("decide_1000",)),
    "ledger_commit": (ledger_commit.measure, ()),
    "tides": (tides.measure, ("reclaim_in_place", "resume_in_place")),
    "gateway_overhead": (
        gateway_overhead.measure,
        ("gateway_ttft_1", "gateway_cpu_vs_ray_llm", "replica_start"),
    ),
}
"""Each part, and the bars that it sets."""


def run(parts: dict[str, tuple[Measure, tuple[str, ...]]], *, quick: bool) -> tuple[list[Row], list[Bar], list[str]]:
    """All rows, all bars, and what failed."""
    rows: list[Row] = []
    bars: list[Bar] = []
    failed: list[str] = []
    for name, (measure, promised) in parts.items():
        print(f"== {name}", flush=True)
        started_s = time.monotonic()
        try:
            new_rows, new_bars = measure(quick)
        except Exception as error:  # noqa: BLE001 - outermost: the other parts are worth having all the same
            traceback.print_exc()
            failed.append(f"{name}: {error!r}")
            new_rows, new_bars = [], [Bar(bar, f"not measured: {error!r}"[:200], None, False) for bar in promised]
        rows += new_rows
        bars += new_bars
        print(f"== {name}: {time.monotonic() - started_s:.0f} s", flush=True)
    return rows, bars, failed


def main() -> int:
    """Measure everything; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.line")
    parser.add_argument("--quick", action="store_true", help="few rounds; written to out/, not to results/")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="only these parts; written to out/")
    options = parser.parse_args()
    parts = {name: part for name, part in PARTS.items() if not options.only or name in options.only}
    rows, bars, failed = run(parts, quick=options.quick)
    found = result("line", "make bench", rows, bars)
    path = write(found, tides.OUT.parent) if options.quick or options.only else write(found)
    for one in rows:
        print(f"{one.case:24} {one.metric:44} {one.median:>12} {one.unit:8} ({one.min} .. {one.max}, n={one.n})")
    for bar in bars:
        print(f"{'met   ' if bar.met else 'MISSED'} {bar.bar}: {bar.value}, goal {bar.goal}")
    for what in failed:
        print(f"failed: {what}", file=sys.stderr)
    print(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
