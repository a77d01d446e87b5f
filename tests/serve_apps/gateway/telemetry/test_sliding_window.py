"""What there was of late, by the second, and what an arbiter is told of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.client.messages import Traffic
from ebbtide_serve.gateway.telemetry.sliding_window import Latest, SlidingWindow
from ebbtide_serve.gateway.telemetry.traffic_counters import ARRIVALS_WINDOW_S, STAYS_WINDOW_S, TrafficCounters

TIMES = st.lists(st.floats(0.0, 100.0), max_size=200).map(sorted)


@given(TIMES, st.floats(0.0, 50.0))
def test_it_counts_what_a_list_would_count_to_the_second(times_s: list[float], later_s: float) -> None:
    recent = SlidingWindow(15, 0.0)
    for at_s in times_s:
        recent.add(at_s, 2.0)
    now_s = (times_s[-1] if times_s else 0.0) + later_s
    surely = sum(at_s > now_s - 14.0 for at_s in times_s)
    perhaps = sum(at_s > now_s - 16.0 for at_s in times_s)
    assert surely <= recent.count(now_s) <= perhaps
    assert recent.total(now_s) == pytest.approx(2.0 * recent.count(now_s))


def test_a_rate_is_never_over_time_before_the_first_nor_over_less_than_a_second() -> None:
    recent = SlidingWindow(15, 100.0)
    for _ in range(6):
        recent.add(100.2)
    assert recent.per_s(100.5) == 6.0
    assert recent.per_s(103.0) == 2.0
    assert recent.per_s(114.0) == pytest.approx(6 / 14)
    assert recent.per_s(200.0) == 0.0


@given(TIMES, st.floats(0.0, 50.0))
def test_what_it_keeps_does_not_grow_with_what_there_was(times_s: list[float], later_s: float) -> None:
    recent = SlidingWindow(15, 0.0)
    for at_s in times_s:
        for _ in range(3):
            recent.add(at_s)
        recent.count(at_s)
        assert len(recent._seconds) <= 16
    recent.count((times_s[-1] if times_s else 0.0) + later_s + 16.0)
    assert not recent._seconds


def steady_rate(per_s: int) -> list[float]:
    """What is told ten times a second of so many events a second at even distances."""
    recent, told = SlidingWindow(ARRIVALS_WINDOW_S, 0.0), list[float]()
    for tenth in range(1, 600):
        for number in range(per_s // 10):
            recent.add((tenth - 1 + number / (per_s // 10)) / 10)
        told.append(recent.per_s(tenth / 10))
    return told


@pytest.mark.parametrize("per_s", [20, 240])
def test_a_steady_rate_is_told_within_a_window_of_which_one_second_may_be_missing(per_s: int) -> None:
    rates = [rate / per_s for rate in steady_rate(per_s)[10 * ARRIVALS_WINDOW_S :]]
    assert min(rates) >= 14 / 15 - 1e-9 and max(rates) <= 1.0 + 1e-9


def test_a_steady_rate_is_right_on_average() -> None:
    rates = steady_rate(240)[10 * ARRIVALS_WINDOW_S :]
    assert sum(rates) / len(rates) == pytest.approx(240.0, rel=0.01)


class SetClock:
    """It says what it is set to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return 1e9 + self.now_s


def traffic(counters: TrafficCounters) -> Traffic:
    nobody: Any = SimpleNamespace(
        held=lambda name: 0,
        held_bytes=lambda name: 0,
        oldest_held_s=lambda name: 0.0,
        held_max_s=lambda name: 0.0,
        inflight=lambda name: 0,
        seat_inflight=lambda name: {},
    )
    return counters.traffic("chat", nobody, nobody)


def test_arrivals_are_averaged_and_stays_are_of_those_that_were_answered() -> None:
    clock = SetClock()
    counters = TrafficCounters(clock)
    assert traffic(counters).arriving_per_s == 0.0
    for stay_s in (1.0, 2.0, 6.0):
        clock.now_s += 1.0
        counters.arrived("chat")
        counters.ended("chat", completed=True, stay_s=stay_s)
    counters.arrived("chat")
    counters.ended("chat", completed=False, stay_s=500.0)
    found = traffic(counters)
    assert (found.stays, found.stayed_s, found.arrivals, found.completed, found.failed) == (3, 9.0, 4, 3, 1)
    assert found.arriving_per_s == pytest.approx(4 / 3)


def test_each_is_forgotten_after_its_own_time_and_totals_never() -> None:
    clock = SetClock()
    counters = TrafficCounters(clock)
    counters.arrived("chat")
    counters.ended("chat", completed=True, stay_s=2.0)
    clock.now_s += ARRIVALS_WINDOW_S
    assert (traffic(counters).arriving_per_s, traffic(counters).stays) == (0.0, 1)
    clock.now_s += STAYS_WINDOW_S - ARRIVALS_WINDOW_S
    found = traffic(counters)
    assert (found.stays, found.stayed_s, found.arrivals, found.completed) == (0, 0.0, 1, 1)
    assert found.last_arrival_s == 1e9 + 1000.0


def test_one_endpoints_requests_are_not_anothers() -> None:
    counters = TrafficCounters(SetClock())
    counters.arrived("other")
    counters.ended("other", completed=True, stay_s=3.0)
    assert (traffic(counters).arriving_per_s, traffic(counters).stays, traffic(counters).arrivals) == (0.0, 0, 0)


@given(TIMES, st.floats(0.0, 50.0), st.integers(1, 20))
def test_the_latest_are_those_of_the_window_and_never_more_than_so_many(
    times_s: list[float], later_s: float, most: int
) -> None:
    latest = Latest[float](10.0, most)
    for at_s in times_s:
        latest.add(at_s, at_s)
    now_s = (times_s[-1] if times_s else 0.0) + later_s
    assert list(latest.values(now_s)) == [at_s for at_s in times_s[-most:] if at_s >= now_s - 10.0]
