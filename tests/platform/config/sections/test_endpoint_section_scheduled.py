"""Known demand in the file: times, days and zones that exist, and no more replicas than may run."""

import json

import pytest
from pydantic import ValidationError

from ebbtide.config.sections.endpoint_section import EndpointSection
from ebbtide.pool.spec import Scheduled

NINE = {"at": "09:00", "replicas": 2, "days": ["mon", "fri"], "timezone": "Europe/Berlin", "minutes": 90}


def endpoint(**scheduled: object) -> EndpointSection:
    said = {"name": "chat", "model": "m", "replicas": {"max": 3}, "scheduled": [{**NINE, **scheduled}]}
    return EndpointSection.model_validate_json(json.dumps(said))


def test_it_comes_to_the_policy() -> None:
    [found] = endpoint().spec().scheduled
    assert found == Scheduled(days=(0, 4), from_minute=540, minutes=90, replicas=2, zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"at": "9:00"}, "pattern"),
        ({"at": "24:00"}, "pattern"),
        ({"timezone": "Europe/Berlim"}, "no time zone Europe/Berlim"),
        ({"replicas": 4}, "more than replicas.max, which is 3"),
        ({"days": []}, "at least 1 item"),
        ({"days": ["monday"]}, "mon"),
        ({"minutes": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        endpoint(**wrong)


def test_it_is_nothing_that_a_running_replica_depends_on() -> None:
    assert endpoint().revision() == endpoint(replicas=3).revision()
