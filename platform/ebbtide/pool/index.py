"""Look-ups of a state that would else scan all of it: each is built once for the mapping that it is made of.

A state is never changed, only replaced, and what a change does not touch is the same object in both; so remembering by
identity is exact. It is what keeps a decision linear in the size of the pool.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import cache, wraps
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from ebbtide.pool.ids import EndpointName, Epoch, JobName, NodeId, SeatId, SlotId
from ebbtide.pool.transitions import JOB_CLAIMS_SLOTS, OCCUPIED, SEAT_PARKS, JobState, SlotState

if TYPE_CHECKING:
    from ebbtide.pool.state import JobRecord, SeatRecord, SlotRecord

R = TypeVar("R")
KEPT = 4  # states that are looked at in turns: the ledger's, the one that is being made, an observer's


def remembered(build: Callable[..., R]) -> Callable[..., R]:
    """``build``, but a call with the very same objects as one of the last few gives what that one gave."""
    known: list[tuple[tuple[Any, ...], R]] = []

    @wraps(build)
    def look_up(*sources: Any) -> R:
        for asked, found in tuple(known):  # another thread may add one meanwhile
            if all(map(is_, asked, sources)):
                return found
        found = build(*sources)
        known.insert(0, (sources, found))
        del known[KEPT:]
        return found

    return look_up


@remembered
def holders(slots: "Mapping[SlotId, SlotRecord]") -> Mapping[tuple[JobName | SeatId, Epoch], tuple[SlotId, ...]]:
    """The slots of each lease that are not proven empty, by occupant and epoch."""
    found: defaultdict[tuple[JobName | SeatId, Epoch], list[SlotId]] = defaultdict(list)
    for name, record in slots.items():
        if record.occupant is not None and record.state in OCCUPIED:
            found[record.occupant, record.epoch].append(name)
    return {lease: tuple(names) for lease, names in found.items()}


@remembered
def free(slots: "Mapping[SlotId, SlotRecord]", draining: Mapping[NodeId, str]) -> tuple[SlotId, ...]:
    """Slots that may be granted, in order of node and index; none of a draining node."""
    found = [one.slot for one in slots.values() if one.state is SlotState.FREE and one.slot.node not in draining]
    return tuple(slot.id for slot in sorted(found, key=lambda slot: (slot.node, slot.index)))


@remembered
def nodes_with(slots: "Mapping[SlotId, SlotRecord]", state: SlotState) -> Mapping[NodeId, int]:
    """How many slots in ``state`` each node has; nodes without any are left out."""
    return Counter(record.slot.node for record in slots.values() if record.state is state)


@remembered
def by_node(slots: "Mapping[SlotId, SlotRecord]") -> Mapping[NodeId, tuple[SlotId, ...]]:
    """The slots of each node, those of lost ones too."""
    found: defaultdict[NodeId, list[SlotId]] = defaultdict(list)
    for name, record in slots.items():
        found[record.slot.node].append(name)
    return {node: tuple(names) for node, names in found.items()}


@remembered
def lost_since(slots: "Mapping[SlotId, SlotRecord]") -> Mapping[NodeId, float]:
    """When each node with lost slots lost the last of them; who did so first is at the front."""
    found: dict[NodeId, float] = {}
    for record in slots.values():
        if record.state is SlotState.LOST:
            found[record.slot.node] = max(record.since_s, found.get(record.slot.node, record.since_s))
    return dict(sorted(found.items(), key=lambda one: (one[1], one[0])))


@remembered
def counted_on(jobs: "Mapping[JobName, JobRecord]", seats: "Mapping[SeatId, SeatRecord]") -> frozenset[SlotId]:
    """Every slot that a job's gang or a seat names, whatever state it is in."""
    gangs = (slot for job in jobs.values() for slot in job.gang)
    return frozenset((*gangs, *(slot for seat in seats.values() for slot in seat.slots)))


@remembered
def claims(jobs: "Mapping[JobName, JobRecord]") -> Mapping[SlotId, tuple[JobName, ...]]:
    """The parked jobs that can only resume when they get a slot back, by slot; slots without any are left out."""
    found: defaultdict[SlotId, list[JobName]] = defaultdict(list)
    for name, job in jobs.items():
        if job.state in JOB_CLAIMS_SLOTS:
            for slot in job.gang:
                found[slot].append(name)
    return {slot: tuple(names) for slot, names in found.items()}


@remembered
def awaited(jobs: "Mapping[JobName, JobRecord]") -> Mapping[SlotId, tuple[JobName, ...]]:
    """Of :func:`claims` those of jobs that would resume if they could: for one that a person holds nothing is kept."""
    free_to_go = {slot: tuple(n for n in names if jobs[n].held is None) for slot, names in claims(jobs).items()}
    return {slot: names for slot, names in free_to_go.items() if names}


@remembered
def occupants(slots: "Mapping[SlotId, SlotRecord]") -> frozenset[JobName | SeatId]:
    """Whoever occupies a slot, under whichever lease."""
    return frozenset(one.occupant for one in slots.values() if one.occupant is not None)


@remembered
def ended(jobs: "Mapping[JobName, JobRecord]") -> tuple[JobName, ...]:
    """The jobs that have ended, those that did so first at the front."""
    found = [(job.since_s, name) for name, job in jobs.items() if job.state is JobState.ENDED]
    return tuple(name for _, name in sorted(found))


@remembered
def in_turn(jobs: "Mapping[JobName, JobRecord]") -> "tuple[JobRecord, ...]":
    """The living jobs by priority, those that came first first."""
    alive = (job for job in jobs.values() if job.state is not JobState.ENDED)
    return tuple(sorted(alive, key=lambda job: (-job.spec.priority, job.submitted_s, job.spec.name)))


@remembered
def parked_bytes(jobs: "Mapping[JobName, JobRecord]", slots: "Mapping[SlotId, SlotRecord]") -> Mapping[NodeId, int]:
    """Host memory lent to parked gangs, by node."""
    found: Counter[NodeId] = Counter()
    for job in jobs.values():
        if job.state in JOB_CLAIMS_SLOTS:
            for slot in job.gang:
                if slot in slots:
                    found[slots[slot].slot.node] += job.spec.host_bytes_per_worker
    return found


@remembered
def warm_bytes(all_seats: "Mapping[SeatId, SeatRecord]", slots: "Mapping[SlotId, SlotRecord]") -> Mapping[NodeId, int]:
    """Host memory lent to warm replicas, by node; to those that are told to park and not yet there as well."""
    found: Counter[NodeId] = Counter()
    for seat in parking(all_seats):
        if seat.slots[0] in slots:
            found[slots[seat.slots[0]].slot.node] += seat.park_bytes
    return found


@remembered
def parking(all_seats: "Mapping[SeatId, SeatRecord]") -> "tuple[SeatRecord, ...]":
    """The seats with slots that host memory is lent to: of warm replicas, and of those told to park."""
    return tuple(seat for seat in all_seats.values() if seat.slots and (seat.parks or seat.state in SEAT_PARKS))


@remembered
def seats(all_seats: "Mapping[SeatId, SeatRecord]") -> "Mapping[EndpointName, tuple[SeatRecord, ...]]":
    """The known seats of each endpoint, by number."""
    found: defaultdict[EndpointName, list[SeatRecord]] = defaultdict(list)
    for seat in all_seats.values():
        found[seat.endpoint].append(seat)
    return {name: tuple(sorted(mine, key=lambda seat: _number(seat.id))) for name, mine in found.items()}


@cache
def _number(seat: SeatId) -> int:
    return int(seat.rpartition("/")[2])
