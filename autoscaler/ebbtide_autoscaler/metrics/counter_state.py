"""The values of the ledger's counters: the fold of ``event_counters.counted`` over its events. Pure.

It is rebuilt by replay. A ledger that forgets old events must keep, with the snapshot that stands for them, what
``as_json`` gives: then nothing goes back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebbtide.pool.events import EndpointRemoved, Event
from ebbtide.pool.state import PoolState
from ebbtide.telemetry.arbiter import STARTS
from ebbtide.telemetry.metric_family import Family, Sample
from ebbtide_autoscaler.metrics.event_counters import LEDGER_FAMILIES, count_event

_FAMILIES = {family.name: family for family in LEDGER_FAMILIES}
_Key = tuple[Family, tuple[str, ...]]


@dataclass(slots=True)
class CounterState:
    """Counters by family and labels. It grows with kinds of events, states and endpoints, never with their number."""

    counts: dict[_Key, float] = field(default_factory=dict)

    def take(self, before: PoolState, event: Event) -> None:
        """Count ``event``, which is applied to ``before``."""
        for sample in count_event(before, event):
            self.add(sample)
        if isinstance(event.body, EndpointRemoved):
            self._forget(event.body.endpoint)

    def started(self) -> None:
        """Count an arbiter's start."""
        self.add(Sample(STARTS, 1))

    def add(self, sample: Sample) -> None:
        """Add to one counter."""
        key = (sample.family, sample.labels)
        self.counts[key] = self.counts.get(key, 0.0) + sample.value

    def samples(self) -> Iterator[Sample]:
        """All counters, from the arbiter's thread or another."""
        for (family, labels), value in list(self.counts.items()):
            yield Sample(family, value, labels)

    def _forget(self, endpoint: str) -> None:
        """An endpoint that is gone has no series any more."""
        for family, labels in [key for key in self.counts if "endpoint" in key[0].labels]:
            if labels[family.labels.index("endpoint")] == endpoint:
                del self.counts[family, labels]

    def as_json(self) -> list[dict[str, Any]]:
        """For a snapshot of the ledger."""
        return [
            {"name": family.name, "labels": list(labels), "value": value}
            for (family, labels), value in self.counts.items()
        ]

    @classmethod
    def from_json(cls, raw: Sequence[Mapping[str, Any]]) -> "CounterState":
        """The reverse of :meth:`as_json`; counters that this version does not know are left out."""
        found = cls()
        for one in raw:
            family = _FAMILIES.get(str(one["name"]))
            if family is not None and len(one["labels"]) == len(family.labels):
                found.add(Sample(family, float(one["value"]), tuple(str(label) for label in one["labels"])))
        return found
