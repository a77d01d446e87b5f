"""Demand by arrivals and stays: what is asked for, however many replicas there are."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_autoscaler.core.demand.load import ARRIVALS_WINDOW_S, estimate_load, running
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from tests.autoscaler.closed_loop import an_endpoint

SPEC = an_endpoint(target_requests=4, ttft_slo_s=1.0)
STEADY = EndpointSignals(inflight=8, arriving_per_s=4.0, stay_s=2.0, known=True)

COUNTS = st.integers(0, 10_000)
SIGNALS = st.builds(
    EndpointSignals,
    held=COUNTS,
    inflight=COUNTS,
    arriving_per_s=st.floats(0.0, 1e4),
    stay_s=st.one_of(st.just(0.0), st.floats(0.01, 600.0)),
    known=st.just(True),
)


def test_what_arrives_times_how_long_it_stays_is_what_runs_at_once() -> None:
    assert running(STEADY) == 8.0
    assert estimate_load(SPEC, STEADY, 2, 45.0).replicas(4) == 2


def test_it_does_not_depend_on_how_many_replicas_there_are() -> None:
    crowded = replace(STEADY, inflight=4)  # as much as one replica takes in
    assert {estimate_load(SPEC, crowded, count, 45.0).running for count in range(5)} == {8.0}


def test_before_anything_was_answered_all_that_is_there_counts() -> None:
    cold = EndpointSignals(held=9, inflight=0, arriving_per_s=0.6, known=True)
    assert estimate_load(SPEC, cold, 0, 45.0).replicas(4) == 3


def test_where_requests_stay_for_longer_than_arrivals_are_averaged_their_number_counts() -> None:
    long = EndpointSignals(inflight=5, arriving_per_s=2.0, stay_s=40.0, known=True)
    assert running(long) == 5.0


def test_what_waits_is_nobodys_business_if_it_is_done_before_another_replica_answers() -> None:
    waiting = replace(STEADY, held=50)
    assert (
        estimate_load(SPEC, waiting, 4, 45.0).extra == 0.0
    )  # four replicas do 4 a second more than arrive: gone in 13 s
    assert estimate_load(SPEC, waiting, 4, 5.0).extra > 0.0
    assert estimate_load(SPEC, waiting, 2, 45.0).extra > 0.0  # two never catch up


def test_what_waits_counts_as_far_as_it_is_to_be_answered_soon() -> None:
    waiting = replace(STEADY, held=100)
    assert (
        estimate_load(SPEC, waiting, 2, 0.0).extra == 100 * 2.0 / 10.0
    )  # within ten times the promised second, 2 s each


@given(SIGNALS, st.integers(0, 1000), st.floats(0.0, 600.0), st.floats(0.0, 0.5))
def test_never_less_than_what_runs_nor_more_than_all_there_is(
    signals: EndpointSignals, replicas: int, lead_s: float, room: float
) -> None:
    found = estimate_load(SPEC, signals, replicas, lead_s)
    assert found.running >= 0.0
    assert 0.0 <= found.extra <= signals.held + signals.inflight
    assert found.replicas(4) <= found.replicas(4, room)


@given(SIGNALS, st.integers(0, 100), st.floats(0.0, 600.0))
def test_more_waiting_never_asks_for_fewer(signals: EndpointSignals, replicas: int, lead_s: float) -> None:
    more = replace(signals, held=signals.held + 10)
    assert estimate_load(SPEC, more, replicas, lead_s).replicas(4) >= estimate_load(
        SPEC, signals, replicas, lead_s
    ).replicas(4)


@given(st.floats(0.0, 1e4), st.floats(0.01, ARRIVALS_WINDOW_S), COUNTS, st.floats(0.0, 1.0), st.integers(0, 1000))
def test_neither_counts_nor_replicas_change_what_runs_where_arrivals_tell(
    per_s: float, stay_s: float, held: int, share: float, replicas: int
) -> None:
    inflight = int(per_s * stay_s * share)
    found = EndpointSignals(held, inflight, arriving_per_s=per_s, stay_s=stay_s, known=True)
    assert estimate_load(SPEC, found, replicas, 45.0).running == per_s * stay_s
    assert estimate_load(SPEC, found, replicas, 45.0).smooth


@given(st.floats(0.1, 100.0), st.floats(0.1, ARRIVALS_WINDOW_S), COUNTS, st.integers(1, 50), st.floats(1.0, 600.0))
def test_nothing_is_added_for_what_ready_replicas_answer_before_a_new_one_could(
    per_s: float, stay_s: float, held: int, spare: int, lead_s: float
) -> None:
    replicas = math.ceil(per_s * stay_s / SPEC.target_requests) + spare
    answered = (replicas * SPEC.target_requests / stay_s - per_s) * lead_s
    found = EndpointSignals(held, arriving_per_s=per_s, stay_s=stay_s, known=True)
    assert (estimate_load(SPEC, found, replicas, lead_s).extra == 0.0) is (held <= answered)


@given(SIGNALS, st.integers(0, 1000), st.floats(0.0, 600.0))
def test_whatever_is_said_there_are_numbers(signals: EndpointSignals, replicas: int, lead_s: float) -> None:
    found = estimate_load(SPEC, signals, replicas, lead_s)
    assert math.isfinite(found.running) and math.isfinite(found.extra)
    assert found.replicas(4) >= 0 and found.why


@given(SIGNALS, st.integers(0, 100), st.integers(1, 100), st.floats(0.0, 600.0))
def test_more_replicas_never_ask_for_more(signals: EndpointSignals, replicas: int, more: int, lead_s: float) -> None:
    assert (
        estimate_load(SPEC, signals, replicas + more, lead_s).extra
        <= estimate_load(SPEC, signals, replicas, lead_s).extra
    )


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("stay_s", [2.0, 10.0, 40.0])
def test_no_request_counts_twice(replicas: int, stay_s: float) -> None:
    """Nobody is held, and those in flight are just those that arrive: what it takes is five, however many are there."""
    steady = EndpointSignals(inflight=20, arriving_per_s=20.0 / stay_s, stay_s=stay_s, known=True)
    assert estimate_load(SPEC, steady, replicas, 45.0).replicas(4) == 5


def test_streams_that_have_not_ended_are_seen_among_short_requests() -> None:
    """Their stay is not known yet; what has ended says only how long the short ones take."""
    signals = EndpointSignals(inflight=9, arriving_per_s=2.0, stay_s=0.5, known=True)
    found = estimate_load(SPEC, signals, 1, 45.0)
    assert found.replicas(4) == 2
    assert not found.smooth, "a count at one moment has to last"


def test_a_few_more_than_expected_are_chance() -> None:
    signals = EndpointSignals(inflight=6, arriving_per_s=6.0, stay_s=0.5, known=True)
    assert estimate_load(SPEC, signals, 1, 45.0).running == 3.0
