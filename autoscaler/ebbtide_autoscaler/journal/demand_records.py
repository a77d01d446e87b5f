"""Demand as records of the ledger, so that an arbiter that starts knows the days before. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.demand.demand_watch import Closed
from ebbtide_autoscaler.core.forecast.demand_bins import Bin, Demand, grow


def demand_record(closed: Closed) -> dict[str, Any]:
    """One bin that is full."""
    return {
        "type": "demand",
        "endpoint": closed.endpoint,
        "bin": closed.number,
        "value": _as_json(closed.value),
    }


def with_record(known: Mapping[EndpointName, Demand], payload: Mapping[str, Any]) -> dict[EndpointName, Demand]:
    """``known`` and what such a record says."""
    name = EndpointName(str(payload["endpoint"]))
    one = (int(payload["bin"]), _from_json(payload["value"]))
    return {**known, name: grow(known.get(name, Demand()), [one])}


def snapshot_parts(known: Mapping[EndpointName, Demand]) -> Iterator[dict[str, Any]]:
    """The same for a snapshot: a part for each endpoint, at most 110 kB."""
    for name, demand in known.items():
        values = [_as_json(one) for one in demand.bins]
        yield {"about": "demand", "endpoint": name, "first": demand.first, "bins": values}


def from_part(part: Mapping[str, Any]) -> tuple[EndpointName, Demand]:
    """The reverse."""
    values = tuple(_from_json(one) for one in part["bins"])
    return EndpointName(str(part["endpoint"])), Demand(int(part["first"]), values)


def of_endpoints(known: Mapping[EndpointName, Demand], names: Iterable[EndpointName]) -> dict[EndpointName, Demand]:
    """That of endpoints that are still there."""
    return {name: known[name] for name in names if name in known}


def _as_json(value: Bin | None) -> list[float] | None:
    return None if value is None else [round(value.mean, 3), round(value.peak, 3), round(value.per_s, 3)]


def _from_json(value: Any) -> Bin | None:
    """Records of before arrivals were kept have two figures."""
    return None if value is None else Bin(*map(float, value))
