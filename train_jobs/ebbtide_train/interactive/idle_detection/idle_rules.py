"""When a session is idle, when its owner is warned, when it is put aside. Pure: time and use are arguments.

A session is quiet while its processes use next to no CPU *and* its GPU does nothing; a touch is activity as well.
Quiet for ``idle_after_s`` it is put aside; ``warn_before_s`` earlier its owner is told, and any activity in between
calls it off. An owner who could not be told has as much time again, and is then overruled: nothing is lost by a park.

Not guaranteed: that a process which sleeps in earnest (waits for a download) is told from one that is forgotten.
"""

from dataclasses import dataclass, replace
from enum import Enum

CPU_QUIET = 0.05
"""Share of one CPU. Measured: a notebook server with a connected page uses 1 to 2 %, a shell in a loop all of it."""
GPU_QUIET = 0.02  # NVML gives whole per cent, and 1 is seen on a GPU whose only use is being asked


class Action(Enum):
    """What the session's supervisor does now."""

    NOTHING = "nothing"
    WARN = "warn"  # tell the owner; again on every look until somebody was told
    CALL_OFF = "call off"  # it is used after all: a warning that was given is void
    PUT_ASIDE = "put aside"


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Seconds. ``idle_after_s`` None: it is never put aside for being idle."""

    idle_after_s: float | None = None
    warn_before_s: float = 300.0  # five minutes: long enough to read a mail, short beside an hour of idling
    cpu_quiet: float = CPU_QUIET
    gpu_quiet: float = GPU_QUIET

    def __post_init__(self) -> None:
        if self.idle_after_s is not None and not 0 <= self.warn_before_s < self.idle_after_s:
            raise ValueError(f"warn_before_s {self.warn_before_s} must be below idle_after_s {self.idle_after_s}")


@dataclass(frozen=True, slots=True)
class Use:
    """One look at a session."""

    at_s: float  # of a clock that never goes back
    cpu_s: float  # CPU seconds of all its processes so far
    gpu: float | None = None  # share of the last moments in which its GPU did something; None: nobody can say
    touched_s: float = 0.0  # when its owner touched it last, of any clock: only a change counts


@dataclass(frozen=True, slots=True)
class Memory:
    """What is carried from look to look."""

    last: Use | None = None
    quiet_since_s: float = 0.0
    warned: bool = False  # the owner is to be told, or was
    told: bool = False  # somebody was told


def note_told(memory: Memory) -> Memory:
    """The warning has reached the owner."""
    return replace(memory, told=True) if memory.warned else memory


def look(rules: IdleRules, memory: Memory, use: Use) -> tuple[Memory, Action]:
    """Take in one look; at most one action comes of it. One that is new, or has resumed, begins with `Memory`."""
    last = memory.last
    if last is None or _active(rules, last, use):
        action = Action.CALL_OFF if memory.warned else Action.NOTHING
        return Memory(last=use, quiet_since_s=use.at_s), action
    memory = replace(memory, last=use)
    if rules.idle_after_s is None:
        return memory, Action.NOTHING
    quiet_s = use.at_s - memory.quiet_since_s
    patience_s = 0.0 if memory.told else rules.warn_before_s
    if memory.warned and quiet_s >= rules.idle_after_s + patience_s:
        return memory, Action.PUT_ASIDE
    if quiet_s >= rules.idle_after_s - rules.warn_before_s and not memory.told:
        return replace(memory, warned=True), Action.WARN
    return memory, Action.NOTHING


def _active(rules: IdleRules, last: Use, use: Use) -> bool:
    if use.touched_s != last.touched_s or (use.gpu is not None and use.gpu > rules.gpu_quiet):
        return True
    return use.cpu_s - last.cpu_s > rules.cpu_quiet * (use.at_s - last.at_s)
