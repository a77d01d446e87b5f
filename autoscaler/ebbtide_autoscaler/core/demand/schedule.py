"""Demand that somebody knows of: replicas that are to be ready at set times of the week. Pure."""

from datetime import datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from ebbtide.pool.plural import many
from ebbtide.pool.spec import EndpointSpec, Scheduled

SPARE = 1.5  # of the time that a start took last: one start in ten is taken to need 1.7 times the median


def scheduled_replicas(spec: EndpointSpec, now_s: float, lead_s: float) -> tuple[int, str]:
    """The most replicas scheduled for any moment from now until one that is started now answers, and why; 0: none.

    Any moment counts, not only the last: a short span may be over by then, and some replicas start sooner than most.

    Args:
        spec: of the endpoint.
        now_s: seconds since 1970.
        lead_s: until a replica that is started now answers.
    """
    best, why = 0, ""
    for one in spec.scheduled:
        if one.replicas > best and _is_on(one, now_s, now_s + SPARE * lead_s):
            at = f"{one.from_minute // 60:02}:{one.from_minute % 60:02}"
            best, why = (
                one.replicas,
                f"{many(one.replicas, 'replica', 'is')} scheduled for {at} {one.zone}, {one.minutes} min",
            )
    return best, why


def _is_on(one: Scheduled, from_s: float, until_s: float) -> bool:
    """Whether it is on at any moment of that stretch, on whichever of its days it has begun."""
    zone, span_s = _zone(one.zone), 60.0 * one.minutes
    first, last = (datetime.fromtimestamp(at_s, zone).date() for at_s in (from_s - span_s, until_s))
    for ahead in range((last - first).days + 1):
        day = first + timedelta(days=ahead)
        if day.weekday() not in one.days:
            continue
        # By the clock on the wall: 09:00 is 09:00 on the days on which clocks change, too.
        begins = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(minutes=one.from_minute)
        if begins.timestamp() <= until_s and from_s < begins.timestamp() + span_s:
            return True
    return False


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
