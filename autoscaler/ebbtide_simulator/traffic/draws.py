"""From traces to what one seed's run is given: work by the second, and jobs. Pure; equal seeds draw equal things.

Rates become arrivals: linear in between, noise from minute to minute (AR(1)), more variance within a second than
Poisson's, and lengths around their mean. docs/origins.md has the origins of the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ebbtide.pool.spec import JobSpec
from ebbtide_simulator.model.engine import Engine
from ebbtide_simulator.traffic.traces import Array, Gpus, Jobs, Rates, Requests, Serving, Tokens

MINUTE_S = 60
MEMORY = 0.6  # of the noise from one minute to the next: assumed
DISPERSION = 1.4  # variance of the arrivals within a second by their mean: measured on Azure's conversations of 2023
# A partition is made for the curve of demand, as people see it on a chart, not for a minute's noise.
CURVE_S = 600
LENGTH_SPREAD = 1.0  # standard deviation of a request's work by its mean: assumed (prompts there: 0.96)


@dataclass(frozen=True, slots=True)
class Load:
    """What one endpoint is asked for, by the second; both of shape (seconds,).

    Attributes:
        work_s: replica-seconds that arrive within each second.
        requests: how many requests those are.
        prompt_tokens, output_tokens: of a mean request, over all of it.
        rows: each request, where the trace has them.
        of_second: which of the rows' seconds each one is, of shape (seconds,); None: the same.
    """

    work_s: Array
    requests: Array
    prompt_tokens: float
    output_tokens: float
    rows: "Rows | None" = None
    of_second: "npt.NDArray[np.int64] | None" = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Recorded requests, by the second; all but ``first`` and ``blocks`` of shape (n,).

    Attributes:
        first: which one is the first of each second, and their number; of shape (seconds + 1,).
        part_s: when within its second each comes.
        prompt, output: tokens.
        begin, end: its prefix blocks among ``blocks``.
        blocks: names of prefix blocks, one request's after the other's.
    """

    first: "npt.NDArray[np.int64]"
    part_s: Array
    prompt: Array
    output: Array
    begin: "npt.NDArray[np.int64]"
    end: "npt.NDArray[np.int64]"
    blocks: "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Job:
    """One training job: so many GPU-seconds of work on so many workers.

    Attributes:
        spec: as its pool had it; None: as `run.job_spec` has it.
        until_s: when somebody ends it, whatever is left of its work; None: nobody does.
    """

    submit_s: float
    workers_min: int
    workers_max: int
    work_s: float
    spec: JobSpec | None = None
    until_s: float | None = None


def load(
    trace: Serving, engine: Engine, scale: float, tokens: tuple[float, float], seed: int, *, rows: bool = True
) -> Load:
    """The load that a trace makes, its rate multiplied by ``scale``.

    Args:
        tokens: mean prompt and output tokens, where the trace does not say.
        rows: with each request, where the trace has them; without them the load is the same.
    """
    random = np.random.default_rng(seed)
    if isinstance(trace, Requests):
        return _recorded(trace, engine, scale, random, rows=rows)
    if isinstance(trace, Tokens):
        trace = _rates(trace.at_s, trace.per_s / sum(tokens))
    elif isinstance(trace, Gpus):
        of_one = engine.full / engine.slots / engine.work_s(*tokens)
        trace = _rates(trace.at_s, trace.count * of_one)
    seconds = np.arange(int(trace.at_s[-1]) + MINUTE_S, dtype=np.float64)
    mean = np.interp(seconds, trace.at_s, trace.per_s * scale) * _noise(trace, len(seconds), random)
    prompt, output = _tokens(trace, seconds, tokens)
    # Gamma-Poisson: a rate drawn anew each second, with so much variance that the counts' is DISPERSION of the mean.
    requests = random.poisson(random.gamma(mean / (DISPERSION - 1.0), DISPERSION - 1.0)).astype(np.float64)
    each_s = prompt / engine.prefill_tok_s + output / engine.decode_tok_s
    return Load(lengths(requests, each_s, random), requests, float(prompt.mean()), float(output.mean()))


def _rates(at_s: Array, per_s: Array) -> Rates:
    """Rates of which nothing else is known."""
    unknown = np.full_like(per_s, np.nan)
    return Rates(at_s, per_s, np.zeros_like(per_s), unknown, unknown)


def _recorded(trace: Requests, engine: Engine, scale: float, random: np.random.Generator, *, rows: bool) -> Load:
    """As recorded; a scale other than 1 repeats each request so often on average, within its second."""
    second = trace.at_s.astype(np.int64)
    copies = np.ones(len(second), np.int64) if scale == 1.0 else random.poisson(scale, len(second)).astype(np.int64)
    each_s = trace.prompt_tokens / engine.prefill_tok_s + trace.output_tokens / engine.decode_tok_s
    size = int(second[-1]) + 1
    work_s: Array = np.bincount(second, weights=each_s * copies, minlength=size).astype(np.float64)
    requests: Array = np.bincount(second, weights=copies, minlength=size).astype(np.float64)
    mean = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
    return Load(work_s, requests, *mean, rows=_rows(trace, second, copies, size, random) if rows else None)


