"""The pool as one that only observes decides on it. Pure."""

from dataclasses import replace

from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.observe.observation import Observation, lock_free


def as_if_ours(state: PoolState, seen: Observation) -> PoolState:
    """``state`` with every slot that has no holder counted as free, fenced or not: an observing pool decides on it."""
    slots = {
        name: replace(record, state=SlotState.FREE)
        if (
            record.state is SlotState.UNFENCED
            # guard: an observing pool does not count held slots as its own
            and _unheld(seen, record)
        )
        else record
        for name, record in state.slots.items()
    }
    return replace(state, slots=slots)


def _unheld(seen: Observation, record: SlotRecord) -> bool:
    slot = record.slot
    return slot.id not in seen.strangers and lock_free(seen, slot.node, slot.index, record.since_s)
