"""Room for surges is kept as long as they are seen to hurt."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.demand.surge_headroom import HALF_S, headroom, is_strained
from ebbtide_autoscaler.core.forecast.outlook import Outlook
from ebbtide_autoscaler.core.forecast.surge import Surge
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory
from tests.builders.policy import CHAT, MANY, aims, arriving, up

GOOD = arriving(20.0, ttft_p90_s=0.1, tpot_p90_s=0.02)
STATE = replace(up(16), endpoints={CHAT: replace(up(16).endpoints[CHAT], start_s=52.5)})
# Half as much again, less the promised second, in the minute until more replicas answer: 0.483.
A_HALF_MORE: Mapping[EndpointName, Outlook] = {CHAT: Outlook(0, (), (Surge(60.0, np.array([1.5] * 100)),))}


@pytest.mark.parametrize(
    ("seen", "hurts"),
    [
        (GOOD, False),
        (replace(GOOD, held=1), True),
        (replace(GOOD, ttft_p90_s=MANY.ttft_slo_s / 2), False),
        (replace(GOOD, ttft_p90_s=MANY.ttft_slo_s / 2 + 0.01), True),
        (replace(GOOD, tpot_p90_s=MANY.tpot_slo_s + 0.001), True),
        (replace(GOOD, ttft_p90_s=0.0), True),
        (arriving(0.0), False),
    ],
)
def test_a_queue_slowness_and_not_knowing_are_strain(seen: EndpointSignals, hurts: bool) -> None:
    assert is_strained(MANY, seen) is hurts


def seen_for(minutes: int, each: EndpointSignals, memory: Memory | None = None, since_s: float = 0.0) -> Memory:
    story = [(since_s + 60.0 * minute, each) for minute in range(minutes + 1)]
    return aims(STATE, story, memory, A_HALF_MORE)[1]


def test_what_surges_do_not_hurt_keeps_ever_less_room_for_them() -> None:
    wanted = []
    for minutes in (0, 15, 30, 240):
        memory = seen_for(minutes, GOOD)
        # It comes down by an eighth at a time: what is looked at is what would be wanted by one who begins with less.
        begins = replace(memory, endpoints={CHAT: replace(memory.endpoints[CHAT], aim=1)})
        wanted.append(aims(STATE, [(60.0 * minutes, GOOD)], begins, A_HALF_MORE)[0][-1])
    assert wanted == [15, 13, 12, 10], "half of demand, a quarter, an eighth, nothing, in replicas of four"


def test_one_surge_that_hurts_brings_all_room_back_at_once() -> None:
    memory = seen_for(240, GOOD)
    hurt = replace(GOOD, ttft_p90_s=MANY.ttft_slo_s * 0.6)
    assert aims(STATE, [(14_401.0, hurt)], memory, A_HALF_MORE)[0][-1] == 15


def test_all_room_stays_while_strain_lasts_although_it_is_noted_once_in_a_while() -> None:
    hurt = replace(GOOD, held=1)
    _, memory = aims(STATE, [(float(second), hurt) for second in range(200)], None, A_HALF_MORE)
    for after_s in (200.0, 215.0, 229.0):
        begins = replace(memory, endpoints={CHAT: replace(memory.endpoints[CHAT], aim=1)})
        assert aims(STATE, [(after_s, hurt)], begins, A_HALF_MORE)[0] == [15]


def test_where_surges_hurt_each_few_minutes_room_stays() -> None:
    memory = seen_for(10, GOOD)
    for round_s in range(600, 36_000, 600):
        hurt = replace(GOOD, held=3)
        memory = aims(STATE, [(round_s, hurt)], memory, A_HALF_MORE)[1]
        found, memory = aims(STATE, [(round_s + 300.0, GOOD)], memory, A_HALF_MORE)
        assert found[-1] >= 13


def test_who_says_nothing_of_how_requests_fare_keeps_all_of_it() -> None:
    """As with Serve's own policy class, whose counts have no latency."""
    untold = replace(GOOD, ttft_p90_s=0.0, tpot_p90_s=0.0)
    assert aims(STATE, [(14_400.0, untold)], seen_for(240, untold), A_HALF_MORE)[0][-1] == 15


@given(st.floats(0, 1), st.floats(0, 1e6), st.floats(0, 1e6))
def test_room_only_falls_as_calm_lasts(room: float, first_s: float, more_s: float) -> None:
    assert room >= headroom(room, first_s) >= headroom(room, first_s + more_s) >= 0.0
    assert headroom(room, HALF_S) in (0.0, pytest.approx(room / 2))
    assert headroom(room, 1e5) == 0.0
