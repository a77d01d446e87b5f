"""``python -m benchmarks.fidelity --trace FILE``: live runs on this machine's CPU, and the simulator beside them.

The first run calibrates the simulator; the next two, of other windows and tides, are played with that; the last of
them runs twice, which shows how far a live run is from itself. Six to seven minutes a run.
"""

import argparse
import inspect
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.fidelity.measure import measured
from benchmarks.pool_run import RunFailed
from evidence.provenance import RESULTS


def main() -> int:
    """Measure, print, write ``results/policy/fidelity.json``; `benchmarks.policy --merge` then has its bars, too."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity", description=inspect.getdoc(sys.modules[__name__])
    )
    parser.add_argument("--trace", type=Path, required=True, help="Parquet file with t_s, in_tok, out_tok")
    parser.add_argument("--again", action="store_true", help="judge the runs that are there, without new ones")
    options = parser.parse_args()
    try:
        figures = measured(options.trace, anew=not options.again) | {"date": time.strftime("%Y-%m-%d")}
    except ValueError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"fidelity: a live run failed: {error}", file=sys.stderr)
        return 1
    path = RESULTS / "policy" / "fidelity.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(*lines(figures), path, sep="\n")
    return 0


def lines(figures: Mapping[str, Any]) -> list[str]:
    """All that is worth a look, as text."""
    found = [json.dumps(figures["model"])]
    for name, one in (figures["windows"] | {"the same window live, once and again": figures["live_twice"]}).items():
        found.append(name)
        for use, row in one["uses"].items():
            itself = "not there" if row["of_itself"] is None else f"{row['of_itself']:+.1%} of itself"
            told = f"{itself}, {row['of_pool']:+.1%} of the pool{'' if row['judged'] else ', not judged'}"
            found.append(f"  {use:12} {row['live']:8.1f} {row['simulated']:8.1f}  {told}")
        found += [f"    {use:10} {row['live']:8.1f} {row['simulated']:8.1f}" for use, row in one["finer"].items()]
        found.append(f"  preemptions  {one['preemptions']['live']:8} {one['preemptions']['simulated']:8}")
        for what in ("ttft_p50_s", "ttft_p99_s"):
            found.append(f"  {what:12} {one[what]['live']:8.3f} {one[what]['simulated']:8.3f}  {one[what]['off']:+.1%}")
    for name, bar in figures["bars"].items():
        found.append(f"{'met   ' if bar['met'] else 'missed'} {name}: {bar['value']:.3g}, at most {bar['at_most']:g}")
    return found


if __name__ == "__main__":
    sys.exit(main())
