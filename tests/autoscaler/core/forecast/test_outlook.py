"""What is expected: as wide as the surprises were, of the size of what was seen, and nothing where nothing is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, Demand
from ebbtide_autoscaler.core.forecast.experts import DAY, Array, guesses, mix
from ebbtide_autoscaler.core.forecast.outlook import ENOUGH, LEADS, Expected, Outlook, outlook
from tests.examples import examples


def made(means: Array, peak: float = 1.0) -> Demand:
    return Demand(5000, tuple(None if math.isnan(one) else Bin(float(one), float(one * peak)) for one in means))


def a_day(days: float, *, noise: float = 0.0, seed: int = 0, low: float = 0.4) -> Array:
    """Demand with a hump a day, from ``low`` to 1, times 100."""
    at = np.arange(int(days * DAY))
    hump = low + (1 - low) * (0.5 - 0.5 * np.cos(2 * np.pi * at / DAY))
    found: Array = 100 * hump * np.exp(np.random.default_rng(seed).normal(size=len(at)) * noise)
    return found


def test_with_no_history_nothing_is_expected() -> None:
    for one in (Demand(), made(np.full(ENOUGH, 5.0)), made(np.full(100, np.nan))):
        assert outlook(one).most(0.9, 300.0, 5.0) is None
    assert outlook(made(np.full(ENOUGH + 1, 5.0))).most(0.9, 300.0, 5.0) == pytest.approx(5.0)


@given(level=st.floats(0.01, 1e6), peak=st.floats(1.0, 5.0), share=st.floats(0.0, 1.0))
@settings(max_examples=examples(30))
def test_what_never_changes_is_expected_to_stay(level: float, peak: float, share: float) -> None:
    one = outlook(made(np.full(2 * DAY, level), peak))
    assert [expected.lead_s for expected in one.expected] == [lead * BIN_S for lead in LEADS]
    for expected in one.expected:
        assert expected.quantile(share) == pytest.approx(level * peak) and expected.error < 1e-6


@given(scale=st.floats(1e-3, 1e3), share=st.sampled_from([0.1, 0.5, 0.9, 0.99]))
@settings(max_examples=examples(20))
def test_the_unit_does_not_matter(scale: float, share: float) -> None:
    means = a_day(2.5, noise=0.1)
    one, other = outlook(made(means, 1.3)), outlook(made(means * scale, 1.3))
    for mine, theirs in zip(one.expected, other.expected, strict=True):
        assert theirs.quantile(share) == pytest.approx(mine.quantile(share) * scale)
        assert theirs.error == pytest.approx(mine.error)


def test_higher_shares_are_never_lower() -> None:
    one = outlook(made(a_day(3.4, noise=0.2), 1.5))
    for lead_s in (60.0, 900.0, 2e4):
        most = [one.most(share, lead_s, 50.0) or 0.0 for share in (0.1, 0.5, 0.9, 0.99)]
        assert most == sorted(most)


def test_the_morning_is_expected_before_it_comes_once_it_was_seen() -> None:
    means = a_day(6.0, noise=0.02)
    night = 5 * DAY + 20  # an hour and a half past the trough; four hours later it is higher by half
    one = outlook(made(means[:night]))
    then = one.expected[LEADS.index(48)]
    assert means[night - 1] < 45.0 and means[night + 47] > 58.0
    assert then.guess == pytest.approx(means[night + 47], rel=0.1)
    new = outlook(made(means[night - 100 : night]))  # with no day before it goes by what is there
    assert new.expected[LEADS.index(48)].guess < 48.0


@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize("lead", [1, 12])
def test_a_share_of_cases_is_that_share(noise: float, lead: int) -> None:
    means, hits = a_day(6.0, noise=noise, seed=3), []
    for end in range(3 * DAY, 6 * DAY - lead, 17):
        [one] = outlook(made(means[:end]), (lead,)).expected
        hits.append(means[end - 1 + lead] <= one.quantile(0.9))
    assert 0.8 <= np.mean(hits) <= 0.97  # 50 draws of 0.9: a standard deviation is 0.04


def test_bursts_within_a_bin_count_as_far_as_they_came() -> None:
    means = a_day(3.0)
    peaks = means * np.where(np.arange(len(means)) % 10 == 0, 4.0, 1.1)
    demand = Demand(0, tuple(Bin(float(mean), float(peak)) for mean, peak in zip(means, peaks, strict=True)))
    [one] = outlook(demand, (1,)).expected
    assert one.quantile(0.5) < 1.3 * one.guess and one.quantile(0.97) > 3.5 * one.guess


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.9))
@settings(max_examples=examples(20))
def test_gaps_make_it_wider_or_silent_and_never_zero_or_endless(seed: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    means = a_day(2.2, noise=0.1, seed=seed)
    means[rng.random(len(means)) < missing] = np.nan
    for expected in outlook(made(means)).expected:
        for share in (0.0, 0.5, 1.0):
            assert 10.0 < expected.quantile(share) < 1000.0
        assert 0.0 <= expected.error < 2.0


def test_an_hour_of_silence_is_bridged_and_a_longer_one_is_not() -> None:
    means = a_day(0.8)  # no lead reaches a time that was seen yesterday
    means[-12:] = np.nan
    assert outlook(made(means)).expected
    means[-13:] = np.nan
    nothing = outlook(made(means))
    assert (nothing.made, tuple(nothing.expected), nothing.surges) == (5000 + len(means) - 1, (), ())


@given(st.lists(st.sampled_from([0.0, 1e-12, 1.0, 1e9]), min_size=30, max_size=400))
@settings(max_examples=examples(30))
def test_whatever_demand_there_was_there_is_a_number(values: list[float]) -> None:
    for expected in outlook(made(np.array(values))).expected:
        assert 0.0 <= expected.quantile(0.0) <= expected.quantile(1.0) < math.inf
        assert not math.isnan(expected.error)


@given(st.integers(1, 287), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20))
def test_no_guess_knows_what_came_later(lead: int, seed: int) -> None:
    """Else errors would be told too small: each guess of the past must be as it was made then."""
    logs = np.log(a_day(2.3, noise=0.3, seed=seed))
    end = int(np.random.default_rng(seed).integers(300, len(logs)))
    whole, then = guesses(logs, lead), guesses(logs[:end], lead)
    np.testing.assert_array_equal(whole[:, :end], then)
    np.testing.assert_array_equal(mix(logs, whole, lead)[:end], mix(logs[:end], then, lead))


def test_the_mix_is_about_as_good_as_the_best_of_its_guesses() -> None:
    for logs in (np.log(a_day(10.0, noise=0.05)), np.cumsum(np.random.default_rng(1).normal(size=10 * DAY)) * 0.02):
        for lead in LEADS:
            of = guesses(logs, lead)
            scored = slice(3 * DAY, -lead)
            errors = [np.nanmean(np.abs(logs[3 * DAY + lead :] - one[scored])) for one in of]
            error = np.mean(np.abs(logs[3 * DAY + lead :] - mix(logs, of, lead)[scored]))
            assert error < 1.15 * min(errors)


def guessed(*guesses: tuple[float, float]) -> Outlook:
    """(How far ahead, demand then) each."""
    return Outlook(0, tuple(Expected(lead_s, guess, np.zeros(1), np.zeros(1)) for lead_s, guess in guesses))


def test_between_now_and_what_is_expected_it_goes_in_a_straight_line() -> None:
    one = guessed((300.0, 20.0), (900.0, 80.0))
    found = {lead_s: one.running_in(lead_s, 10.0) for lead_s in (0.0, 30.0, 150.0, 300.0, 600.0, 900.0, 5000.0)}
    assert found == {0.0: 10.0, 30.0: 11.0, 150.0: 15.0, 300.0: 20.0, 600.0: 50.0, 900.0: 80.0, 5000.0: 80.0}


def test_where_nothing_is_expected_it_stays_as_it_is() -> None:
    assert guessed().running_in(60.0, 7.0) == 7.0


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=4), st.floats(0.0, 1e4), st.floats(0.0, 2e4))
def test_it_never_leaves_what_is_there_and_what_is_expected(guesses: list[float], now: float, lead_s: float) -> None:
    one = guessed(*((lead * BIN_S, guess) for lead, guess in zip(LEADS, guesses, strict=False)))
    assert min(now, *guesses) - 1e-6 <= one.running_in(lead_s, now) <= max(now, *guesses) + 1e-6


def test_the_peak_of_a_time_is_that_of_no_time_before_it() -> None:
    one = guessed((300.0, 100.0), (3600.0, 20.0))
    found = {lead_s: one.most(0.95, lead_s, 60.0) for lead_s in (0.0, 150.0, 300.0, 1950.0, 3600.0, 9000.0)}
    assert found == {0.0: 60.0, 150.0: 80.0, 300.0: 100.0, 1950.0: 60.0, 3600.0: 20.0, 9000.0: 20.0}


@given(st.lists(st.floats(0.0, 1e4), max_size=4), st.floats(0.0, 1e4), st.floats(0.0, 2e4), st.floats(0.0, 2e4))
def test_who_asks_later_is_told_of_the_same_times(guesses: list[float], now: float, by_s: float, lead_s: float) -> None:
    one = guessed(*((lead * BIN_S, guess) for lead, guess in zip(LEADS, guesses, strict=False)))
    later, then = one.later(by_s), one.running_in(by_s, now)
    assert later.running_in(lead_s, then) == pytest.approx(one.running_in(by_s + lead_s, now), rel=1e-6, abs=1e-3)
    assert all(expected.lead_s > 0.0 for expected in later.expected)
    assert later.made * BIN_S <= one.made * BIN_S + by_s < (later.made + 1) * BIN_S
