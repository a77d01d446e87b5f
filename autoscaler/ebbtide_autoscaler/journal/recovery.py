"""What the ledger says, as the arbiter needs it: the fold over its records, and the snapshot that stands for them.

The fold is the one definition: an arbiter that starts folds what it reads, an arbiter that runs folds what it writes,
and a snapshot is what the latter has come to. So a replay from a snapshot ends where a replay of everything does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from ebbtide.pool.events import Body, Event, NodeForgotten, NodeFound
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, NodeId, RecordId, SlotId
from ebbtide.pool.lookup.records import together
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Demand
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.journal.demand_records import from_part, of_endpoints, snapshot_parts, with_record
from ebbtide_autoscaler.journal.key_store import MadeKey, key_record, recovered_key
from ebbtide_autoscaler.metrics.counter_state import CounterState

CONFIGS_KEPT = 5  # files that were in force, for `ebbtide up --rollback`
PART_ENTRIES = 1000  # entries of a mapping per record of a snapshot: some 300 kB, far below what one record may hold

_BODY: TypeAdapter[Body] = TypeAdapter(Annotated[Body, Field(discriminator="kind")])
MEMORY: TypeAdapter[Memory] = TypeAdapter(Memory)
STATE: TypeAdapter[PoolState] = TypeAdapter(PoolState)


def encode_event(event: Event) -> dict[str, Any]:
    """The event as its record in the ledger."""
    body = _BODY.dump_python(event.body, mode="json")
    return {"type": "event", "id": event.id, "at_s": event.at_s, "cause": event.cause, "body": body}


def decode_event(payload: Mapping[str, Any]) -> Event:
    """The event of a record of type "event"."""
    cause = payload["cause"]
    return Event(
        RecordId(payload["id"]),
        float(payload["at_s"]),
        RecordId(cause) if cause else None,
        _BODY.validate_python(payload["body"]),
    )


@dataclass(slots=True)
class Recovered:
    """What a ledger says: the state, and what else the arbiter needs to go on."""

    state: PoolState = field(default_factory=PoolState)
    memory: Memory = field(default_factory=Memory)
    config: str = ""  # the pool's file as JSON; empty before the first `up`
    configs: tuple[str, ...] = ()  # the last ones that were in force, oldest first
    fences: dict[SlotId, str] = field(default_factory=dict)  # placement group by slot
    keys: dict[str, MadeKey] = field(default_factory=dict)  # made by `ebbtide keys`, by name
    tally: CounterState = field(default_factory=CounterState)  # the counters of the metrics
    demand: Mapping[EndpointName, Demand] = field(default_factory=dict)  # of the days before
    left: frozenset[NodeId] = frozenset()  # nodes of a cluster that was taken down in good order, and not seen since
    parts: list[Mapping[str, Any]] = field(default_factory=list)  # of a snapshot that is not whole yet

    def take(self, payload: Mapping[str, Any]) -> None:
        """Fold one record in; types that are not known here change nothing."""
        kind = payload.get("type")
        if kind == "snapshot":
            self._take_part(payload)
        elif kind == "event":
            self.take_event(decode_event(payload))
        elif kind == "memory":
            self.memory = MEMORY.validate_python(payload["memory"])
        elif kind == "config":
            self.config = str(payload["config"])
            self.configs = (*self.configs, self.config)[-CONFIGS_KEPT:]
        elif kind == "demand":
            self.demand = with_record(self.demand, payload)
        elif kind == "arbiter_started":
            self.tally.started()
        elif kind == "pool_stopped":
            self.left = nodes_of(self.state)
        elif kind == "key":
            made = recovered_key(payload)
            self.keys[made.grant.name] = made
        elif kind == "fence":
            slot = SlotId(str(payload["slot"]))
            if payload["name"]:
                self.fences[slot] = str(payload["name"])
            else:
                self.fences.pop(slot, None)

    def take_event(self, event: Event) -> None:
        """Fold one event in."""
        self.tally.take(self.state, event)
        self.state = apply(self.state, event)
        self.left = still_left(self.left, event.body)
        if isinstance(event.body, NodeForgotten):  # nobody took back the fences of a node that died
            self.fences = {slot: name for slot, name in self.fences.items() if slot in self.state.slots}

    def copy(self) -> "Recovered":
        """One that is folded on apart from this one."""
        tally = CounterState(dict(self.tally.counts))
        return replace(self, fences=dict(self.fences), keys=dict(self.keys), tally=tally, parts=list(self.parts))

    def _take_part(self, payload: Mapping[str, Any]) -> None:
        if payload["part"] == 1:  # guard: a snapshot after a torn one begins anew
            self.parts = []
        self.parts.append(payload)
        if payload["part"] == payload["of"] == len(self.parts):  # guard: a torn snapshot is ignored
            whole = from_snapshot(self.parts)
            for one in fields(whole):
                setattr(self, one.name, getattr(whole, one.name))


def nodes_of(state: PoolState) -> frozenset[NodeId]:
    """All nodes that the pool has or has lost."""
    return frozenset(state.nodes) | {record.slot.node for record in state.slots.values()}


def still_left(left: frozenset[NodeId], body: Body) -> frozenset[NodeId]:
    """Of the nodes that were left in good order, those that are neither back nor forgotten."""
    return left - {body.node} if left and isinstance(body, NodeFound | NodeForgotten) else left


def plain(state: PoolState) -> dict[str, Any]:
    """In the types of JSON."""
    whole = {one.name: together(getattr(state, one.name)) for one in fields(state)}
    found: dict[str, Any] = STATE.dump_python(replace(state, **whole), mode="json")
    return found


def snapshot_of(known: Recovered) -> list[dict[str, Any]]:
    """All that ``known`` says, as the contents of a snapshot's records; none is large."""
    contents: list[dict[str, Any]] = [{"about": "tally", "tally": known.tally.as_json()}]
    for name, value in plain(known.state).items():
        if isinstance(value, dict):
            contents += [{"about": "state", "field": name, "entries": part} for part in _parts(value)]
        else:
            contents.append({"about": "state", "field": name, "value": value})
    contents.append({"about": "memory", "memory": MEMORY.dump_python(known.memory, mode="json")})
    contents += snapshot_parts(of_endpoints(known.demand, known.state.endpoints))
    contents += [{"about": "left", "nodes": sorted(known.left)}] if known.left else []
    contents += [{"about": "config", "config": config} for config in known.configs]
    contents += [{"about": "fences", "fences": part} for part in _parts(known.fences)]
    contents += [
        {"about": "keys", "keys": [key_record(made, made.made_s)["key"] for made in part.values()]}
        for part in _parts(known.keys)
    ]
    return contents


