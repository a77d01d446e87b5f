"""The ledger in the arbiter's own terms: events, the policy's memory, the configuration, and the names of fences."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from ebbtide.ledger.log import EpochLog, LedgerHealth
from ebbtide.ledger.reader import replay
from ebbtide.pool.apply import apply
from ebbtide.pool.events import Body, Event
from ebbtide.pool.ids import RecordId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.key_book import MadeKey, recovered_key
from ebbtide_autoscaler.metrics_tally import Tally
from ebbtide_autoscaler.signals import Memory

_BODY: TypeAdapter[Body] = TypeAdapter(Annotated[Body, Field(discriminator="kind")])
CONFIGS_KEPT = 5  # files that were in force, for `ebbtide up --rollback`
_MEMORY: TypeAdapter[Memory] = TypeAdapter(Memory)


@dataclass(slots=True)
class Recovered:
    """What a ledger says: the state, and what else the arbiter needs to go on."""

    state: PoolState = field(default_factory=PoolState)
    memory: Memory = field(default_factory=Memory)
    config: str = ""  # the pool's file as JSON; empty before the first `up`
    configs: tuple[str, ...] = ()  # the last ones that were in force, oldest first
    fences: dict[SlotId, str] = field(default_factory=dict)  # placement group by slot
    keys: dict[str, MadeKey] = field(default_factory=dict)  # made by `ebbtide keys`, by name
    tally: Tally = field(default_factory=Tally)  # the counters of the metrics; a snapshot must hold them too


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


def recover(directory: Path, *, up_to: int | None = None) -> Recovered:
    """Replay the ledger in ``directory``."""
    found = Recovered()
    for record in replay(directory, up_to=up_to):
        payload: Mapping[str, Any] = record.payload
        kind = payload.get("type")
        if kind == "event":
            event = decode_event(payload)
            found.tally.take(found.state, event)
            found.state = apply(found.state, event)
        elif kind == "memory":
            found.memory = _MEMORY.validate_python(payload["memory"])
        elif kind == "config":
            found.config = str(payload["config"])
            found.configs = (*found.configs, found.config)[-CONFIGS_KEPT:]
        elif kind == "arbiter_started":
            found.tally.started()
        elif kind == "key":
            made = recovered_key(payload)
            found.keys[made.grant.name] = made
        elif kind == "fence":
            slot = SlotId(str(payload["slot"]))
            if payload["name"]:
                found.fences[slot] = str(payload["name"])
            else:
                found.fences.pop(slot, None)
    return found


class Journal:
    """The open ledger of one arbiter."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log

    @property
    def epoch(self) -> int:
        """This arbiter's epoch."""
        return self._log.epoch

    def write(
        self, events: Sequence[Event], *, memory: Memory | None = None, extra: Sequence[Mapping[str, Any]] = ()
    ) -> Future[int]:
        """Queue records, together; the future is done when they are durable."""
        records: list[dict[str, Any]] = [encode_event(event) for event in events]
        if memory is not None:
            records.append({"type": "memory", "memory": _MEMORY.dump_python(memory, mode="json")})
        return self._log.append([*records, *(dict(record) for record in extra)])

    def health(self) -> LedgerHealth:
        """How the ledger does."""
        return self._log.health()

    def close(self) -> None:
        """Close the file; the arbiter is done."""
        self._log.close()


def fence_record(slot: SlotId, name: str) -> dict[str, Any]:
    """A record that says which placement group holds ``slot``; an empty name: none does."""
    return {"type": "fence", "slot": slot, "name": name}
