"""The noise of traffic that is multiplied: kept, or as of many crowds."""

import numpy as np
import pytest

from ebbtide_simulator.model.engine import ENGINES
from ebbtide_simulator.traffic.draws import load
from ebbtide_simulator.traffic.noise import APART_S, aggregate
from ebbtide_simulator.traffic.traces import Array, Rates, Requests, Tokens

ENGINE = ENGINES["llama-8b-h100"]
MINUTES = 3000


def rates(sigma: float) -> Rates:
    at_s = np.arange(0.0, 60.0 * MINUTES, 60.0, dtype=np.float64)
    unknown = np.full(MINUTES, np.nan)
    return Rates(at_s, np.full(MINUTES, 100.0), np.full(MINUTES, sigma), unknown, unknown)


def bursty(seed: int = 0) -> Requests:
    """An hour of about ten requests a second, some of its seconds much busier than others."""
    random = np.random.default_rng(seed)
    counts = random.poisson(random.gamma(0.5, 20.0, 3600))
    counts[-1] = 1
    at_s = np.repeat(np.arange(3600.0), counts) + 0.25
    return Requests(at_s, np.full(len(at_s), 100.0), np.arange(len(at_s), dtype=np.float64))


def spread(values: Array) -> float:
    return float(values.std() / values.mean())


def by_minute(trace: Rates | Requests, factor: float) -> Array:
    requests = load(trace, ENGINE, factor, (100, 10), 1).requests
    found: Array = requests[: len(requests) // 60 * 60].reshape(-1, 60).sum(axis=1)
    return found


def test_a_rates_noise_grows_by_the_root_of_its_factor() -> None:
    trace, factor = rates(20.0), 16.0
    kept, (now, rest) = by_minute(trace, factor), aggregate(trace, factor, 1)
    assert isinstance(now, Rates) and rest == factor
    drawn = by_minute(now, rest)
    assert drawn.mean() == pytest.approx(kept.mean(), rel=0.02)
    assert spread(kept) == pytest.approx(0.2, rel=0.1)
    assert spread(drawn) == pytest.approx(0.2 / 4, rel=0.1)


def test_less_of_a_rate_has_the_more_noise() -> None:
    now, rest = aggregate(rates(20.0), 0.25, 1)
    assert isinstance(now, Rates) and rest == 0.25
    assert now.noise_per_s[0] == 40.0


@pytest.mark.parametrize("factor", [2.0, 9.0, 9.5])
def test_recorded_bursts_of_many_crowds_do_not_coincide(factor: float) -> None:
    trace = bursty()
    now, rest = aggregate(trace, factor, 1)
    assert isinstance(now, Requests) and rest == 1.0
    assert len(now.at_s) == pytest.approx(factor * len(trace.at_s), rel=0.01)
    assert (np.diff(now.at_s) >= 0).all() and now.at_s[0] >= 0 and now.at_s[-1] < 3600
    per_s = [np.bincount(one.at_s.astype(int), minlength=3600).astype(np.float64) for one in (trace, now)]
    assert spread(per_s[1]) == pytest.approx(spread(per_s[0]) / factor**0.5, rel=0.15)
    assert spread(load(trace, ENGINE, factor, (1, 1), 1).requests) > 0.9 * spread(per_s[0]), "kept, it is as it was"


def test_every_request_of_a_stream_is_there_with_its_own_lengths_and_near_its_minute() -> None:
    trace = bursty()
    now, _ = aggregate(trace, 2.0, 1)
    assert isinstance(now, Requests)
    assert (np.bincount(now.output_tokens.astype(int)) == 2).all()
    for at_s, which in zip(now.at_s, now.output_tokens.astype(int), strict=True):
        assert 0.0 <= (at_s - trace.at_s[which] + 1e-9) % 3600.0 <= APART_S + 1e-6


def test_prompts_begin_alike_within_a_stream_as_recorded_and_never_in_two() -> None:
    at_s, tokens = np.array([0.0, 90.0, 179.0]), np.full(3, 10.0)
    trace = Requests(at_s, tokens, np.array([0.0, 1.0, 2.0]), np.array([7, 7, 8, 9]), np.array([0, 1, 3, 4]))
    now, _ = aggregate(trace, 3.0, 1)
    assert isinstance(now, Requests) and now.blocks is not None
    found = [
        (int(which), now.blocks[begin:end].tolist())
        for which, begin, end in zip(now.output_tokens, now.blocks_from, now.blocks_from[1:], strict=False)
    ]
    wanted = [(which, [name + 10 * stream for name in names]) for stream in range(3) for which, names in RECORDED]
    assert sorted(found) == sorted(wanted)


RECORDED = ((0, [7]), (1, [7, 8]), (2, [9]))


def test_equal_seeds_shift_alike() -> None:
    (one, _), (again, _), (other, _) = (aggregate(bursty(), 3.0, seed) for seed in (1, 1, 2))
    assert isinstance(one, Requests) and isinstance(again, Requests) and isinstance(other, Requests)
    assert one.at_s.tolist() == again.at_s.tolist() != other.at_s.tolist()


def test_what_says_nothing_of_its_noise_stays_as_it_is() -> None:
    trace = Tokens(np.array([0.0, 60.0]), np.array([5.0, 6.0]))
    assert aggregate(trace, 4.0, 1) == (trace, 4.0)
    once = bursty()
    assert aggregate(once, 1.0, 1) == (once, 1.0)
