"""How much more may be asked for in a minute, from how it has changed of late."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_autoscaler.core.forecast.outlook import MOST_ROOM, Outlook
from ebbtide_autoscaler.core.forecast.surge import ENOUGH, KEPT, LEADS, SAMPLE_S, Samples, Surge


def told(values: list[float], *, gap_after: int | None = None) -> Samples:
    samples, now_s = Samples(), 1000.0
    for number, value in enumerate(values):
        samples.hear(now_s, value)
        samples.hear(now_s + 1.0, 1e9)  # between two samples nothing is taken in
        now_s += SAMPLE_S if number != gap_after else 100 * SAMPLE_S
    return samples


def outlook(samples: Samples) -> Outlook:
    return Outlook(0, (), samples.surges())


def test_steady_demand_needs_no_room() -> None:
    assert outlook(told([5.0] * ENOUGH)).room(0.95, 60.0, 2.0) == 0.0


def test_a_few_samples_say_nothing() -> None:
    assert told([5.0] * (ENOUGH - 1)).surges() == ()
    assert Outlook(0, ()).room(0.95, 60.0, 2.0) == 0.0


def test_after_a_gap_all_is_begun_anew() -> None:
    assert told([5.0] * 2 * ENOUGH, gap_after=ENOUGH + 10).surges() == ()


def test_room_is_what_demand_grew_beyond_in_so_many_cases_less_what_may_wait() -> None:
    one = Surge(60.0, np.array([1.0] * 90 + [1.2] * 10))
    found = Outlook(0, (), (one,))
    lead_s = 40.0 + SAMPLE_S / 2
    assert found.room(0.95, 40.0, 2.0) == pytest.approx(0.2 - 2.0 / lead_s)
    assert found.room(0.85, 40.0, 2.0) == 0.0
    assert found.room(0.95, 40.0, 60.0) == 0.0, "a queue within the promised time absorbs it"


def test_less_room_where_more_replicas_come_sooner() -> None:
    values = np.exp(np.random.default_rng(1).normal(0.0, 0.05, 400).cumsum() * 0.3 + 2.0)
    found = outlook(told(list(values)))
    rooms = [found.room(0.95, lead_s, 2.0) for lead_s in (5.0, 45.0, 150.0)]
    assert rooms == sorted(rooms)
    assert rooms[0] < rooms[2]


def test_room_is_bounded() -> None:
    values = [1.0, 50.0] * ENOUGH
    assert outlook(told(values)).room(0.95, 60.0, 0.0) <= MOST_ROOM


FACTORS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=200).map(sorted)


@given(FACTORS, st.floats(0.0, 0.999))
def test_a_quantile_is_not_passed_in_that_share_of_cases_and_is_one_of_them(factors: list[float], share: float) -> None:
    found = Surge(15.0, np.array(factors)).quantile(share)
    assert found in factors
    assert sum(one <= found for one in factors) >= share * len(factors)
    assert sum(one < found for one in factors) <= share * len(factors)


@given(FACTORS, st.floats(0.0, 0.999), st.floats(0.0, 600.0), st.floats(0.0, 60.0))
def test_room_is_a_share_and_less_where_requests_may_wait_longer(
    factors: list[float], share: float, lead_s: float, slo_s: float
) -> None:
    one = Outlook(0, (), (Surge(60.0, np.array(factors)),))
    found = one.room(share, lead_s, slo_s)
    assert 0.0 <= found <= MOST_ROOM
    assert one.room(share, lead_s, slo_s + 1.0) <= found
    assert one.room(share, lead_s, lead_s * 10.0 + 75.0) == 0.0, "all that it grows by may wait"


def test_each_lead_tells_by_what_demand_had_changed_so_much_later() -> None:
    """It grows by a hundredth from sample to sample."""
    found = told([1.01**number for number in range(200)]).surges()
    assert [one.lead_s for one in found] == [lead * SAMPLE_S for lead in LEADS]
    for lead, one in zip(LEADS, found, strict=True):
        at_end = 1.01**lead  # where it is no longer counted as a quarter of the mean
        assert one.quantile(0.9) == pytest.approx(at_end)


def test_what_was_told_is_as_often_right_as_was_said() -> None:
    """Whatever the noise is like: said from two hours, it holds in the two hours that follow."""
    random, hits = np.random.default_rng(4), []
    for _ in range(20):
        values = np.exp(random.standard_t(4, 2 * KEPT) * 0.1)
        known, then = told(list(values[:KEPT])).surges(), values[KEPT:]
        hits += [np.mean(then[4:] / then[:-4] <= one.quantile(0.9)) for one in known if one.lead_s == 60.0]
    assert 0.87 < np.mean(hits) < 0.93


def test_only_the_last_two_hours_count() -> None:
    wild = [1.0, 3.0] * ENOUGH
    assert outlook(told(wild)).room(0.95, 5.0, 2.0) > 0.0
    assert outlook(told(wild + [5.0] * KEPT)).room(0.95, 5.0, 2.0) == 0.0


def test_after_a_gap_there_is_room_again_once_enough_is_known() -> None:
    wild = [5.0] * 3 + [1.0, 3.0] * ENOUGH
    found = outlook(told(wild, gap_after=2)).room(0.95, 5.0, 2.0)
    assert found == outlook(told(wild[3:])).room(0.95, 5.0, 2.0) > 0.0


@given(st.lists(st.sampled_from([0.0, 1e-9, 1.0, 1e6]), min_size=ENOUGH, max_size=ENOUGH + 40))
def test_whatever_demand_there_was_factors_are_numbers(values: list[float]) -> None:
    for one in told(values).surges():
        assert math.isfinite(one.quantile(0.0)) and 0.0 < one.quantile(0.0) <= one.quantile(1.0) < math.inf


def test_nothing_asked_for_needs_no_room() -> None:
    assert told([0.0] * 2 * ENOUGH).surges() == ()


def test_who_hears_seldom_learns_as_much() -> None:
    often, seldom = Samples(), Samples()
    for second in range(0, 7200, 15):
        often.hear(second, 100.0 + second // 60 % 7)
        if second % 60 == 0:
            seldom.hear(second, 100.0 + second // 60 % 7)
    assert len(seldom.surges()) == len(often.surges())
    assert seldom.surges()[-1].quantile(0.9) == often.surges()[-1].quantile(0.9)
