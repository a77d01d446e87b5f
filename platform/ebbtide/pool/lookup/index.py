"""Look-ups of a state that would else scan all of it: each follows its mapping, or is built once for it.

A state is never changed, only replaced, and what a change does not touch is the same object in both; so remembering by
identity is exact. It is what keeps a decision linear in the size of the pool, and an event far below that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from functools import wraps
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from ebbtide.pool.ids import EndpointName, Epoch, JobName, NodeId, SeatId, SlotId, node_of, number_of, place_of
from ebbtide.pool.lookup.derived_maps import KEPT, group_by, lined_up, select, sum_by
from ebbtide.pool.transitions import JOB_CLAIMS_SLOTS, JOB_IN_HOST_MEMORY, OCCUPIED, SEAT_PARKS, JobState, SlotState

if TYPE_CHECKING:
    from ebbtide.pool.state import JobRecord, SeatRecord, SlotRecord

R = TypeVar("R")
Lease = tuple[JobName | SeatId, Epoch]


def cached_by_identity(build: Callable[..., R]) -> Callable[..., R]:
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


# ---- slots


@group_by(order=place_of)
def leases(slot: "SlotRecord") -> tuple[Lease, bool] | None:
    """The slots of each lease that are not proven empty, in order of node and index."""
    return ((slot.occupant, slot.epoch), True) if slot.occupant is not None and slot.state in OCCUPIED else None


@group_by(order=place_of)
def _on_node(slot: "SlotRecord") -> tuple[NodeId, bool]:
    return slot.slot.node, True


def held_slots(slots: "Mapping[SlotId, SlotRecord]", who: JobName | SeatId, epoch: Epoch) -> tuple[SlotId, ...]:
    """The slots of a lease that are not proven empty, in order of node and index."""
    return tuple(leases(slots).get((who, epoch), ()))


@sum_by
def _occupying(slot: "SlotRecord") -> Mapping[JobName | SeatId, int] | None:
    return {slot.occupant: 1} if slot.occupant is not None and slot.state in OCCUPIED else None


def occupants(slots: "Mapping[SlotId, SlotRecord]") -> Set[JobName | SeatId]:
    """Whoever occupies a slot, under whichever lease."""
    return _occupying(slots).keys()


def _in(state: SlotState) -> "Callable[[Mapping[SlotId, SlotRecord]], Mapping[SlotId, NodeId]]":
    def node(slot: "SlotRecord") -> NodeId | None:
        return slot.slot.node if slot.state is state else None

    return select(node)


_IN = {state: _in(state) for state in SlotState}


def in_state(slots: "Mapping[SlotId, SlotRecord]", state: SlotState) -> Mapping[SlotId, NodeId]:
    """The slots in ``state`` and their nodes, in no order."""
    return _IN[state](slots)


def nodes_with(slots: "Mapping[SlotId, SlotRecord]", state: SlotState) -> Mapping[NodeId, int]:
    """How many slots in ``state`` each node has; nodes without any are left out."""
    return _counted(in_state(slots, state))


@cached_by_identity
def _counted(found: Mapping[SlotId, NodeId]) -> Mapping[NodeId, int]:
    return Counter(found.values())


def _place(slot: "SlotRecord") -> tuple[str, int]:
    return place_of(slot.slot.id)


@lined_up(order=_place, make=lambda slots: slots)
def _free_on(slot: "SlotRecord") -> tuple[NodeId, tuple[SlotId]] | None:
    return (slot.slot.node, (slot.slot.id,)) if slot.state is SlotState.FREE else None


def free_on_nodes(
    slots: "Mapping[SlotId, SlotRecord]", draining: Mapping[NodeId, str]
) -> Mapping[NodeId, tuple[SlotId, ...]]:
    """Slots that may be granted, by node; both in order. Draining nodes, and those without any, are left out."""
    return _by_name(_free_on(slots), draining)


@cached_by_identity
def _by_name(
    found: Mapping[NodeId, tuple[SlotId, ...]], draining: Mapping[NodeId, str]
) -> Mapping[NodeId, tuple[SlotId, ...]]:
    # guard: no slot of a draining node is free
    return {node: slots for node, slots in sorted(found.items()) if node not in draining}


def free(slots: "Mapping[SlotId, SlotRecord]", draining: Mapping[NodeId, str]) -> tuple[SlotId, ...]:
    """All of these, in order of node and index."""
    return _together(free_on_nodes(slots, draining))


@cached_by_identity
def _together(by_node: Mapping[NodeId, tuple[SlotId, ...]]) -> tuple[SlotId, ...]:
    return tuple(chain.from_iterable(by_node.values()))


def by_node(slots: "Mapping[SlotId, SlotRecord]", node: NodeId) -> tuple[SlotId, ...]:
    """The slots of ``node``, by index; those of a lost one too."""
    return tuple(_on_node(slots).get(node, ()))


@select
def _lost(slot: "SlotRecord") -> tuple[float, NodeId] | None:
    return (slot.since_s, slot.slot.node) if slot.state is SlotState.LOST else None


def lost_since(slots: "Mapping[SlotId, SlotRecord]") -> Mapping[NodeId, float]:
    """When each node with lost slots lost the last of them; who did so first is at the front."""
    return _since(_lost(slots))


@cached_by_identity
def _since(lost: Mapping[SlotId, tuple[float, NodeId]]) -> Mapping[NodeId, float]:
    last = {node: since_s for since_s, node in sorted(lost.values())}
    return dict(sorted(last.items(), key=lambda one: (one[1], one[0])))


@cached_by_identity
def counted_on(jobs: "Mapping[JobName, JobRecord]", seats: "Mapping[SeatId, SeatRecord]") -> frozenset[SlotId]:
    """Every slot that a job's gang or a seat names, whatever state it is in."""
    gangs = (slot for job in jobs.values() for slot in job.gang)
    return frozenset((*gangs, *(slot for seat in seats.values() for slot in seat.slots)))


