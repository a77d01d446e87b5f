"""What is about to happen, by what is expected."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.ids import EndpointName, JobName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.lookahead import look_ahead
from ebbtide_autoscaler.core.forecast.outlook import Expected, Outlook
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, EndpointSignals, Memory, Snapshot
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import CHAT, CONFIG, NOW, S0, S1, S2, SEAT0, a_pool, with_job, with_ready

HOUR_S = 3600.0
ONE = EndpointSignals(inflight=2, arriving_per_s=1.0, stay_s=2.0, last_arrival_s=NOW, known=True)


def expecting(guess: float, lead_s: float = HOUR_S) -> Outlook:
    return Outlook(1, (Expected(lead_s, guess, np.array([0.0, 0.1]), np.log1p(np.array([0.2]))),))


def busy_pool() -> Snapshot:
    """One replica, and a job on the other two slots."""
    state = with_ready(a_pool(), SEAT0, (S0,), at_s=NOW - HOUR_S)
    state = with_job(state, a_job("train", workers_max=2), (S1, S2), at_s=NOW - HOUR_S)
    return Snapshot(state, {CHAT: ONE})


def test_more_demand_says_who_will_step_aside_and_why() -> None:
    snapshot = busy_pool()
    found = look_ahead(
        NOW, NOW + HOUR_S, Snapshot(snapshot.state, snapshot.traffic, {}, {CHAT: expecting(8.0)}), Memory(), CONFIG
    )
    [row] = found["endpoints"]
    assert (row["now"], row["then"], row["replicas"], row["replicas_then"], row["slots"]) == (2.0, 8.0, 1, 2, 1)
    assert row["most"] == pytest.approx(8.0 * np.exp(0.1), abs=0.01) and row["error"] == 0.2
    [move] = found["moves"]
    assert move["job"] == JobName("train") and "per replica" in move["reason"]


def test_less_demand_says_what_comes_back() -> None:
    snapshot = busy_pool()
    found = look_ahead(
        NOW, NOW + HOUR_S, Snapshot(snapshot.state, snapshot.traffic, {}, {CHAT: expecting(0.0)}), Memory(), CONFIG
    )
    [row] = found["endpoints"]
    assert (row["replicas"], row["replicas_then"], row["slots"]) == (1, 0, -1)
    assert [move["kind"] for move in found["moves"]] == ["drain_seat"]


def test_without_a_forecast_demand_stays_as_it_is() -> None:
    found = look_ahead(NOW, NOW + HOUR_S, busy_pool(), Memory(), CONFIG)
    [row] = found["endpoints"]
    assert (row["then"], row["most"], row["slots"], found["moves"]) == (2.0, None, 0, [])


def test_half_way_is_half_of_it() -> None:
    snapshot = busy_pool()
    later = Snapshot(snapshot.state, snapshot.traffic, {}, {CHAT: expecting(8.0)})
    [row] = look_ahead(NOW, NOW + HOUR_S / 2, later, Memory(), CONFIG)["endpoints"]
    assert row["then"] == 5.0


def at_once(requests: int) -> EndpointSignals:
    return replace(ONE, inflight=requests, arriving_per_s=requests / 2)


def roomy_pool() -> PoolState:
    """Starts take 150 s, and there may be many replicas."""
    state = a_pool()
    chat = state.endpoints[CHAT]
    return replace(
        state,
        endpoints={CHAT: replace(chat, start_s=150.0, spec=replace(chat.spec, replicas_min=0, replicas_max=10_000))},
    )


@given(demand=st.tuples(*[st.integers(1, 200)] * 4), at=st.integers(0, 3))
def test_it_is_what_the_policy_says_when_that_time_has_come(demand: tuple[int, ...], at: int) -> None:
    """An outlook that comes true: then, what is left of it is as far ahead as it will be."""
    leads_s = (0.0, 900.0, HOUR_S, 4 * HOUR_S)
    state, surprises, off = roomy_pool(), np.zeros(30), np.zeros(30)

    def expected(since: int) -> dict[EndpointName, Outlook]:
        later = range(since + 1, len(leads_s))
        return {
            CHAT: Outlook(
                1, tuple(Expected(leads_s[n] - leads_s[since], float(demand[n]), surprises, off) for n in later)
            )
        }

    early = Snapshot(state, {CHAT: at_once(demand[0])}, {}, expected(0))
    [row] = look_ahead(NOW, NOW + leads_s[at], early, Memory(), CONFIG)["endpoints"]
    there = replace(at_once(demand[at]), last_arrival_s=NOW + leads_s[at])
    late = Snapshot(state, {CHAT: there}, {}, expected(at))
    [then] = look_ahead(NOW + leads_s[at], NOW + leads_s[at], late, Memory(), CONFIG)["endpoints"]
    assert (row["then"], row["replicas_then"]) == (demand[at], then["replicas_then"])
    assert row["most"] == demand[at]


@pytest.mark.parametrize("later_s", [60.0, HOUR_S])
@pytest.mark.parametrize("guess", [None, 0.0, 8.0])
@pytest.mark.parametrize("memory", [Memory(), Memory({CHAT: EndpointMemory(aim=2, under_since_s=NOW - 1.0)})])
def test_while_all_gateways_are_silent_demand_is_unknown_and_nothing_moves(
    guess: float | None, later_s: float, memory: Memory
) -> None:
    outlooks = {} if guess is None else {CHAT: expecting(guess)}
    silent = Snapshot(busy_pool().state, {CHAT: EndpointSignals()}, {}, outlooks)
    found = look_ahead(NOW, NOW + later_s, silent, memory, CONFIG)
    [row] = found["endpoints"]
    assert (row["known"], row["now"], row["then"], row["most"], row["error"]) == (False, None, None, None, None)
    assert (row["replicas"], row["replicas_then"], row["slots"], found["moves"]) == (1, 1, 0, [])


@pytest.mark.parametrize("guess", [None, 0.0])
@pytest.mark.parametrize("there", [replace(ONE, unheard_s=20.0), EndpointSignals(known=True, unheard_s=20.0)])
def test_while_one_gateway_is_silent_nothing_is_taken_away(guess: float | None, there: EndpointSignals) -> None:
    outlooks = {} if guess is None else {CHAT: expecting(guess)}
    found = look_ahead(NOW, NOW + HOUR_S, Snapshot(busy_pool().state, {CHAT: there}, {}, outlooks), Memory(), CONFIG)
    [row] = found["endpoints"]
    assert (row["known"], row["unheard_s"], row["replicas_then"], found["moves"]) == (True, 20.0, 1, [])


def test_while_one_gateway_is_silent_replicas_are_added_all_the_same() -> None:
    there = Snapshot(busy_pool().state, {CHAT: replace(ONE, unheard_s=20.0)}, {}, {CHAT: expecting(8.0)})
    [row] = look_ahead(NOW, NOW + HOUR_S, there, Memory(), CONFIG)["endpoints"]
    assert (row["then"], row["replicas_then"]) == (8.0, 2)
