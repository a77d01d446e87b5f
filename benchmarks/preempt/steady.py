"""What parking costs while nobody wants the slot: a session's loop against a plain one, in pairs.

Two ranks with DDP on both sides, since the agreement at each safe point is a collective. A step is work for the
processor (matrix products, as many on both sides) and a wait, half and half: a stand-in for a device that computes
while its host waits. Both begin and end a step in the same place of the same loop; the pairs change their order.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks.preempt.bound import costs, upper_95
from benchmarks.progress import Progress
from benchmarks.record import Measured
from benchmarks.rows import Bar, row

WORLD = 2
WARM_UP_STEPS = 5
GOAL = 0.01
BAR = "steady_cost"
GOALS = {BAR: "upper 95 % bound < 0.01 of step time"}
SESSION, PLAIN = "session", "plain loop"
_SLACK_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a step is, alike on both sides.

    Attributes:
        steps: that are counted, after some that are not.
        products: matrix products in a step.
        wait_s: after them.
    """

    steps: int
    products: int
    wait_s: float


def measure(folder: Path, *, pairs: int, steps: int, step_s: float) -> Measured:
    """All pairs."""
    load = Load(steps, _products(step_s / 2), step_s / 2)
    found: list[tuple[float, float]] = []
    progress = Progress("pair", [1.0] * pairs)
    for number in range(pairs):
        print(progress.begins(f"{steps} steps of {step_s * 1e3:.0f} ms each side"), flush=True)
        order = [SESSION, PLAIN] if number % 2 else [PLAIN, SESSION]
        took = {side: _step_s(side, load, folder / f"{number}-{side.split()[0]}") for side in order}
        found.append((took[SESSION], took[PLAIN]))
        print(progress.ended(f"{took[SESSION] * 1e3:.2f} and {took[PLAIN] * 1e3:.2f} ms a step"), flush=True)
    cost = costs(found)
    bound = round(upper_95(cost), 5)
    rows = [
        row(SESSION, "step", "ms", [with_it * 1e3 for with_it, _ in found]),
        row(PLAIN, "step", "ms", [without * 1e3 for _, without in found]),
        row(SESSION, "cost of a step", "ratio", cost, digits=5),
        row(SESSION, "cost of a step, mean over pairs", "ratio", [mean(cost)], digits=5),
        row(SESSION, "cost of a step", "ms", [(with_it - without) * 1e3 for with_it, without in found]),
    ]
    sizes = {"pairs": pairs, "steps": steps, "step_s": step_s, "world": WORLD, "products": load.products}
    return Measured(rows, [Bar(BAR, GOALS[BAR], bound, bound < GOAL)], sizes=sizes)


def _step_s(side: str, load: Load, folder: Path) -> float:
    """Mean seconds of a step, of the slower rank.

    Raises:
        RuntimeError: a rank did not end well.
    """
    folder.mkdir()
    spec = json.dumps({"side": side, "folder": str(folder), **asdict(load)})
    command = [sys.executable, "-m", "benchmarks.preempt.steady_child", spec]
    ranks = [
        subprocess.Popen([*command, str(rank)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
        for rank in range(WORLD)
    ]
    took = []
    try:
        for rank in ranks:
            told, _ = rank.communicate(timeout=_SLACK_S + 10 * load.steps * load.wait_s)
            if rank.returncode:
                raise RuntimeError(f"a rank of the {side} ended with {rank.returncode}")
            took.append(float(told.split()[-1]))
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
    return max(took)


def _products(seconds: float) -> int:
    """As many as take about so long here, with as many processes at it as there are ranks."""
    command = [sys.executable, "-m", "benchmarks.preempt.steady_child", "calibrate", str(seconds)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WORLD)]
    counts = [int(rank.communicate(timeout=_SLACK_S)[0].split()[-1]) for rank in ranks]
    return max(1, round(mean(counts)))


def mean_step_s(begins_s: Sequence[float]) -> float:
    """From the beginnings of all steps: the mean after those that warm up."""
    counted = begins_s[WARM_UP_STEPS:]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


def total_steps(load: Load) -> int:
    """With those before, and one at whose beginning the last that counts has ended."""
    return WARM_UP_STEPS + load.steps + 1


def now_s() -> float:
    """Of the clock that both sides use."""
    return time.perf_counter()
