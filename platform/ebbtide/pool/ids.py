"""Names of things, as types of their own, so that a slot can never be passed where a node is meant."""

from functools import cache
from typing import NewType

NodeId = NewType("NodeId", str)  # Ray's node id, hex
SlotId = NewType("SlotId", str)  # "<node>:<gpu index>"
JobName = NewType("JobName", str)
EndpointName = NewType("EndpointName", str)
SeatId = NewType("SeatId", str)  # "<endpoint>/<number>", the place of at most one replica
RecordId = NewType("RecordId", str)  # "<arbiter epoch>.<number>", unique in one ledger
Epoch = NewType("Epoch", int)  # of a lease; grows with every grant of the pool


def slot_id(node: NodeId, index: int) -> SlotId:
    """The slot of GPU ``index`` on ``node``."""
    return SlotId(f"{node}:{index}")


def node_of(slot: SlotId) -> NodeId:
    """The node of ``slot``."""
    return NodeId(slot.rpartition(":")[0])


def place_of(slot: SlotId) -> tuple[str, int]:
    """Where ``slot`` stands in the order of nodes and GPUs."""
    return _place_of(slot)


@cache
def _place_of(slot: SlotId) -> tuple[str, int]:
    node, _, number = slot.rpartition(":")
    return node, int(number)


def seat_id(endpoint: EndpointName, number: int) -> SeatId:
    """The seat ``number`` (from 0) of ``endpoint``."""
    return SeatId(f"{endpoint}/{number}")


def endpoint_of(seat: SeatId) -> EndpointName:
    """The endpoint of ``seat``."""
    return EndpointName(seat.rpartition("/")[0])


def number_of(seat: SeatId) -> int:
    """The number of ``seat`` among those of its endpoint."""
    return int(seat.rpartition("/")[2])
