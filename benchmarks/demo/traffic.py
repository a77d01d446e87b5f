"""The demo's requests: arrival times and token lengths, from a real trace or from its published figures.

The tide is a script of phases (a small wave, a pause, a large wave that rises). Within a phase requests arrive as in
the trace, with time compressed so that the phase gets the number of requests it wants; lengths are the trace's,
scaled down to the small model. What is scripted is the tide, since an hour of the trace has none of its own.

Without a trace the same is drawn from figures measured on azure_conv_2023 (Azure LLM inference trace, CC-BY-4.0,
Splitwise, ISCA'24): a count per second with variance/mean 1.4, mean prompt 1155 and mean answer 211 tokens.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet

BURSTINESS = 1.4  # variance / mean of the requests per second in the trace
MEAN_PROMPT_TOKENS = 1155
MEAN_ANSWER_TOKENS = 211
PROMPT_SCALE = 1 / 8  # to a model with a context of 1024 tokens
ANSWER_SCALE = 1 / 5
PROMPT_LIMITS = (4, 600)
ANSWER_LIMITS = (4, 120)


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when it arrives, seconds after the tide began, and how long it is, in tokens."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the tide with a rate of requests per second."""

    start_s: float
    duration_s: float
    rate_per_s: float


TIDE: tuple[Phase, ...] = (
    Phase(start_s=0.0, duration_s=12.0, rate_per_s=0.5),  # a small wave: the job parks, one replica, the job resumes
    Phase(start_s=75.0, duration_s=105.0, rate_per_s=0.6),  # the tide comes in: parked for long, it restarts smaller
    Phase(start_s=180.0, duration_s=40.0, rate_per_s=8.0),  # and rises: a second replica, the job shrinks again
)


def tide(trace: Path | None, *, seed: int, phases: Sequence[Phase] = TIDE, first: int = 0) -> tuple[Request, ...]:
    """All requests, in order of arrival.

    Args:
        trace: a Parquet file with the columns t_s, in_tok, out_tok; None: generate.
        seed: of the generated traffic; a trace is replayed as it is.
        first: the trace's request to begin with.

    Raises:
        ValueError: the trace cannot be read, or has too few requests.
    """
    wanted = [max(1, round(phase.duration_s * phase.rate_per_s)) for phase in phases]
    rows = _from_trace(trace, first, sum(wanted)) if trace else _generated(random.Random(seed), sum(wanted))
    found: list[Request] = []
    used = 0
    for phase, count in zip(phases, wanted, strict=True):
        part = rows[used : used + count]
        used += count
        first_s, last_s = part[0][0], part[-1][0]
        squeeze = phase.duration_s / max(last_s - first_s, 1e-9)
        found += [
            Request(
                phase.start_s + (at_s - first_s) * squeeze,
                _scaled(prompt, PROMPT_SCALE, PROMPT_LIMITS),
                _scaled(answer, ANSWER_SCALE, ANSWER_LIMITS),
            )
            for at_s, prompt, answer in part
        ]
    return tuple(sorted(found, key=lambda request: request.at_s))


def _scaled(tokens: int, scale: float, limits: tuple[int, int]) -> int:
    return min(max(round(tokens * scale), limits[0]), limits[1])


def _from_trace(trace: Path, first: int, count: int) -> list[tuple[float, int, int]]:
    try:
        table = parquet.read_table(trace, columns=["t_s", "in_tok", "out_tok"]).to_pydict()
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{trace} is no trace with the columns t_s, in_tok, out_tok: {error}") from error
    rows = sorted(zip(table["t_s"], table["in_tok"], table["out_tok"], strict=True))
    if len(rows) < first + count:
        raise ValueError(f"{trace} has {len(rows)} requests, the demo needs {first + count}")
    return [(float(at_s), int(prompt), int(answer)) for at_s, prompt, answer in rows[first : first + count]]


def _generated(draw: random.Random, count: int) -> list[tuple[float, int, int]]:
    """One request per second on average, counts Gamma-Poisson, lengths log-normal with the trace's means."""
    rows: list[tuple[float, int, int]] = []
    second = 0
    while len(rows) < count:
        rate = draw.gammavariate(1 / (BURSTINESS - 1), BURSTINESS - 1)
        arrivals = _poisson(draw, rate)
        rows += [
            (second + draw.random(), _lognormal(draw, MEAN_PROMPT_TOKENS), _lognormal(draw, MEAN_ANSWER_TOKENS))
            for _ in range(arrivals)
        ]
        second += 1
    return sorted(rows[:count])


def _poisson(draw: random.Random, mean: float) -> int:
    count, left = 0, draw.expovariate(1.0)
    while left < mean:
        count += 1
        left += draw.expovariate(1.0)
    return count


def _lognormal(draw: random.Random, mean: float, sigma: float = 1.0) -> int:
    """A whole number, log-normally distributed with this mean; sigma 1 is about the spread of the trace's lengths."""
    return round(mean * draw.lognormvariate(-sigma * sigma / 2, sigma))
