"""Replicas that are ready when somebody has said that they will be needed."""

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.spec import Scheduled
from ebbtide_autoscaler.core.demand.schedule import SPARE, scheduled_replicas
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, Memory
from tests.autoscaler.closed_loop import an_endpoint
from tests.builders.policy import CHAT, NOW, S0, S1, SEAT0, SEAT1, a_pool, kinds, look, signals, with_ready

NINE = Scheduled(days=(0, 1, 2, 3, 4), from_minute=9 * 60, minutes=120, replicas=2, zone="Europe/Berlin")
SPEC = replace(an_endpoint(), scheduled=(NINE,))


def berlin(*when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("at_s", "count"),
    [
        (berlin(2026, 11, 23, 8, 58), 0),  # a Monday
        (berlin(2026, 11, 23, 8, 59), 2),  # a start takes 40 s, and may take half as long again
        (berlin(2026, 11, 23, 9, 0), 2),
        (berlin(2026, 11, 23, 10, 59), 2),
        (berlin(2026, 11, 23, 11, 0), 0),
        (berlin(2026, 11, 22, 9, 30), 0),  # a Sunday
        (berlin(2026, 3, 30, 9, 0), 2),  # the first Monday of summer time: nine is an hour earlier in UTC
    ],
)
def test_they_are_there_in_time_by_the_clock_on_the_wall(at_s: float, count: int) -> None:
    assert scheduled_replicas(SPEC, at_s, 40.0)[0] == count


@settings(deadline=None)
@given(
    minutes=st.integers(1, 3 * 24 * 60),
    from_minute=st.integers(0, 24 * 60 - 1),
    days=st.sets(st.integers(0, 6), min_size=1),
    lead_s=st.floats(0.0, 2e5),
    at_s=st.integers(int(berlin(2026, 3, 25)), int(berlin(2026, 4, 3))),
)
def test_they_are_wanted_from_the_start_that_is_in_time_to_the_end_without_a_break(
    minutes: int, from_minute: int, days: set[int], lead_s: float, at_s: int
) -> None:
    """Also where it is over before a replica that is started now would answer; clocks change on 29 March."""
    one = replace(NINE, days=tuple(days), from_minute=from_minute, minutes=minutes)
    midnights = [datetime(2026, 3, 15, tzinfo=ZoneInfo("Europe/Berlin")) + timedelta(days=day) for day in range(30)]
    begins = [
        (midnight + timedelta(minutes=from_minute)).timestamp() for midnight in midnights if midnight.weekday() in days
    ]
    wanted = any(begin_s - SPARE * lead_s <= at_s < begin_s + 60 * minutes for begin_s in begins)
    assert scheduled_replicas(replace(SPEC, scheduled=(one,)), at_s, lead_s)[0] == (2 if wanted else 0)


@pytest.mark.parametrize(
    ("from_nine_s", "count"), [(-601, 0), (-600, 3), (-300, 3), (-1, 3), (0, 3), (299, 3), (300, 0)]
)
def test_a_schedule_that_is_shorter_than_its_lead_does_not_switch_off_before_it_begins(
    from_nine_s: int, count: int
) -> None:
    short = replace(SPEC, scheduled=(replace(NINE, minutes=5, replicas=3),))
    assert scheduled_replicas(short, berlin(2026, 11, 23, 9) + from_nine_s, 400.0)[0] == count


def test_what_begins_before_midnight_goes_on_after_it() -> None:
    night = replace(SPEC, scheduled=(replace(NINE, days=(4,), from_minute=23 * 60, minutes=3 * 60, zone="UTC"),))
    friday = datetime(2026, 11, 27, 23, 30, tzinfo=ZoneInfo("UTC")).timestamp()
    assert scheduled_replicas(night, friday, 0.0)[0] == 2
    assert scheduled_replicas(night, friday + 2 * 3600, 0.0)[0] == 2
    assert scheduled_replicas(night, friday + 3 * 3600, 0.0)[0] == 0
    assert scheduled_replicas(night, friday - 24 * 3600 + 7200, 0.0)[0] == 0


def test_of_several_the_largest_counts() -> None:
    more = replace(SPEC, scheduled=(NINE, replace(NINE, replicas=3, minutes=30)))
    at_s = berlin(2026, 11, 23, 9, 10)
    assert scheduled_replicas(more, at_s, 0.0)[0] == 3
    assert scheduled_replicas(more, at_s + 1800, 0.0)[0] == 2


def test_the_policy_starts_them_before_anybody_asks_and_says_why() -> None:
    always = Scheduled(days=tuple(range(7)), from_minute=0, minutes=24 * 60, replicas=1)
    found = look(a_pool(endpoints=(an_endpoint(CHAT, scheduled=(always,)),)))
    assert kinds(found) == ["GrantSeat"]
    assert "1 replica is scheduled for 00:00 UTC" in found.moves[0].reason
    assert look(a_pool()).moves == (), NOW


@pytest.mark.proves("what is scheduled is aimed at")
def test_they_stay_while_nobody_asks() -> None:
    always = Scheduled(days=tuple(range(7)), from_minute=0, minutes=24 * 60, replicas=2)
    state = with_ready(a_pool(endpoints=(an_endpoint(CHAT, scheduled=(always,)),)), SEAT0, (S0,))
    assert look(with_ready(state, SEAT1, (S1,)), for_s=100.0).moves == ()


@pytest.mark.proves("what is scheduled is aimed at at once")
@pytest.mark.parametrize("inflight", [0, 5, 50])
def test_demand_for_as_many_or_more_does_not_hold_up_what_is_scheduled(inflight: int) -> None:
    """Demand must have lasted for a moment before it counts; what was promised for now need not."""
    always = Scheduled(days=tuple(range(7)), from_minute=0, minutes=24 * 60, replicas=2)
    state = with_ready(a_pool(endpoints=(an_endpoint(CHAT, scheduled=(always,)),)), SEAT0, (S0,))
    before = Memory(endpoints={CHAT: EndpointMemory(aim=1)})
    found = look(state, traffic=signals(inflight=inflight, last_arrival_s=NOW), memory=before)
    assert kinds(found) == ["GrantSeat"]
    assert "2 replicas are scheduled" in found.moves[0].reason
