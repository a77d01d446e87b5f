"""Which free slots a replica or a gang gets. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from ebbtide.pool.ids import JobName, NodeId, SlotId
from ebbtide.pool.index import awaited, nodes_with, remembered
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState, SlotRecord
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, SlotState


def placing_nodes(state: PoolState) -> frozenset[NodeId]:
    """Nodes on which a replica is being placed: the next one there would be taken for it."""
    return frozenset(nodes_with(state.slots, SlotState.OPENING))


def for_replica(
    state: PoolState, free: Iterable[SlotId], count: int, busy: Collection[NodeId] = frozenset()
) -> tuple[SlotId, ...]:
    """``count`` free slots of one node that is not ``busy``; () if there are none.

    Slots that no parked job waits for go first, so that parked jobs can come back; then the fullest node, so that
    larger gangs find room elsewhere.
    """
    by_node: dict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    fitting = [slots for node, slots in by_node.items() if node not in busy and len(slots) >= count]
    if not fitting:
        return ()

    by_slot = awaited(state.jobs)
    if not by_slot:
        return tuple(min(fitting, key=len)[:count])

    def claimed(slot: SlotId) -> int:
        return len(by_slot.get(slot, ()))

    def disturbs(slots: list[SlotId]) -> tuple[int, int]:
        if by_slot.keys().isdisjoint(slots):
            return 0, len(slots)
        return sum(sorted(claimed(slot) for slot in slots)[:count]), len(slots)

    best = min(fitting, key=disturbs)
    return tuple(sorted(best, key=lambda slot: (claimed(slot), slot))[:count])


def nearest(state: PoolState, free: Iterable[SlotId], count: int) -> tuple[NodeId, tuple[SlotId, ...]] | None:
    """The node that lacks fewest of ``count`` slots, and its free ones; None if no node can come to have so many.

    Slots of jobs can be had in time, as far as their class lets them go; slots of replicas and strangers cannot.
    """
    by_node: dict[NodeId, list[SlotId]] = {node: [] for node in state.nodes if node not in state.draining}
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    leaving, lendable = nodes_with(state.slots, SlotState.RECLAIMING), _lendable(state)

    def could_be(node: NodeId) -> int:
        return len(by_node[node]) + leaving.get(node, 0) + lendable.get(node, 0)

    # A single slot is waited for even if nobody may go now: there is nothing that would be kept idle for it.
    fitting = [node for node in by_node if count == 1 or could_be(node) >= count]
    if not fitting:
        return None
    best = min(fitting, key=lambda node: (-len(by_node[node]) - leaving.get(node, 0), -len(by_node[node]), node))
    return best, tuple(by_node[best])


def _lendable(state: PoolState) -> Mapping[NodeId, int]:
    """How many slots of each node the classes of their jobs let go."""
    return _lendable_of(state.jobs, state.slots)


@remembered
def _lendable_of(jobs: Mapping[JobName, JobRecord], slots: Mapping[SlotId, SlotRecord]) -> Mapping[NodeId, int]:
    found: Counter[NodeId] = Counter()
    for job in jobs.values():
        if job.state in JOB_HOLDS_SLOTS:
            most = may_lose(job)
            for node, here in Counter(slots[slot].slot.node for slot in job.gang).items():
                found[node] += min(here, most)
    return found


def may_lose(job: JobRecord) -> int:
    """How many of its slots a job's class lets go."""
    if job.spec.workload_class is WorkloadClass.NON_PREEMPTIBLE:
        return 0
    if job.spec.workload_class is WorkloadClass.SEMI_PREEMPTIBLE:
        return max(0, len(job.gang) - job.spec.workers_min)
    return len(job.gang)


def packed(state: PoolState, free: Iterable[SlotId], count: int) -> tuple[SlotId, ...]:
    """``count`` slots for a gang, on as few nodes as possible."""
    by_node: dict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    chosen: list[SlotId] = []
    for node in sorted(by_node, key=lambda name: (-len(by_node[name]), name)):
        chosen += by_node[node][: count - len(chosen)]
    return tuple(chosen)
