"""How long a decision and a whole tick take at 100, 1,000 and 10,000 slots. ``python -m benchmarks.decide [--quick]``.

The pure parts of the arbiter on a pool in mid-life (``large_pool``): ``decide`` alone; ``tick``, which also turns
reports into facts, applies every event and checks the promises after it; and ``tick``, with the instructions and routes
that follow. Not in it: the ledger's fsync, and the calls to Ray. Two cases: *steady*, where nothing has to move, as in
most ticks; and *surge*, where half of the endpoints without a replica are asked for at once.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.large_pool import NOW_S, LargePool, large_pool, with_demand
from benchmarks.rows import Bar, Row, percentile, result, row, write
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.observe.gateway_routes import routes
from ebbtide_autoscaler.core.observe.observation import Limits, Observation
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig, Snapshot
from ebbtide_autoscaler.core.tick.instructions import instruct
from ebbtide_autoscaler.core.tick.tick import TickSettings, tick

SIZES = (104, 1_000, 10_000)  # multiples of 8; 104 stands for 100
ROUNDS = 5
CALLS = {104: 100, 1_000: 60, 10_000: 8}  # per round
CASES = {"steady": 0.0, "surge": 0.5}
KNOBS = TickSettings(PolicyConfig(), Limits())
GOAL_MS = 10.0
SEED = 7


def _decide(pool: LargePool, seen: Observation) -> None:
    state = pool.world.state
    decide(NOW_S, Snapshot(state, traffic(state, seen, NOW_S)), pool.world.memory, KNOBS.policy)


def _step(pool: LargePool, seen: Observation) -> None:
    tick(pool.world, seen, (), NOW_S, KNOBS)


def _tick(pool: LargePool, seen: Observation) -> None:
    world = tick(pool.world, seen, (), NOW_S, KNOBS).world
    routes(world.state, seen)
    instruct(world.state, seen, NOW_S)


PARTS: dict[str, Callable[[LargePool, Observation], None]] = {"decide": _decide, "step": _step, "tick": _tick}


def anew(pool: LargePool) -> LargePool:
    """The same world in new objects, as after a tick in which something happened: nothing is remembered of it."""
    state = pool.world.state
    fresh = replace(state, slots=dict(state.slots), jobs=dict(state.jobs), seats=dict(state.seats))
    return replace(pool, world=replace(pool.world, state=fresh))


def _round(pool: LargePool, part: Callable[[LargePool, Observation], None], worlds: list[Observation]) -> list[float]:
    """Milliseconds of each call."""
    found = []
    for seen in worlds:
        pool = anew(pool)
        begun_s = time.perf_counter()
        part(pool, seen)
        found.append((time.perf_counter() - begun_s) * 1000)
    return found


def measure(quick: bool = False) -> tuple[list[Row], list[Bar]]:
    """All rows, and the bar ``decide_1000``."""
    rows: list[Row] = []
    worst_ms = 0.0
    for size in SIZES:
        pool, random = large_pool(size), Random(SEED)
        for case, surging in CASES.items():
            calls = max(2, CALLS[size] // (5 if quick else 1))
            rounds: dict[str, list[list[float]]] = {part: [] for part in PARTS}
            for number in range((2 if quick else ROUNDS) + 1):
                worlds = [with_demand(pool, random, surging) for _ in range(calls)]
                for name, part in PARTS.items():
                    took_ms = _round(pool, part, worlds)
                    if number:  # the first warms up
                        rounds[name].append(took_ms)
            for name, per_round in rounds.items():
                where = f"{size} slots, {case}"
                rows.append(row(where, f"{name} p50", "ms", [percentile(one, 0.5) for one in per_round]))
                rows.append(row(where, f"{name} p99", "ms", [percentile(one, 0.99) for one in per_round]))
            if size == 1_000:
                every = [one for took_ms in rounds["decide"] for one in took_ms]
                worst_ms = max(worst_ms, percentile(every, 0.99))
    goal = f"p99 of a decision at 1,000 slots under {GOAL_MS:g} ms, steady and in a surge"
    return rows, [Bar("decide_1000", goal, round(worst_ms, 3), worst_ms < GOAL_MS)]


def main() -> None:
    """Print; write to results/ unless it is a quick run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decide", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls, and nothing is written")
    options = parser.parse_args()
    rows, bars = measure(options.quick)
    for one in rows:
        print(f"{one.case:22} {one.metric:12} {one.median:10} {one.unit} ({one.min} .. {one.max}, n={one.n})")
    for bar in bars:
        print(f"{'met   ' if bar.met else 'MISSED'} {bar.bar}: {bar.value}, goal: {bar.goal}")
    if not options.quick:
        print(write(result("decide", "python -m benchmarks.decide", rows, bars)))


if __name__ == "__main__":
    main()
