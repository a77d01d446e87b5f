"""Whom a record is about: the words by which a person asks for it.

Works on the JSON form and not on the event classes, so that records of an older or newer version are found as well.
"""

from collections.abc import Iterator, Mapping, Sequence

from ebbtide.ledger.record import JSON

_ONE = ("job", "endpoint", "seat", "slot", "node", "workload", "subject")
_MANY = ("slots", "seats", "subjects")


def subjects_of(payload: Mapping[str, JSON]) -> frozenset[str]:
    """Names of the jobs, endpoints, seats, slots and nodes that a record is about; a seat's endpoint too."""
    body = payload.get("body")
    return frozenset(name for part in (payload, body) if isinstance(part, Mapping) for name in _names(part) if name)


def _names(part: Mapping[str, JSON]) -> Iterator[str]:
    for key in _ONE:
        value = part.get(key)
        if isinstance(value, str):
            yield value
            if key == "seat":
                yield value.rpartition("/")[0]
        elif isinstance(value, Mapping) and isinstance(value.get("id"), str):
            yield str(value["id"])
    for key in _MANY:
        values = part.get(key)
        if isinstance(values, Sequence) and not isinstance(values, str):
            yield from (value for value in values if isinstance(value, str))
    spec = part.get("spec")
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        yield str(spec["name"])
