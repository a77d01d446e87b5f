"""What a decision and a whole tick cost on one core as the pool grows, in a burst. A part of ``make bench-policy``.

Seconds of the processor, not of the wall: others run beside it. Only decisions that move something count: half of the
endpoints without a replica are asked for at once. Before it was a whole tick in which nothing moved, and since then one
record in twenty has changed, as jobs and replicas report. *decide* is the policy on a snapshot; *tick* is all that the
arbiter does of itself: it takes in reports, makes the snapshot, decides, applies and checks every event, says what is
to be done, and writes the events to a ledger on this disk. *first* is a decision of an arbiter that has just begun and
has looked at nothing yet. *pace* is a loop that is the same whatever ebbtide becomes, before each round: a hint of how
quick the machine was then, and no more, since its pace can change within a round.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, TypeVar

from benchmarks.decide import KNOBS, SEED, anew
from benchmarks.large_pool import NOW_S, LargePool, large_pool, with_demand
from benchmarks.rows import percentile
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.pool.ids import EndpointName, RecordId
from ebbtide.pool.lookup.records import having
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.observe.gateway_routes import routes
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Snapshot
from ebbtide_autoscaler.core.tick.instructions import instruct
from ebbtide_autoscaler.core.tick.tick import tick
from ebbtide_autoscaler.journal.records import encode_event
from ebbtide_autoscaler.process.gc_tuning import collect_seldom

T = TypeVar("T")
SIZES = {104: 200, 304: 200, 1_000: 100, 3_000: 60, 10_000: 30}  # slots, multiples of 8, and how many calls
SLOTS_PER_WORKLOAD = 5  # 200 jobs and endpoints at 1,000 slots, 2,000 at 10,000
SURGING = 0.5
EVERY = 20  # records: one of them has changed
REPORTED = RecordId("1.1")
DECIDE_MS = {1_000: 2.0, 10_000: 30.0}  # p99
ROUNDS = 5  # a machine that others use too is slower for some seconds, and a round is over within a minute
TICK_MS = 100.0  # p99, at 10,000 slots
PACE_LOOK_UPS = 1_000_000  # in a mapping: 0.1 to 0.2 s
PACE_KEYS = 20  # of that mapping


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of the processor at one size, one value a call."""

    slots: int
    workloads: int
    moves: int  # of the decision that moves fewest
    decide_ms: list[float]
    tick_ms: list[float]
    first_ms: list[float]


