"""Replicas that are ready when somebody has said that they will be needed."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from ebbtide.pool.spec import Scheduled
from ebbtide_autoscaler.scheduled import scheduled
from ebbtide_autoscaler.signals import EndpointMemory, Memory
from tests.autoscaler.closed_loop import an_endpoint
from tests.autoscaler.test_policy import CHAT, NOW, S0, SEAT0, a_pool, kinds, look, signals, with_ready

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
    assert scheduled(SPEC, at_s, 40.0)[0] == count


def test_what_begins_before_midnight_goes_on_after_it() -> None:
    night = replace(SPEC, scheduled=(replace(NINE, days=(4,), from_minute=23 * 60, minutes=3 * 60, zone="UTC"),))
    friday = datetime(2026, 11, 27, 23, 30, tzinfo=ZoneInfo("UTC")).timestamp()
    assert scheduled(night, friday, 0.0)[0] == 2
    assert scheduled(night, friday + 2 * 3600, 0.0)[0] == 2
    assert scheduled(night, friday + 3 * 3600, 0.0)[0] == 0
    assert scheduled(night, friday - 24 * 3600 + 7200, 0.0)[0] == 0


def test_of_several_the_largest_counts() -> None:
    more = replace(SPEC, scheduled=(NINE, replace(NINE, replicas=3, minutes=30)))
    at_s = berlin(2026, 11, 23, 9, 10)
    assert scheduled(more, at_s, 0.0)[0] == 3
    assert scheduled(more, at_s + 1800, 0.0)[0] == 2


def test_the_policy_starts_them_before_anybody_asks_and_says_why() -> None:
    always = Scheduled(days=tuple(range(7)), from_minute=0, minutes=24 * 60, replicas=1)
    found = look(a_pool(endpoints=(an_endpoint(CHAT, scheduled=(always,)),)))
    assert kinds(found) == ["GrantSeat"]
    assert "1 replica is scheduled for 00:00 UTC" in found.moves[0].reason
    assert look(a_pool()).moves == (), NOW


@pytest.mark.parametrize("inflight", [0, 5, 50])
def test_demand_for_as_many_or_more_does_not_hold_up_what_is_scheduled(inflight: int) -> None:
    """Demand must have lasted for a moment before it counts; what was promised for now need not."""
    always = Scheduled(days=tuple(range(7)), from_minute=0, minutes=24 * 60, replicas=2)
    state = with_ready(a_pool(endpoints=(an_endpoint(CHAT, scheduled=(always,)),)), SEAT0, (S0,))
    before = Memory(endpoints={CHAT: EndpointMemory(aim=1)})
    found = look(state, traffic=signals(inflight=inflight, last_arrival_s=NOW), memory=before)
    assert kinds(found) == ["GrantSeat"]
    assert "2 replicas are scheduled" in found.moves[0].reason