def _rows(
    trace: Requests,
    second: "npt.NDArray[np.int64]",
    copies: "npt.NDArray[np.int64]",
    size: int,
    random: np.random.Generator,
) -> Rows:
    """Each request as often as it is repeated: somebody else's of the same lengths, in the same second."""
    which = np.repeat(np.arange(len(second)), copies)
    number = np.arange(len(which)) - np.repeat(np.cumsum(copies) - copies, copies)
    part_s = np.where(number == 0, (trace.at_s - second)[which], random.random(len(which)))
    first = np.concatenate([[0], np.cumsum(np.bincount(second, weights=copies, minlength=size))]).astype(np.int64)
    blocks, begin, end = _blocks(trace, which, number)
    return Rows(first, part_s, trace.prompt_tokens[which], trace.output_tokens[which], begin, end, blocks)


def _blocks(
    trace: Requests, which: "npt.NDArray[np.int64]", number: "npt.NDArray[np.int64]"
) -> "tuple[npt.NDArray[np.int64], ...]":
    """Prefix blocks of each: a copy shares none with the original, but with what the original shares them with."""
    if trace.blocks is None or not len(trace.blocks):
        nothing = np.zeros(len(which), np.int64)
        return np.empty(0, np.int64), nothing, nothing
    begin, end = trace.blocks_from[which], trace.blocks_from[which + 1]
    names = int(trace.blocks.max()) + 1
    found = [trace.blocks[a:b] + names * n for a, b, n in zip(begin, end, number, strict=True)]
    ends = np.cumsum(end - begin)
    return np.concatenate(found) if found else np.empty(0, np.int64), ends - (end - begin), ends


def _noise(trace: Rates, seconds: int, random: np.random.Generator) -> Array:
    """What the rate is multiplied by, held for a minute each: log-normal, with a mean of 1.

    A normal deviation would have to be cut off where it is as large as the rate, and what is left would be more than
    was recorded (by a fifth in a pool that has bursts and little else). Where it is small the two are the same.
    """
    at_s = np.arange(-(-seconds // MINUTE_S)) * float(MINUTE_S)
    per_s = np.interp(at_s, trace.at_s, trace.per_s)
    spread = np.interp(at_s, trace.at_s, trace.noise_per_s) / np.maximum(per_s, 1e-12)
    sigma = np.sqrt(np.log1p(np.where(per_s > 0.0, spread, 0.0) ** 2))
    fresh = random.standard_normal(len(at_s)) * np.sqrt(1.0 - MEMORY**2)
    found = np.empty(len(at_s))
    last = random.standard_normal()
    for minute in range(len(at_s)):
        last = MEMORY * last + fresh[minute]
        found[minute] = last
    return np.repeat(np.exp(found * sigma - sigma**2 / 2.0), MINUTE_S)[:seconds]


def _tokens(trace: Rates, seconds: Array, tokens: tuple[float, float]) -> tuple[Array, Array]:
    found = []
    for mean, instead in zip((trace.prompt_tokens, trace.output_tokens), tokens, strict=True):
        known = np.isfinite(mean) & (mean > 0)
        curve = np.interp(seconds, trace.at_s[known], mean[known]) if known.any() else np.full(len(seconds), instead)
        found.append(curve)
    return found[0], found[1]


def lengths(requests: Array, each_s: Array, random: np.random.Generator) -> Array:
    """Work of so many requests: a Gamma with the mean and variance of their sum."""
    shape = np.maximum(requests, 1e-9) / LENGTH_SPREAD**2
    drawn: Array = np.asarray(random.gamma(shape, each_s * LENGTH_SPREAD**2))
    drawn[requests == 0] = 0.0
    return drawn


def lasting(one: Load, seconds: int, from_s: float) -> Load:
    """The load from ``from_s`` on, for so long; after its end it begins anew."""
    if len(one.work_s) == seconds and not from_s:
        return one
    at = (np.arange(seconds) + int(from_s)) % len(one.work_s)
    return replace(one, work_s=one.work_s[at], requests=one.requests[at], of_second=at)


def jobs(trace: Jobs, keep: float, *, gpus_max: int, shortest_s: float, longest_s: float, seed: int) -> Sequence[Job]:
    """Each of the trace's jobs with probability ``keep``, by submission; those out of bounds are left out."""
    random = np.random.default_rng(seed)
    kept = random.random(len(trace.submit_s)) < keep
    kept &= (trace.gpus <= gpus_max) & (trace.duration_s >= shortest_s) & (trace.duration_s <= longest_s)
    found = []
    for index in np.flatnonzero(kept):
        gpus = int(trace.gpus[index])
        found.append(Job(float(trace.submit_s[index]), gpus, gpus, float(trace.duration_s[index]) * gpus))
    return found


def replicas_needed(one: Load, engine: Engine, stretch_s: int = MINUTE_S) -> Array:
    """So many, stretch by stretch, that none is more than full on average."""
    stretch_s = min(stretch_s, len(one.work_s))
    stretches = len(one.work_s) // stretch_s
    by_stretch = one.work_s[: stretches * stretch_s].reshape(stretches, stretch_s).mean(axis=1)
    needed: Array = np.ceil(by_stretch / engine.full)
    return needed
