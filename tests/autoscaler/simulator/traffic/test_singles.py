"""Requests one by one are the load: as many, and as much work, in each second."""

from dataclasses import astuple, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_simulator.traffic.draws import MINUTE_S, Load, lasting, load
from ebbtide_simulator.traffic.singles import Drawn, Singles
from ebbtide_simulator.traffic.traces import Rates, Requests
from tests.autoscaler.simulator.small_scenes import ENGINE

SECONDS = 150


def all_of(drawn: Drawn) -> Singles:
    minutes = [drawn.minute(number) for number in range(-(-len(drawn.load.work_s) // MINUTE_S))]
    names = [one.name for one in fields(Singles)]
    return Singles(*(np.concatenate([getattr(one, name) for one in minutes]) for name in names))


def work_of(found: Singles) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return found.prompt / ENGINE.prefill_tok_s + found.output / ENGINE.decode_tok_s


def a_rate(per_s: float) -> Load:
    at_s = np.array([0.0, float(SECONDS)])
    flat = np.full(2, per_s)
    return load(Rates(at_s, flat, flat / 4, np.full(2, 900.0), np.full(2, 120.0)), ENGINE, 1.0, (1, 1), 7)


@given(per_s=st.floats(0.1, 40.0), seed=st.integers(0, 5))
def test_each_second_has_as_many_as_the_load_says_and_as_much_work(per_s: float, seed: int) -> None:
    given_load = a_rate(per_s)
    found = all_of(Drawn(given_load, ENGINE, (seed, 0)))
    second = found.came_s.astype(int)
    seconds = len(given_load.work_s)
    assert np.all(np.diff(found.came_s) >= 0)
    np.testing.assert_array_equal(np.bincount(second, minlength=seconds), given_load.requests)
    work_s = np.bincount(second, weights=work_of(found), minlength=seconds)
    # Answers are whole tokens, and nothing is shorter than one.
    rounding_s = given_load.requests * (1 / ENGINE.prefill_tok_s + 1 / ENGINE.decode_tok_s)
    assert np.all(np.abs(work_s - given_load.work_s) <= rounding_s + 1e-9)


def test_a_minute_in_which_nobody_asks_has_nobody() -> None:
    seconds = np.zeros(180)
    seconds[170] = 1.0
    found = all_of(Drawn(Load(seconds, seconds, 100.0, 50.0), ENGINE, (0, 0)))
    assert found.came_s.astype(int).tolist() == [170]


def test_they_are_the_same_for_everybody_and_others_with_another_seed() -> None:
    given_load = a_rate(20.0)
    one, again, other = (all_of(Drawn(given_load, ENGINE, seed)) for seed in ((1, 0), (1, 0), (2, 0)))
    for mine, theirs in zip(astuple(one), astuple(again), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(one.came_s, other.came_s)


RECORDED = Requests(
    np.array([0.25, 0.5, 61.0, 62.75]),
    np.array([100.0, 200.0, 300.0, 0.0]),
    np.array([10.0, 20.0, 30.0, 5.0]),
    np.array([1, 2, 1, 2, 3, 9]),
    np.array([0, 2, 5, 6, 6]),
)


def test_recorded_ones_come_as_they_were() -> None:
    found = all_of(Drawn(load(RECORDED, ENGINE, 1.0, (1, 1), 0), ENGINE, (0, 0)))
    np.testing.assert_array_equal(found.came_s, RECORDED.at_s)
    np.testing.assert_array_equal(found.prompt, [100.0, 200.0, 300.0, 1.0])
    np.testing.assert_array_equal(found.output, RECORDED.output_tokens)
    assert list(zip(found.begin, found.end, strict=True)) == [(0, 2), (2, 5), (5, 6), (6, 6)]


def test_a_trace_that_begins_anew_has_the_same_requests_again() -> None:
    once = load(RECORDED, ENGINE, 1.0, (1, 1), 0)
    seconds = len(once.work_s)
    found = all_of(Drawn(lasting(once, 2 * seconds, 1.0), ENGINE, (0, 0)))
    np.testing.assert_allclose(found.came_s, sorted([60.0, 61.75, 62.25, 62.5, 123.0, 124.75, 125.25, 125.5]))


@pytest.mark.parametrize("factor", [3.0, 0.5])
def test_copies_are_others_requests_of_the_same_lengths_in_the_same_second(factor: float) -> None:
    many = replace(RECORDED, at_s=RECORDED.at_s)
    given_load = load(many, ENGINE, factor, (1, 1), 3)
    found = all_of(Drawn(given_load, ENGINE, (0, 0)))
    np.testing.assert_array_equal(
        np.bincount(found.came_s.astype(int), minlength=len(given_load.work_s)), given_load.requests
    )
    assert set(found.output) <= set(RECORDED.output_tokens)
    assert given_load.rows is not None
    prefixes = [tuple(given_load.rows.blocks[a:b]) for a, b in zip(found.begin, found.end, strict=True)]
    assert len({one for one in prefixes if one}) == len([one for one in prefixes if one]), "none is another's"


def test_copies_of_two_that_share_a_prefix_share_one() -> None:
    """The second request begins as the first one does; so do their copies, each with its own."""
    pair = Requests(
        np.array([0.0, 1.0]), np.full(2, 600.0), np.full(2, 5.0), np.array([4, 5, 4, 6]), np.array([0, 2, 4])
    )
    drawn = load(pair, ENGINE, 6.0, (1, 1), 1)
    rows = drawn.rows
    assert rows is not None
    first = [rows.blocks[at] for at in rows.begin]
    counts = [int(one) for one in drawn.requests]
    assert min(counts) > 1
    shared = set(first[: counts[0]]) & set(first[counts[0] :])
    assert len(shared) == min(counts)
