"""Demand as records: what is written comes back, and what was written before arrivals were kept can be read."""

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.demand.demand_watch import Closed
from ebbtide_autoscaler.core.forecast.demand_bins import Bin, Demand
from ebbtide_autoscaler.journal.demand_records import demand_record, from_part, snapshot_parts, with_record

CHAT = EndpointName("chat")


def test_a_bin_comes_back_and_an_unknown_one_too() -> None:
    known = with_record({}, demand_record(Closed(CHAT, 7, Bin(2.5, 4.0, 0.5))))
    known = with_record(known, demand_record(Closed(CHAT, 8, None)))
    assert known == {CHAT: Demand(7, (Bin(2.5, 4.0, 0.5), None))}
    assert dict(map(from_part, snapshot_parts(known))) == known


def test_a_bin_of_before_arrivals_were_kept_has_none() -> None:
    old = {"type": "demand", "endpoint": "chat", "bin": 7, "value": [2.5, 4.0]}
    assert with_record({}, old) == {CHAT: Demand(7, (Bin(2.5, 4.0),))}
