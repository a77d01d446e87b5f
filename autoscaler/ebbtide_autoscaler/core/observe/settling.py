"""Whether this arbiter has heard enough, and lately enough. Pure."""

from math import inf

from ebbtide.client.messages import AgentReport
from ebbtide.pool.ids import NodeId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import Observation

SETTLE_S = 10.0  # as `policy.silence_s` is by default: a replica that has said nothing by then counts as lost

AWAITS_A_LOOK = frozenset({SlotState.UNFENCED, SlotState.RECLAIMING, SlotState.FOREIGN})
"""Slots that the next word of a free lock may move."""


def unheard(state: PoolState, seen: Observation) -> bool:
    """Whether a ready seat has not reported to this arbiter yet, so that a routing table would leave it out."""
    return any(seat.state is SeatState.READY and seat.id not in seen.replicas for seat in state.seats.values())


def settling(state: PoolState, seen: Observation, now_s: float) -> bool:
    """Whether this arbiter has just started (``seen.started_s``) and still waits for the word of a ready replica.

    Until then it knows too little to decide, and a routing table would leave out replicas that serve.
    """
    return now_s - seen.started_s < SETTLE_S and unheard(state, seen)


def looked_too_early(state: PoolState, report: AgentReport) -> bool:
    """Whether a slot has changed since the agent looked for ``report``, and still waits to hear of its lock."""
    looked_s = report.after.at_s if report.after is not None else -inf
    slots = (state.slots.get(slot_id(NodeId(report.node), index)) for index in report.holders)
    return any(slot is not None and slot.state in AWAITS_A_LOOK and slot.since_s >= looked_s for slot in slots)