# ---- jobs

Gang = tuple[tuple[float, int], tuple[SlotId, ...]]
"""When its job was submitted, and its slots."""


def _came(job: "JobRecord") -> tuple[float, int]:
    return job.submitted_s, job.submission


@select
def _claiming(job: "JobRecord") -> Gang | None:
    return (_came(job), job.gang) if job.state in JOB_CLAIMS_SLOTS else None


@select
def _awaiting(job: "JobRecord") -> Gang | None:
    return (
        (_came(job), job.gang)
        if job.state in JOB_CLAIMS_SLOTS
        # guard: a held job's claim keeps nothing from others
        and job.held is None
        else None
    )


def claims(jobs: "Mapping[JobName, JobRecord]") -> Mapping[SlotId, tuple[JobName, ...]]:
    """The parked jobs that can only resume when they get a slot back, by slot; slots without any are left out."""
    return _by_slot(_claiming(jobs))


def awaited_slots(jobs: "Mapping[JobName, JobRecord]") -> Mapping[SlotId, tuple[JobName, ...]]:
    """Of :func:`claims`, those of jobs that would resume if they could; nothing is kept for one that a person holds."""
    return _by_slot(_awaiting(jobs))


@cached_by_identity
def _by_slot(gangs: Mapping[JobName, Gang]) -> Mapping[SlotId, tuple[JobName, ...]]:
    found: dict[SlotId, tuple[JobName, ...]] = {}
    for _, name, gang in sorted((since, name, gang) for name, (since, gang) in gangs.items()):
        for slot in gang:
            found[slot] = (*found.get(slot, ()), name)
    return found


@select
def _ended(job: "JobRecord") -> float | None:
    return job.since_s if job.state is JobState.ENDED else None


def ended_jobs(jobs: "Mapping[JobName, JobRecord]") -> tuple[JobName, ...]:
    """The jobs that have ended, those that did so first at the front."""
    return _in_order(_ended(jobs))


@cached_by_identity
def _in_order(places: Mapping[JobName, Any]) -> tuple[JobName, ...]:
    return tuple(name for _, name in sorted((place, name) for name, place in places.items()))


def on_nodes(slots: Iterable[SlotId], times: int) -> Mapping[NodeId, int]:
    """How often each node is there, so many times."""
    return {node: count * times for node, count in Counter(map(node_of, slots)).items()}


@sum_by
def parked_bytes(job: "JobRecord") -> Mapping[NodeId, int] | None:
    """Host memory lent to parked gangs, those on their way back included, by node; nodes without any are left out."""
    return on_nodes(job.gang, job.spec.host_bytes_per_worker) if job.state in JOB_IN_HOST_MEMORY else None


# ---- seats


@sum_by
def warm_bytes(seat: "SeatRecord") -> Mapping[NodeId, int] | None:
    """Host memory lent to warm replicas, by node; to those that are told to park and not yet there as well."""
    lent = seat.slots and (seat.parks or seat.state in SEAT_PARKS)
    return {node_of(seat.slots[0]): seat.park_bytes} if lent else None


@group_by(order=number_of)
def _of_endpoint(seat: "SeatRecord") -> "tuple[EndpointName, SeatRecord]":
    return seat.endpoint, seat


@cached_by_identity
def seats(all_seats: "Mapping[SeatId, SeatRecord]") -> "Mapping[EndpointName, tuple[SeatRecord, ...]]":
    """The known seats of each endpoint, by number."""
    return {name: tuple(mine.values()) for name, mine in _of_endpoint(all_seats).items()}
