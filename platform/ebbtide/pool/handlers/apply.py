"""``apply(state, event) -> state``: the one place where the pool's state changes.

An event that the transition tables or the rules below forbid raises :class:`IllegalTransition`, and nothing has
changed. Replaying a ledger is folding its events through this function.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ebbtide.pool.events import Body, Event
from ebbtide.pool.handlers import hold_handlers, job_handlers, seat_handlers, slot_handlers, warm_handlers
from ebbtide.pool.state import PoolState

_HANDLERS: dict[type[Body], Callable[[PoolState, Event, Any], PoolState]] = {
    **slot_handlers.HANDLERS,
    **job_handlers.HANDLERS,
    **hold_handlers.HANDLERS,
    **seat_handlers.HANDLERS,
    **warm_handlers.HANDLERS,
}


def apply(state: PoolState, event: Event) -> PoolState:
    """The state after ``event``.

    Raises:
        IllegalTransition: the event is not allowed now; ``state`` is still the truth.
    """
    return _HANDLERS[type(event.body)](state, event, event.body)


def replay(events: "list[Event] | tuple[Event, ...]", start: PoolState | None = None) -> PoolState:
    """Fold ``events`` into a state."""
    state = replace(start) if start is not None else PoolState()
    for event in events:
        state = apply(state, event)
    return state
