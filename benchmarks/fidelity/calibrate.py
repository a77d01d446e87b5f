"""Times and speeds from one live run, for a simulator that plays others. Pure.

How long moves take is folded from the ledger by the product's own code (`simulate.measured`): medians. How fast a
replica is comes from what users saw: the replicas that were ready in each second are given, the requests are played at
them one by one, and four figures are turned until the simulated times to the first token and between tokens are spread
as the measured ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from benchmarks.demo.client import Outcome as Seen
from benchmarks.fidelity.live import Lived
from benchmarks.fidelity.replay import Model, asked
from ebbtide_simulator.model.batching import seconds_of_bin
from ebbtide_simulator.model.engine import Engine, Times
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.recorded.recording import Recording
from ebbtide_simulator.traffic.draws import Load
from ebbtide_simulator.traffic.requests import RequestQueue
from ebbtide_simulator.traffic.singles import Drawn
from ebbtide_simulator.traffic.traces import Array

SHARES: Array = np.linspace(0.05, 0.95, 19)  # of requests, at which two spreads are compared
KV_TOKENS = 40_000.0  # 128 MiB of KV cache at 3 KiB a token (6 layers, 4 heads of 64, bf16): never full here
CHUNK_TOKENS = 1024.0  # the pool's file: max_num_batched_tokens
FIRST_GUESS = (20_000.0, 2_000.0, 0.02, 0.02)  # prompt and answer tokens a second, of a step, of a first token
ROUNDS = 60  # of the fit, at most
TURN = 0.1  # by which a figure is turned to see what follows: more than a bin of the simulator's histograms (6 %)
STEP_MOST = 0.7  # a factor of two
DAMPED = 1e6  # no step is so small that it helps
ENOUGH = 1e-4  # of what is left, gained by a round


@dataclass(frozen=True, slots=True)
class Users:
    """What users saw, or what the simulator says they would: seconds at each of `SHARES`."""

    ttft_s: Array
    tpot_s: Array


def users(seen: Sequence[Seen]) -> Users:
    """Of a live run."""
    ttft_s = np.array([one.ttft_s for one in seen])
    tpot_s = np.array([(one.total_s - one.ttft_s) / (one.tokens - 1) for one in seen if one.tokens > 1])
    return Users(np.quantile(ttft_s, SHARES), np.quantile(tpot_s, SHARES))


def at_shares(counts: Array, shares: Array) -> Array:
    """Of a histogram of `batching`; within a bin a straight line on its logarithmic scale."""
    middle = np.log(seconds_of_bin(np.arange(len(counts) + 1)))
    edges = middle - (middle[1] - middle[0]) / 2
    found: Array = np.exp(np.interp(shares, np.append(0.0, np.cumsum(counts)) / counts.sum(), edges))
    return found


def calibrated(lived: Lived, one: Recording) -> Model:
    """Everything that a replay needs, of this run alone."""
    name = next(iter(one.endpoints))
    spec = one.endpoints[name]
    workers = {job.spec.name: job.spec.workers_max for job in one.jobs}
    times = replace(one.durations.times(Times(), workers), start_spread=0.0)
    load_of = _loads(lived, round(one.span_s))
    figures = fitted(
        lambda engine: _played(load_of(engine), engine, one.course[Use.READY], spec.ttft_slo_s, spec.tpot_slo_s),
        users(lived.outcomes),
    )
    engine, front_s = _engine(figures), figures[3]
    return Model(times, engine, median(one.durations.drain_s[name]), front_s)


def _loads(lived: Lived, span_s: int) -> Callable[[Engine], Load]:
    return lambda engine: asked(lived, engine, span_s)


def _engine(figures: Sequence[float]) -> Engine:
    prefill, decode, step_s, _ = figures
    return Engine(
        prefill_tok_s=prefill,
        decode_tok_s=decode,
        step_s=step_s,
        chunk_tokens=CHUNK_TOKENS,
        kv_tokens=KV_TOKENS,
        park_bytes=0,
    )


def _played(load: Load, engine: Engine, ready: Sequence[int], ttft_slo_s: float, tpot_slo_s: float) -> Users:
    """The requests at as many replicas as there were."""
    queue = RequestQueue(Drawn(load, engine, (0, 0)), ttft_slo_s, tpot_slo_s)
    for second in range(len(load.work_s)):
        queue.serve(second + 1, ready[min(second, len(ready) - 1)])
    times = queue.times()
    return Users(at_shares(times["ttft_s"], SHARES), at_shares(times["tpot_s"], SHARES))


def off(found: Users, was: Users, front_s: float) -> Array:
    """How far one spread is from the other, share by share: what their logarithms differ by."""
    ttft = np.log((found.ttft_s + front_s) / was.ttft_s)
    tpot = np.log(found.tpot_s / was.tpot_s)
    both: Array = np.concatenate([ttft, tpot])
    return both


def fitted(play: Callable[[Engine], Users], was: Users) -> tuple[float, ...]:
    """Speeds with which ``play`` is spread as what was seen: least squares, by Levenberg and Marquardt.

    All figures are positive and turned by factors, so steps are of their logarithms.
    """

    def at(logs: Array) -> Array:
        figures = np.exp(logs)
        return off(play(_engine(figures.tolist())), was, float(figures[3]))

    best, damping = np.log(FIRST_GUESS), 1.0
    here = at(best)
    for _ in range(ROUNDS):
        slopes = np.column_stack([(at(best + TURN * one) - here) / TURN for one in np.eye(len(best))])
        square = slopes.T @ slopes
        while damping < DAMPED:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ here)
            there = at(best + np.clip(step, -STEP_MOST, STEP_MOST))
            if (there**2).sum() < (here**2).sum():
                break
            damping *= 4.0
        else:
            break
        gained = 1.0 - (there**2).sum() / (here**2).sum()
        best, here, damping = best + np.clip(step, -STEP_MOST, STEP_MOST), there, damping / 4.0
        if gained < ENOUGH:
            break
    return tuple(np.exp(best).tolist())
