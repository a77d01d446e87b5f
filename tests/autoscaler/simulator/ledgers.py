"""Ledgers of pools that have lived in the closed loop, written by the product's own writer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from typing import Any

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.pool.events import Body, Event, NodeFound, NodeLost, Slot, SlotFound, SlotFreed
from ebbtide.pool.ids import EndpointName, NodeId, RecordId, slot_id
from ebbtide_autoscaler.core.demand.demand_watch import Closed
from ebbtide_autoscaler.core.forecast.demand_bins import Demand
from ebbtide_autoscaler.journal.demand_records import demand_record
from ebbtide_autoscaler.journal.records import Journal, recover
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, an_endpoint

WAIT_S = 60.0
CHAT = EndpointName("chat")
POOL_FILE = """
{"pool": {"name": "mine", "slots": 3, "shared_dir": "SHARED", "reserve": 0},
 "endpoints": [{"name": "chat", "model": "/m", "replicas": {"min": 0, "max": 3}}],
 "policy": {"restart_cost_s": 10, "grow_after_s": 5}}
"""


@dataclass(frozen=True, slots=True)
class Life:
    """A pool's events, the demand that its arbiter heard, and from when to when they were."""

    events: tuple[Event, ...]
    demand: Demand
    begins_s: float
    ends_s: float

    def records(self) -> list[dict[str, Any]]:
        """Of demand."""
        return [
            demand_record(Closed(CHAT, number, one)) for number, one in enumerate(self.demand.bins, self.demand.first)
        ]


def lived(loop: Loop, begins_s: float) -> Life:
    """All of it until now."""
    assert loop.arbiter is not None
    demand = loop.arbiter.watch.demand.get(CHAT, Demand())
    return Life(tuple(loop.events), demand, begins_s, loop.clock.now_s)


def a_loop(seed: int, **changes: Any) -> Loop:
    """Three slots, and one endpoint."""
    loop = Loop(seed, endpoints=(an_endpoint(replicas_max=2),), **changes)
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=10.0))
    loop.run(3.0)
    return loop


def tide(seed: int = 1, *, job_steps: int = 10**9) -> Life:
    """A job on all slots, a wave of requests for a minute and a half, and the ebb: six minutes."""
    loop = a_loop(seed)
    begins_s = loop.clock.now_s - 3.0
    loop.submit(a_job(), total=job_steps)
    loop.run(90.0)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    loop.run(90.0)
    loop.gateways[0].rates["chat"] = 0.0
    loop.run(177.0)
    return lived(loop, begins_s)


def tides(seed: int = 1, *, minutes: int = 40) -> Life:
    """A job on all slots, and demand that rises and falls over and over, slowly beside five minutes."""
    loop = a_loop(seed)
    begins_s = loop.clock.now_s - 3.0
    loop.submit(a_job())
    for minute in range(minutes):
        loop.gateways[0].rates["chat"] = 1.2 * (1.0 - cos(2.0 * pi * minute / 20.0))
        loop.run(60.0, tick_s=0.5)
    return lived(loop, begins_s)


def written(
    folder: Path, events: Sequence[Event], extra: Sequence[Mapping[str, Any]] = (), *, snapshot_after: int | None = None
) -> Path:
    """These events as a ledger; with a snapshot after so many of them."""
    log = EpochLog.open(folder, writer="test")
    journal = Journal(log, recover(folder, up_to=log.epoch), snapshot_bytes=0)
    cut = len(events) if snapshot_after is None else snapshot_after
    journal.write(events[:cut]).result(WAIT_S)
    if snapshot_after is not None:
        rolling = journal.keep_short()
        assert rolling is not None
        rolling.result(WAIT_S)
    journal.write(events[cut:], extra=extra).result(WAIT_S)
    journal.close()
    return folder


def pool_file(folder: Path) -> dict[str, Any]:
    """The record of the pool's file."""
    return {"type": "config", "at_s": 0.0, "config": POOL_FILE.replace("SHARED", str(folder))}


def an_event(at_s: float, body: Body) -> Event:
    """Whose time is its name."""
    return Event(RecordId(f"1.{at_s}"), at_s, None, body)


def pool_of(nodes: Mapping[str, list[tuple[float, float]]], *, until_s: float = 600.0) -> list[Event]:
    """Events of nodes of two slots that are there from and until; those at the end are there for good."""
    found = []
    for name, spans in nodes.items():
        node = NodeId(name)
        for from_s, gone_s in spans:
            found.append(an_event(from_s, NodeFound(node, 10)))
            found += [an_event(from_s, SlotFound(Slot(slot_id(node, number), node, number))) for number in range(2)]
            found += [an_event(from_s, SlotFreed(slot_id(node, number))) for number in range(2)]
            if gone_s < until_s:
                found.append(an_event(gone_s, NodeLost(node)))
    return sorted(found, key=lambda one: one.at_s)


def nothing(at_s: float) -> Event:
    """A node without slots is found: nothing is used in another way."""
    return an_event(at_s, NodeFound(NodeId("no slots"), 1))
