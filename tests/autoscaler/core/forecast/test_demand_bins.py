"""Demand is kept as it was heard: no second twice, none made up, and what was not heard stays unknown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_autoscaler.core.forecast import demand_bins as module
from ebbtide_autoscaler.core.forecast.demand_bins import (
    BIN_S,
    HEARD,
    KEPT,
    Bin,
    Demand,
    OpenBin,
    add_sample,
    bin_of,
    grow,
)

START_S = 1000 * BIN_S


def fold(samples: list[tuple[float, float]]) -> tuple[OpenBin | None, list[OpenBin]]:
    """Samples are (seconds since the one before, demand)."""
    one, closed, now_s = None, list[OpenBin](), START_S
    for after_s, value in samples:
        one, more = add_sample(one, value, since_s=now_s, now_s=now_s + after_s)
        now_s += after_s
        closed += more
    return one, closed


@given(st.lists(st.tuples(st.floats(0.0, 1000.0), st.floats(0.0, 1e6)), min_size=1, max_size=30))
def test_no_second_is_lost_or_counted_twice(samples: list[tuple[float, float]]) -> None:
    one, closed = fold(samples)
    assert one is not None
    bins = [*closed, one]
    assert [bin.number for bin in bins] == list(range(1000, 1000 + len(bins)))
    assert math.isclose(sum(bin.heard_s for bin in bins), sum(after for after, _ in samples), abs_tol=1e-4)
    assert math.isclose(
        sum(bin.area for bin in bins), sum(after * value for after, value in samples), rel_tol=1e-6, abs_tol=1e-3
    )
    assert all(bin.heard_s <= BIN_S + 1e-6 for bin in bins)
    assert all(bin.area <= bin.peak * bin.heard_s * (1 + 1e-9) + 1e-3 for bin in bins), "a mean is below its peak"


def test_a_bin_is_known_if_it_was_heard_for_half_of_it() -> None:
    assert OpenBin(7, HEARD * BIN_S, HEARD * BIN_S * 4.0, 9.0).closed() == Bin(4.0, 9.0)
    assert OpenBin(7, HEARD * BIN_S - 1.0, 1e3, 9.0).closed() is None


def test_silence_is_neither_zero_nor_as_before() -> None:
    one, _ = add_sample(None, 5.0, since_s=START_S, now_s=START_S + 200.0)
    # Nothing for two hours: the next sample speaks for its own second.
    late_s = START_S + 7200.0
    one, closed = add_sample(one, 9.0, since_s=late_s, now_s=late_s + 1.0)
    assert closed[0].closed() == Bin(5.0, 5.0)
    assert all(bin.closed() is None for bin in closed[1:]) and one.number == bin_of(late_s)


def test_bins_of_which_nothing_was_heard_are_told_by_the_gap_that_they_leave() -> None:
    """A clock that is set from 1970 to today passes millions of bins at once: they are no records of a ledger."""
    one, _ = add_sample(None, 5.0, since_s=0.0, now_s=200.0)
    for now_s in (3 * BIN_S, 1.7e9):
        late, closed = add_sample(one, 9.0, since_s=now_s, now_s=now_s)
        assert closed == [one] and late == OpenBin(bin_of(now_s))


def test_what_cannot_be_demand_is_refused() -> None:
    with pytest.raises(ValueError, match="number of requests"):
        add_sample(None, -1.0, since_s=0.0, now_s=1.0)


@given(st.integers(0, 50), st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True))
def test_bins_stand_at_their_numbers_whatever_is_missing_or_comes_again(first: int, numbers: list[int]) -> None:
    numbers = sorted(first + number for number in numbers)
    value = {number: Bin(float(number), float(number)) for number in numbers}
    one = grow(Demand(), [(number, value[number]) for number in numbers])
    assert one.first == numbers[0] and one.end == numbers[-1] + 1
    assert {one.first + at: bin for at, bin in enumerate(one.bins) if bin} == value
    assert grow(one, [(number, Bin(-1.0, -1.0)) for number in numbers]) == one, "what is there is kept"


def test_old_bins_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    one = grow(Demand(), [(number, Bin(number, number)) for number in range(10, 20)])
    assert (one.first, [bin.mean for bin in one.bins if bin]) == (17, [17, 18, 19])
    assert grow(one, [(10**6, Bin(1.0, 1.0))]).bins == (Bin(1.0, 1.0),), "a gap of years takes no memory"
    assert KEPT == 4032