def from_snapshot(parts: Sequence[Mapping[str, Any]]) -> Recovered:
    """The reverse of :func:`snapshot_of`."""
    found, state, demand = Recovered(), dict[str, Any](), dict[EndpointName, Demand]()
    for part in parts:
        about = part["about"]
        if about == "state" and "entries" in part:
            state.setdefault(part["field"], {}).update(part["entries"])
        elif about == "state":
            state[part["field"]] = part["value"]
        elif about == "memory":
            found.memory = MEMORY.validate_python(part["memory"])
        elif about == "demand":
            demand.update([from_part(part)])
        elif about == "config":
            found.config = str(part["config"])
            found.configs = (*found.configs, found.config)
        elif about == "fences":
            found.fences.update({SlotId(slot): str(name) for slot, name in part["fences"].items()})
        elif about == "keys":
            for key in part["keys"]:
                found.take({"type": "key", "key": key})
        elif about == "left":
            found.left = frozenset(map(NodeId, part["nodes"]))
        elif about == "tally":
            found.tally = CounterState.from_json(part["tally"])
    found.demand = demand
    found.state = STATE.validate_python(state)
    return found


def _parts(entries: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    """The mapping in pieces, at least one: an empty mapping is said too."""
    rest = iter(entries.items())
    yield dict(islice(rest, PART_ENTRIES))
    while part := dict(islice(rest, PART_ENTRIES)):
        yield part


def latest_s(state: PoolState, demand: Iterable[Demand] = ()) -> float:
    """The latest time that the ledger names, in its state or by demand that has been; 0: none.

    A pool may serve for days and change nothing. Were its arbiter then behind its own bins of demand, no forecast would
    be made from them until time catches up.
    """
    slots = (slot.since_s for slot in state.slots.values())
    jobs = chain.from_iterable((job.since_s, job.asked_s, job.registered_s) for job in state.jobs.values())
    seats = chain.from_iterable((seat.since_s, seat.asked_s) for seat in state.seats.values())
    return max(chain(slots, jobs, seats, (one.end * BIN_S for one in demand)), default=0.0)
