"""What parking costs while nobody wants the slot: a session's loop against a plain one, in pairs.

Two ranks with DDP on both sides, since the agreement at each safe point is a collective. A step is work for the
processor (matrix products, as many on both sides) and a wait, half and half: a stand-in for a device that computes
while its host waits. Both begin and end a step in the same place of the same loop.

Both sides of a pair live at once and take turns, a few steps each, while the other one sleeps: what a shared machine
does for seconds at a time, it does to both. (With one side after the other, such differences were as large as 8 %.)
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks.preempt.bound import costs, upper_95
from benchmarks.progress import Progress
from benchmarks.record import Measured
from benchmarks.rows import Bar, row

WORLD = 2
WARM_UP_STEPS = 10
TURN_STEPS = 10  # two seconds of them: the machine's moods last longer
TURN = "turn: "
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
    """All pairs.

    Raises:
        ValueError: turns do not divide ``steps``.
    """
    if steps % TURN_STEPS:
        raise ValueError(f"{steps} steps are no whole turns of {TURN_STEPS}")
    load = Load(steps, _products(step_s / 2), step_s / 2)
    found: list[tuple[float, float]] = []
    progress = Progress("pair", [1.0] * pairs)
    for number in range(pairs):
        print(progress.begins(f"{steps} steps of {step_s * 1e3:.0f} ms each side"), flush=True)
        found.append(_pair(load, folder / f"pair-{number}", session_first=number % 2 == 1))
        with_it, without = found[-1]
        print(progress.ended(f"{with_it * 1e3:.2f} and {without * 1e3:.2f} ms a step"), flush=True)
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


def _pair(load: Load, folder: Path, *, session_first: bool) -> tuple[float, float]:
    """Mean seconds of a step with a session and without, of the slower rank.

    Raises:
        RuntimeError: a rank did not end well, or not in time.
    """
    sides = [SESSION, PLAIN] if session_first else [PLAIN, SESSION]
    ranks = {side: _Ranks(side, load, folder / side.split()[0]) for side in sides}

    def give_up() -> None:
        for one in ranks.values():
            one.kill()

    patience = threading.Timer(_SLACK_S + 20 * load.steps * load.wait_s, give_up)
    patience.start()
    took_s = dict.fromkeys(sides, 0.0)
    try:
        for side in sides:
            ranks[side].take_turn()  # imports and the steps that warm up
        for turn in range(load.steps // TURN_STEPS):
            for side in sides if turn % 2 else reversed(sides):
                took_s[side] += ranks[side].take_turn()
        for side in sides:
            ranks[side].end()
    finally:
        patience.cancel()
        give_up()
    return took_s[SESSION] / load.steps, took_s[PLAIN] / load.steps


class _Ranks:
    """The ranks of one side, which take turns with those of the other."""

    def __init__(self, side: str, load: Load, folder: Path) -> None:
        """Start them; they stop before their first step."""
        folder.mkdir(parents=True)
        self._side = side
        spec = json.dumps({"side": side, "folder": str(folder), **asdict(load)})
        command = [sys.executable, "-m", "benchmarks.preempt.steady_child", spec]
        self._all = [
            subprocess.Popen(
                [*command, str(rank)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD)
        ]

    def take_turn(self) -> float:
        """Have them run as many steps as a turn has; how many seconds these took the slower one."""
        self._go_on()
        return max(float(self._heard(rank)) for rank in self._all)

    def end(self) -> None:
        """Have them run to their end."""
        self._go_on()
        if any(rank.wait() for rank in self._all):
            raise RuntimeError(f"a rank of the {self._side} did not end well")

    def kill(self) -> None:
        """What is left of them; idempotent."""
        for rank in self._all:
            rank.kill()
            rank.wait()

    def _go_on(self) -> None:
        for rank in self._all:
            assert rank.stdin is not None
            rank.stdin.write("go on\n")
            rank.stdin.flush()

    def _heard(self, rank: "subprocess.Popen[str]") -> str:
        assert rank.stdout is not None
        for line in rank.stdout:
            if line.startswith(TURN):
                return line.removeprefix(TURN)
        raise RuntimeError(f"a rank of the {self._side} ended with {rank.wait()}")


def _products(seconds: float) -> int:
    """As many as take about so long here, with as many processes at it as there are ranks."""
    command = [sys.executable, "-m", "benchmarks.preempt.steady_child", "calibrate", str(seconds)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WORLD)]
    counts = [int(rank.communicate(timeout=_SLACK_S)[0].split()[-1]) for rank in ranks]
    return max(1, round(mean(counts)))


class Turns:
    """What a rank's loop calls at the beginning of each step: it stops there when it is the other side's turn."""

    def __init__(self, warm_up: int, steps: int) -> None:
        """``warm_up``: steps that are not counted, before ``steps`` that are."""
        self.total = warm_up + steps + 1  # at the beginning of the last one the last that counts has ended
        self._left = 0  # of this turn; the first thing to do is to wait for one
        self._first: int | None = warm_up
        self._began_s = self._took_s = 0.0

    def step_begins(self) -> None:
        """The step before, if there was one, has ended just now."""
        if self._began_s:
            self._took_s += time.perf_counter() - self._began_s
        if not self._left:
            if self._began_s:
                print(f"{TURN}{self._took_s}", flush=True)
            sys.stdin.readline()
            self._took_s, self._left = 0.0, TURN_STEPS if self._first is None else self._first
            self._first = None
        self._left -= 1
        self._began_s = time.perf_counter()
