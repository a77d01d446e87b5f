"""``python -m benchmarks.policy_sweep --traces folder``: each contender's knobs, turned on a shortened development set.

A rival that stands where its authors left it is easily beaten. So each is turned over a grid as wide as ours, on two
days of 64 GPUs (the first fills the pool, the second counts), and compared with whatever came out best: the most
training among the points that serve `SLO` in time, or the best serving where none does. The points, and what was
chosen, go to ``benchmarks/results/policy/sweep.json``; the choice stands in ``ebbtide_simulator/policies/knobs.py``.

Points that are there already are not played again: a sweep that was stopped goes on.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.policy import CONFIGS, PARTS
from benchmarks.rows import versions
from ebbtide_simulator.played.one_run import play_one
from ebbtide_simulator.policies.contenders import CONTENDERS, CONTROLS, ORACLE, OURS, knobs_of
from ebbtide_simulator.policies.knobs import Knobs
from ebbtide_simulator.report.bars import SLO
from ebbtide_simulator.report.frontier import point
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.given import load_inputs
from ebbtide_simulator.scenes.scene import Inputs
from evidence.provenance import RESULTS

PART = "64-week"
HOURS = 48.0
SEED = 100  # none of those by which contenders are compared
Point = dict[str, Any]

HEADROOMS = (0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5)  # target uses of 1.1 to 0.67 of a full replica
HOLDS_S = (60.0, 300.0, 900.0)
# At equal knobs no worse than 1800 s in the sweep of 2026-11-23, before saves paused a job. Both are usual.
CHECKPOINT_S = 900.0
SHARES, RESERVES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99), (0, 2)
SIZED = ("static-p95", "static-mean-2sd", "static-p100")
AS_THEY_ARE = (ORACLE, *SIZED, *CONTROLS)  # a sizing is what it is, and so is a control


def grid(name: str) -> list[Knobs]:
    """Every way in which a contender is turned; ours has no more of them than a rival."""
    stands = knobs_of(name)
    if name in AS_THEY_ARE:
        return []
    if name == OURS:
        return [replace(stands, forecast_share=s, reserve=r) for s, r in product(SHARES, RESERVES)]
    if name.startswith(OURS):
        return []
    kills = name.startswith("kill") or name.endswith("-own")
    every_s = CHECKPOINT_S if kills else stands.checkpoint_every_s
    turned = [
        replace(stands, headroom=headroom, hold_s=hold_s, checkpoint_every_s=every_s)
        for headroom, hold_s in product(HEADROOMS, HOLDS_S)
    ]
    return [*turned, Knobs()] if kills else turned  # and as it would be without a sweep


def chosen(points: Sequence[Point]) -> Point:
    """The best of one contender's."""
    serving = [one for one in points if one["slo_attainment"] >= SLO]
    if serving:
        return max(serving, key=lambda one: float(one["goodput_gpu_s"]))
    return max(points, key=lambda one: (float(one["slo_attainment"]), float(one["goodput_gpu_s"])))


def played_at(file: SimulationFile, inputs: Inputs, name: str, knobs: Knobs) -> Point:
    """One run."""
    return point(knobs, play_one(file, inputs, name, SEED, knobs).figures)


def is_at(one: Mapping[str, Any], knobs: Knobs) -> bool:
    """Whether a point was played with these."""
    return all(one[name] == value for name, value in asdict(knobs).items())


def main() -> None:
    """Play what is not there yet, and choose."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="the folder with the traces")
    parser.add_argument("--only", choices=sorted(CONTENDERS), action="append", help="only these contenders")
    parser.add_argument("--anew", action="store_true", help="forget the points that are there")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    part = PARTS[PART]
    file, inputs = load_inputs(
        CONFIGS / f"simulate_{part.slots}.yaml",
        [(options.traces / name, factor, day) for name, factor, day in part.serving],
        [(options.traces / name, factor, day) for name, factor, day in part.jobs],
    )
    file = file.model_copy(update={"run": file.run.model_copy(update={"hours_max": HOURS})})
    path = RESULTS / "policy" / "sweep.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, list[Point]] = {}
    if path.exists() and not options.anew:
        known = json.loads(path.read_text())["points"]
    with ProcessPoolExecutor(options.processes) as pool:
        for name in options.only or CONTENDERS:
            wanted = [one for one in grid(name) if not any(is_at(had, one) for had in known.get(name, []))]
            runs = [pool.submit(played_at, file, inputs, name, one) for one in wanted]
            if runs:
                known[name] = known.get(name, []) + [run.result() for run in runs]
                path.write_text(json.dumps(_told(known), indent=1) + "\n")
            if name in known:
                print(name, json.dumps(chosen(known[name])), flush=True)


def _told(points: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    return {
        "name": "policy_sweep",
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m benchmarks.policy_sweep --traces folder",
        "versions": versions(),
        "part": PART,
        "hours": HOURS,
        "seed": SEED,
        "served": SLO,
        "chosen": {name: chosen(found) for name, found in points.items()},
        "points": points,
    }


if __name__ == "__main__":
    main()
