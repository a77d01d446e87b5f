"""Draining a node: what is still there, and when it may be switched off.

A person drains nodes, and so does the arbiter itself where the pool's size may change: its reasons begin with
:data:`UNNEEDED`, and that is all that tells them apart, in the ledger too.
"""

from ebbtide.pool.ids import JobName, NodeId, SeatId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import OCCUPIED

UNNEEDED = "not needed: "


def occupants(state: PoolState, node: NodeId) -> tuple[JobName | SeatId, ...]:
    """Jobs and seats that have slots of ``node``, and parked jobs and warm replicas that are to come back there."""
    found: list[JobName | SeatId] = []
    for record in state.slots.values():
        if record.slot.node == node:
            found += [record.occupant] if record.state in OCCUPIED and record.occupant is not None else []
            found += state.claims_on(record.slot.id)
    found += [n for n, seat in state.seats.items() if seat.parks and state.slots[seat.slots[0]].slot.node == node]
    return tuple(dict.fromkeys(found))


def is_drained(state: PoolState, node: NodeId) -> bool:
    """Whether ``node`` is draining and nobody of the pool is left there; strangers are not ours to send away."""
    return node in state.draining and not occupants(state, node)


def unneeded_nodes(state: PoolState) -> frozenset[NodeId]:
    """Nodes that the arbiter itself drains so that they can leave the cluster."""
    return frozenset(node for node, why in state.draining.items() if why.startswith(UNNEEDED))


def let_go(state: PoolState) -> frozenset[NodeId]:
    """Of these, the ones with nobody of the pool left: nothing of ours may keep them busy in Ray's eyes."""
    return frozenset(node for node in unneeded_nodes(state) if not occupants(state, node))
