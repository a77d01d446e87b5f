"""Demand that somebody knows of: replicas that are to be ready at set times of the week. Pure."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from ebbtide.pool.spec import EndpointSpec, Scheduled
from ebbtide.pool.words import many

SPARE = 1.5  # of the time that a start took last: one start in ten takes 1.7 times the median (Alibaba's loads)


def scheduled(spec: EndpointSpec, now_s: float, lead_s: float) -> tuple[int, str]:
    """The replicas that are to be ready by the time that one which is started now is, and why; 0: none are.

    Args:
        spec: of the endpoint.
        now_s: seconds since 1970.
        lead_s: until a replica that is started now answers.
    """
    best, why = 0, ""
    for one in spec.scheduled:
        if one.replicas > best and (_is_on(one, now_s) or _is_on(one, now_s + SPARE * lead_s)):
            at = f"{one.from_minute // 60:02}:{one.from_minute % 60:02}"
            best, why = (
                one.replicas,
                f"{many(one.replicas, 'replica', 'is')} scheduled for {at} {one.zone}, {one.minutes} min",
            )
    return best, why


def _is_on(one: Scheduled, at_s: float) -> bool:
    """Whether that moment lies within it, on whichever of its days it has begun."""
    here = datetime.fromtimestamp(at_s, UTC).astimezone(_zone(one.zone))
    for back in range(one.minutes // (24 * 60) + 2):
        day = here.date() - timedelta(days=back)
        if day.weekday() not in one.days:
            continue
        # By the clock on the wall: 09:00 is 09:00 on the days on which clocks change, too.
        begins = datetime(day.year, day.month, day.day, tzinfo=here.tzinfo) + timedelta(minutes=one.from_minute)
        if 0.0 <= at_s - begins.timestamp() < 60.0 * one.minutes:
            return True
    return False


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
