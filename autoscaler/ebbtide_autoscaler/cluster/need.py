"""How many nodes more than it has the pool needs for all that is wanted. Pure.

What is wanted: the replicas that endpoints aim at (what is asked for, expected, scheduled or promised), every job that
is not held with the fewest workers it can run with, and the reserve. A job takes more than its least where there is
room, but no node is started for that, nor kept.

A job that runs makes room as far as the policy may ever ask it to: not where its class keeps it, nor if its file allows
no preemption at all. What keeps it for a time only counts as room (it has been preempted as often as it may within this
hour, or is within its minimum runtime): that ends by itself, and a node that was started meanwhile would stay, with a
replica on it.

Counted is what fits for certain, no packing is tried: replicas of each size need so many places on single nodes, and
all together need so many slots. So the answer never falls when more is wanted and never rises with more nodes, which a
packing heuristic does not promise (bin packing has such anomalies). The price: where replicas of several sizes share
nodes badly, or a job can make room on either of two nodes and not on both, a node too few may be counted; none is ever
counted that is not needed while the jobs that keep their slots stay where they are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebbtide.pool.ids import EndpointName, JobName, NodeId, node_of
from ebbtide.pool.lookup.index import on_nodes
from ebbtide.pool.plural import many
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState, SlotState
from ebbtide_autoscaler.core.demand.replica_target import COMING_OR_READY
from ebbtide_autoscaler.core.plan.fair_share import OTHERS, Team
from ebbtide_autoscaler.core.plan.placement import may_lose

NO_USE = frozenset({SlotState.LOST, SlotState.FOREIGN})
NO_ROOM = frozenset({JobState.WAITING, JobState.PARKED})


@dataclass(frozen=True, slots=True)
class UnmetRequest:
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
    """All that is wanted against the nodes' room. ``room``: by node, slots that nobody keeps."""

    room: Mapping[NodeId, int]
    lacks: tuple[UnmetRequest, ...]
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
    kept = {name: _kept(job) for name, job in state.jobs.items()}
    room = _room(state, nodes, kept, node_slots)
    return Need(room, lacks, dict(replicas), reserve + _spread(state, frozenset(nodes), kept, teams))


def _kept(job: JobRecord) -> Mapping[NodeId, int]:
    """Slots by node that it never makes free, unless a person puts it aside or drains the node."""
    if job.state not in JOB_HOLDS_SLOTS or not _wants(job):
        return {}
    gives = may_lose(job)
    if gives == len(job.gang):
        return {}
    return {node: here - gives for node, here in on_nodes(job.gang, 1).items() if here > gives}


def _room(
    state: PoolState, nodes: Sequence[NodeId], kept: Mapping[JobName, Mapping[NodeId, int]], node_slots: int
) -> Mapping[NodeId, int]:
    known = Counter(record.slot.node for record in state.slots.values())
    taken = Counter(record.slot.node for record in state.slots.values() if record.state in NO_USE)
    for seat in state.seats.values():
        if seat.state in COMING_OR_READY:
            taken.update(map(node_of, seat.slots))
    for here in kept.values():
        taken.update(here)
    return {node: max(0, (known[node] or node_slots) - taken[node]) for node in nodes}


def _lacks(state: PoolState, nodes: frozenset[NodeId], aims: Mapping[EndpointName, int]) -> Iterator[UnmetRequest]:
    here = (seat for seat in state.seats.values() if seat.state in COMING_OR_READY)
    # A replica on a node that drains needs a place on another one.
    have = Counter(seat.endpoint for seat in here if not seat.slots or node_of(seat.slots[0]) in nodes)
    for name, record in state.endpoints.items():
        places = aims.get(name, record.spec.replicas_min) - have[name]
        if places > 0:
            yield UnmetRequest(name, places, record.spec.slots_per_replica)
    for job in state.jobs.values():
        if job.state in NO_ROOM and _wants(job):
            yield UnmetRequest(job.spec.name, 1, job.spec.workers_min, anywhere=True)


def _wants(job: JobRecord) -> bool:
    return job.state is not JobState.ENDED and job.held is None and not job.cancelled


def _spread(
    state: PoolState, nodes: frozenset[NodeId], kept: Mapping[JobName, Mapping[NodeId, int]], teams: Sequence[Team]
) -> int:
    """Slots that jobs need on whatever nodes: for the fewest workers of each, as far as its team may have them.

    What it keeps on one of ``nodes`` is taken there already.
    """
    wanted, fixed = Counter[str](), Counter[str]()
    named = {team.name: team for team in teams}
    for name, job in state.jobs.items():
        team = job.spec.team if job.spec.team in named else OTHERS.name
        stays = sum(count for node, count in kept[name].items() if node in nodes)
        fixed[team] += stays
        if _wants(job):
            wanted[team] += max(0, job.spec.workers_min - stays)
    found = 0
    for team, slots in wanted.items():
        quota = named.get(team, OTHERS).quota
        found += slots if quota is None else min(slots, max(0, quota - fixed[team]))
    return found
