"""What a pool that only observes would have done: which of its decision's moves are news. Pure.

In observe mode the same decision comes tick after tick, since nothing moves. A move is told once: when it is first
decided, and again when it comes back after it was not decided any more.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ebbtide.pool.events import Event, Move
from ebbtide.pool.ids import RecordId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.tick.instructions import HoldFence, Instruction
from ebbtide_autoscaler.journal.recovery import encode_event


def news(moves: Iterable[Move], told: frozenset[str]) -> tuple[list[Mapping[str, Any]], frozenset[str]]:
    """The moves, as JSON, that were not told yet, and what is told by now (reasons aside: their numbers change)."""
    present: dict[str, Mapping[str, Any]] = {}
    for move in moves:
        body: Mapping[str, Any] = encode_event(Event(RecordId(""), 0.0, None, move))["body"]
        present[json.dumps({key: value for key, value in body.items() if key != "reason"}, sort_keys=True)] = body
    return [body for key, body in present.items() if key not in told], frozenset(present)


def would_record(body: Mapping[str, Any], *, name: str, at_s: float) -> dict[str, Any]:
    """A move that was not made, as its record in the ledger; ``events`` and ``why`` show it, a replay passes it by."""
    return {"type": "would", "id": name, "at_s": at_s, "cause": None, "body": dict(body)}


def takes_a_slot(state: PoolState, instruction: Instruction) -> bool:
    """Whether an instruction would take a logical GPU that the pool does not hold and nobody of it has used."""
    if not isinstance(instruction, HoldFence):
        return False
    # guard: an observer takes no fence
    return state.slots[instruction.slot].state in (SlotState.UNFENCED, SlotState.FOREIGN)
