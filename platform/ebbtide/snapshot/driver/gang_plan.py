"""In which order the ranks of a gang are frozen and thawed; pure.

One rank that is locked while a peer waits for it in a collective freezes both for ever. So the order is: lock all,
then checkpoint all; restore all, then unlock all. The next step follows from where all ranks are and where each shall
be, and from nothing else: whoever takes over from a caller that died goes on from what the driver says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ebbtide.snapshot.driver.process_states import Call, ProcessState

_RUNNING, _LOCKED, _CHECKPOINTED = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED


class Verb(Enum):
    """What can be asked for a gang."""

    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"
    PARK = "park"  # lock, then checkpoint
    RESUME = "resume"  # restore, then unlock


@dataclass(frozen=True, slots=True)
class Way:
    """What a verb means.

    Attributes:
        starts: each rank must be in one of these; ranks that are at the goal already are left alone.
        goal: where all ranks end.
        back: where ranks are led if it does not work, by where they were; the others stay where they are then.
    """

    starts: frozenset[ProcessState]
    goal: ProcessState
    back: Mapping[ProcessState, ProcessState]


_ANY = frozenset({_RUNNING, _LOCKED, _CHECKPOINTED})

WAYS: Mapping[Verb, Way] = {
    # Who was found LOCKED is left over from a caller that died: it is unlocked as well, or it would wait for ever.
    Verb.LOCK: Way(frozenset({_RUNNING, _LOCKED}), _LOCKED, {_RUNNING: _RUNNING, _LOCKED: _RUNNING}),
    Verb.CHECKPOINT: Way(frozenset({_LOCKED, _CHECKPOINTED}), _CHECKPOINTED, {_LOCKED: _LOCKED}),
    Verb.RESTORE: Way(frozenset({_CHECKPOINTED, _LOCKED}), _LOCKED, {_CHECKPOINTED: _CHECKPOINTED}),
    # Who runs is not stopped again.
    Verb.UNLOCK: Way(frozenset({_LOCKED, _RUNNING}), _RUNNING, {}),
    # Who was found CHECKPOINTED is never restored on the way back: its GPU may be somebody else's by now.
    Verb.PARK: Way(_ANY, _CHECKPOINTED, {_RUNNING: _RUNNING, _LOCKED: _RUNNING}),
    Verb.RESUME: Way(_ANY, _RUNNING, {_CHECKPOINTED: _CHECKPOINTED}),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One call, to be made for all of these processes before anything else is done."""

    call: Call
    pids: tuple[int, ...]


# By call: who needs it now, as (where a rank is, where it shall be). A line waits until no rank needs one above it.
_ORDER: tuple[tuple[Call, frozenset[tuple[ProcessState, ProcessState]]], ...] = (
    (Call.LOCK, frozenset({(_RUNNING, _LOCKED), (_RUNNING, _CHECKPOINTED)})),
    (Call.CHECKPOINT, frozenset({(_LOCKED, _CHECKPOINTED)})),  # before any restore: it makes room
    (Call.RESTORE, frozenset({(_CHECKPOINTED, _LOCKED), (_CHECKPOINTED, _RUNNING)})),
    (Call.UNLOCK, frozenset({(_LOCKED, _RUNNING)})),
)


def next_step(seen: Mapping[int, ProcessState], goals: Mapping[int, ProcessState]) -> Step | None:
    """What to do now.

    Args:
        seen: where each process is; all RUNNING, LOCKED or CHECKPOINTED.
        goals: where it shall be, for the same processes; one of the same three.

    Returns:
        The step; None: all are there.
    """
    for call, needs in _ORDER:
        pids = tuple(pid for pid, goal in goals.items() if (seen[pid], goal) in needs)
        if pids:
            return Step(call, pids)
    return None


def goals_back(verb: Verb, began: Mapping[int, ProcessState], failed_at: Call) -> dict[int, ProcessState]:
    """Where ranks shall be after ``verb`` did not work; ranks that stay where they are, are not in it.

    Args:
        verb: what was asked.
        began: where each rank was then.
        failed_at: the call that did not work. When the unlocking has begun, nobody is stopped again.
    """
    if failed_at is Call.UNLOCK:
        return {}
    back = WAYS[verb].back
    return {pid: back[state] for pid, state in began.items() if state in back}
