"""How many nodes more than it has the pool needs for all that is wanted. Pure.

What is wanted: the replicas that endpoints aim at (what is asked for, expected, scheduled or promised), every job that
is not held with the fewest workers it can run with, and the reserve. A job takes more than its least where there is
room, but no node is started for that, nor kept.

Counted is what fits for certain, no packing is tried: replicas of each size need so many places on single nodes, and
all together need so many slots. So the answer never falls when more is wanted and never rises with more nodes, which a
packing heuristic does not promise (bin packing has such anomalies). The price: where replicas of several sizes share
nodes badly, a node too few may be counted; none is ever counted that is not needed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebbtide.pool.ids import EndpointName, JobName, NodeId, SlotId, node_of
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState, SlotState
from ebbtide.pool.words import many
from ebbtide_autoscaler.serving import COMING_OR_READY
from ebbtide_autoscaler.teams import OTHERS, Team

NO_USE = frozenset({SlotState.LOST, SlotState.FOREIGN})
NO_ROOM = frozenset({JobState.WAITING, JobState.PARKED})


@dataclass(frozen=True, slots=True)
class Lack:
    """One workload that could run if there were more slots: ``places`` of ``slots`` each, those on one node.

    ``anywhere``: a job, whose slots may be on several nodes.
    """

    who: EndpointName | JobName
    places: int
    slots: int
    anywhere: bool = False

    @property
    def words(self) -> str:
        """For people."""
        if self.anywhere:
            return f"job {self.who} waits for {many(self.slots, 'slot')}"
        what = "replica" if self.places == 1 else "replicas"
        return f"{self.places} more {what} of {self.who} of {many(self.slots, 'slot')}"


@dataclass(frozen=True, slots=True)
class Need:
    """All that is wanted against the nodes' room. ``room``: by node, slots that replicas and fixed jobs leave."""

    room: Mapping[NodeId, int]
    lacks: tuple[Lack, ...]
    replicas: Mapping[int, int]  # how many are wanted and have no slots, by their slots
    spread: int  # slots that jobs and the reserve need, on whatever nodes

    def more_nodes(self, node_slots: int, without: frozenset[NodeId] = frozenset()) -> int:
        """How many nodes of ``node_slots`` are needed beside those of ``room``, if ``without`` were not there."""
        room = [slots for node, slots in self.room.items() if node not in without]
        fit = {size: count for size, count in self.replicas.items() if size <= node_slots}
        found = _over(sum(size * count for size, count in fit.items()) + self.spread - sum(room), node_slots)
        for size in fit:
            wanted = sum(count for other, count in fit.items() if other >= size)
            there = sum(slots // size for slots in room)
            found = max(found, _over(wanted - there, node_slots // size))
        return found


def _over(lacking: int, each: int) -> int:
    return max(0, -(-lacking // each))


def need(
    state: PoolState,
    nodes: Sequence[NodeId],
    aims: Mapping[EndpointName, int],
    *,
    node_slots: int,
    reserve: int = 0,
    teams: Sequence[Team] = (),
) -> Need:
    """What is wanted, against the room of ``nodes``.

    Args:
        state: the pool.
        nodes: those that stay.
        aims: replicas that each endpoint should have; one that is not named counts with its least number.
        node_slots: of a node that would be started, and of one whose slots are not known yet.
        reserve: slots that jobs leave free.
        teams: what the file promises them: beyond its quota no team's job could run.
    """
    lacks = tuple(_lacks(state, frozenset(nodes), aims))
    replicas = Counter[int]()
    for lack in lacks:
        if not lack.anywhere:
            replicas[lack.slots] += lack.places
    return Need(_room(state, nodes, node_slots), lacks, dict(replicas), reserve + _spread(state, teams))


def _room(state: PoolState, nodes: Sequence[NodeId], node_slots: int) -> Mapping[NodeId, int]:
    known = Counter(record.slot.node for record in state.slots.values())
    unusable = Counter(record.slot.node for record in state.slots.values() if record.state in NO_USE)
    taken = Counter(node_of(slot) for slot in _fixed(state))
    return {node: max(0, (known[node] or node_slots) - unusable[node] - taken[node]) for node in nodes}


def _fixed(state: PoolState) -> Iterator[SlotId]:
    """Slots whose occupants stay where they are; all others make room."""
    for seat in state.seats.values():
        if seat.state in COMING_OR_READY:
            yield from seat.slots
    for job in state.jobs.values():
        if _is_fixed(job):
            yield from job.gang


def _is_fixed(job: JobRecord) -> bool:
    return job.spec.workload_class is WorkloadClass.NON_PREEMPTIBLE and job.state in JOB_HOLDS_SLOTS


def _lacks(state: PoolState, nodes: frozenset[NodeId], aims: Mapping[EndpointName, int]) -> Iterator[Lack]:
    here = (seat for seat in state.seats.values() if seat.state in COMING_OR_READY)
    # A replica on a node that drains needs a place on another one.
    have = Counter(seat.endpoint for seat in here if not seat.slots or node_of(seat.slots[0]) in nodes)
    for name, record in state.endpoints.items():
        places = aims.get(name, record.spec.replicas_min) - have[name]
        if places > 0:
            yield Lack(name, places, record.spec.slots_per_replica)
    for job in state.jobs.values():
        if job.state in NO_ROOM and _wants(job):
            yield Lack(job.spec.name, 1, job.spec.workers_min, anywhere=True)


def _wants(job: JobRecord) -> bool:
    return job.state is not JobState.ENDED and job.held is None and not job.cancelled


def _spread(state: PoolState, teams: Sequence[Team]) -> int:
    """Slots of all jobs that can be anywhere, each with its fewest workers, as far as their teams may have them."""
    wanted, fixed = Counter[str](), Counter[str]()
    named = {team.name: team for team in teams}
    for job in state.jobs.values():
        team = job.spec.team if job.spec.team in named else OTHERS.name
        if _is_fixed(job):
            fixed[team] += len(job.gang)
        elif _wants(job):
            wanted[team] += job.spec.workers_min
    found = 0
    for name, slots in wanted.items():
        quota = named.get(name, OTHERS).quota
        found += slots if quota is None else min(slots, max(0, quota - fixed[name]))
    return found
