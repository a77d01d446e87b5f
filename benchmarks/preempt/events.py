"""What a contender tells: lines of JSON, each an event with its time. And what follows from them, in seconds.

::

    decision -> safe point -> (staged) -> free        durable, before or after free        asked -> running
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Event(StrEnum):
    """One of a contender's life."""

    READY = "ready"  # to be told something
    DECISION = "decision"  # somebody wants the slot
    SAFE_POINT = "safe_point"  # the step has ended
    STAGED = "staged"  # a copy is in host memory, and training could go on
    FREE = "free"  # nothing of the job is on the slot
    DURABLE = "durable"  # the state outlives the machine's memory
    ASKED = "asked"  # the slot is there again
    RUNNING = "running"  # the next step begins
    LOSS = "loss"  # of the step after; its value is hex
    FIGURE = "figure"  # something that it measured by itself
    NOTE = "note"  # something that a reader of the figures must know


@dataclass(slots=True)
class Story:
    """Times of events in seconds since boot, and what else was told."""

    at_s: dict[Event, float] = field(default_factory=dict)
    loss: str = ""
    figures: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[str]) -> "Story":
        """From what one or more processes printed, in order; of an event that comes twice the first counts.

        Other lines are passed over.
        """
        story = cls()
        for line in lines:
            if line.startswith('{"event"'):
                story.add(json.loads(line))
        return story

    def add(self, told: Mapping[str, object]) -> None:
        """One event."""
        event = Event(str(told["event"]))
        if event is Event.FIGURE:
            self.figures.setdefault(str(told["name"]), []).append(float(str(told["value"])))
            return
        if event is Event.NOTE:
            self.notes.append(str(told["text"]))
            return
        self.at_s.setdefault(event, float(str(told["at_s"])))
        if event is Event.LOSS:
            self.loss = str(told["value"])

    def between(self, first: Event, last: Event) -> float | None:
        """Seconds from one to the other; None if one of them was not told."""
        if first not in self.at_s or last not in self.at_s:
            return None
        return self.at_s[last] - self.at_s[first]


def line(event: Event, **more: object) -> str:
    """One event, now."""
    return json.dumps({"event": event.value, "at_s": time.monotonic(), **more})


def say(event: Event, **more: object) -> None:
    """Tell the parent."""
    print(line(event, **more), flush=True)


def figure(name: str, value: float) -> None:
    """Tell the parent a measured value."""
    say(Event.FIGURE, name=name, value=value)


SPANS = {
    "decision to slot free": (Event.DECISION, Event.FREE),
    "safe point to slot free": (Event.SAFE_POINT, Event.FREE),
    "safe point to staged": (Event.SAFE_POINT, Event.STAGED),
    "safe point to durable": (Event.SAFE_POINT, Event.DURABLE),
    "slot free to durable": (Event.FREE, Event.DURABLE),
    "resume": (Event.ASKED, Event.RUNNING),
}


def spans(story: Story) -> dict[str, float]:
    """Those that this contender has, in seconds."""
    found = {name: story.between(*ends) for name, ends in SPANS.items()}
    if (after := found["slot free to durable"]) is not None and after < 0:
        found["slot free to durable"] = None  # it was durable before it went
    return {name: seconds for name, seconds in found.items() if seconds is not None}