def costs(slots: int, calls: int, log: EpochLog) -> Costs:
    """What a burst costs at one size; the first call warms up and does not count."""
    collect_seldom()  # as the arbiter does, which has no other pools in its memory
    pool, random = large_pool(slots, workloads=slots // SLOTS_PER_WORKLOAD), Random(SEED)
    state = pool.world.state
    worlds = [with_demand(pool, random, SURGING) for _ in range(calls + 1)]
    signals = [traffic(state, seen, NOW_S) for seen in worlds]
    decided = list(_each(pool, signals, _decide, a_tick_later))
    ticked = list(_each(pool, worlds, lambda one, seen: _tick(one, seen, log), a_tick_later))
    first = list(_each(pool, signals, _decide, anew))
    moves = min(count for count, _ in decided if count)
    return Costs(slots, len(state.jobs) + len(state.endpoints), moves, _ms(decided), _ms(ticked), _ms(first))


def a_tick_later(pool: LargePool) -> LargePool:
    """The pool after a tick without a move, and after that what one in twenty of all has reported."""
    state = anew(pool).world.state
    state = replace(state, slots=having(state.slots, {}), jobs=having(state.jobs, {}), seats=having(state.seats, {}))
    before = replace(pool, world=replace(pool.world, state=state))
    seen = with_demand(before, Random(SEED), 0.0)
    instruct(tick(before.world, seen, (), NOW_S, KNOBS).world.state, seen, NOW_S)
    jobs = {name: replace(job, step=job.step + 1) for name, job in islice(state.jobs.items(), 0, None, EVERY)}
    seats = {name: replace(seat, cause=REPORTED) for name, seat in islice(state.seats.items(), 0, None, EVERY)}
    slots = {name: replace(slot, since_s=NOW_S) for name, slot in islice(state.slots.items(), 0, None, EVERY)}
    state = replace(
        state, slots=having(state.slots, slots), jobs=having(state.jobs, jobs), seats=having(state.seats, seats)
    )
    return replace(pool, world=replace(pool.world, state=state))


def _each(
    pool: LargePool,
    worlds: list[T],
    part: Callable[[LargePool, T], int],
    before: Callable[[LargePool], LargePool],
) -> Iterator[tuple[int, float]]:
    """What each call moves, and how many seconds it takes."""
    for one in worlds:
        fresh = before(pool)
        begun_s = time.process_time()
        count = part(fresh, one)
        yield count, time.process_time() - begun_s


def _ms(found: list[tuple[int, float]]) -> list[float]:
    return [1000 * took_s for count, took_s in found[1:] if count]


def _decide(pool: LargePool, signals: Mapping[EndpointName, EndpointSignals]) -> int:
    decision, _ = decide(NOW_S, Snapshot(pool.world.state, signals), pool.world.memory, KNOBS.policy)
    return len(decision.moves)


def _tick(pool: LargePool, seen: Observation, log: EpochLog) -> int:
    done = tick(pool.world, seen, (), NOW_S, KNOBS)
    durable = log.append([encode_event(event) for event in done.events])
    routes(done.world.state, seen)
    instruct(done.world.state, seen, NOW_S)
    durable.result()
    return len(done.events)


def pace_ms() -> float:
    """Milliseconds of the processor for what the machine does between two rounds."""
    counts: dict[int, int] = {}
    begun_s = time.process_time()
    for one in range(PACE_LOOK_UPS):
        counts[one % PACE_KEYS] = counts.get(one % PACE_KEYS, 0) + 1
    return 1000 * (time.process_time() - begun_s)


def figures(sizes: dict[int, int] = SIZES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Bars and the growth picture, as a part of ``policy.json``: medians of all rounds."""
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ebbtide-decide-", dir=os.environ.get("EBBTIDE_BENCH_DIR")) as folder:
        log = EpochLog.open(Path(folder) / "ledger", writer="benchmark")
        played, paces = [], []
        for _ in range(rounds):
            paces.append(pace_ms())
            played.append([costs(slots, calls, log) for slots, calls in sizes.items()])
        log.close()
    growth = [_point(one) for one in zip(*played, strict=True)]
    bars = {
        f"decide_{one['slots']}_p99_ms": (one["decide_p99_ms"], DECIDE_MS[one["slots"]])
        for one in growth
        if one["slots"] in DECIDE_MS
    }
    largest = max(growth, key=lambda one: int(one["slots"]))
    bars[f"tick_{largest['slots']}_p99_ms"] = largest["tick_p99_ms"], TICK_MS
    return {
        "seeds": 1,
        "took_s": time.perf_counter() - begun_s,
        "bars": {name: {"value": value, "at_most": most, "met": value <= most} for name, (value, most) in bars.items()},
        "pace_ms": round(median(paces), 1),
        "pace_ms_rounds": [round(pace, 1) for pace in paces],
        "growth": growth,
    }


def _point(rounds: Sequence[Costs]) -> dict[str, Any]:
    """One size: medians of the rounds, and every round's p99."""
    parts = ("decide", "tick", "first")
    by_round = [{part: getattr(one, f"{part}_ms") for part in parts} for one in rounds]
    told: dict[str, Any] = {}
    for part in parts:
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            found = [percentile(one[part], share) for one in by_round]
            told[f"{part}_{name}_ms"] = round(median(found), 3)
            if name == "p99":
                told[f"{part}_p99_ms_rounds"] = [round(ms, 3) for ms in found]
    first = rounds[0]
    size = {"slots": first.slots, "workloads": first.workloads, "moves_min": min(one.moves for one in rounds)}
    return size | {"calls": len(first.decide_ms), "rounds": len(rounds)} | told
