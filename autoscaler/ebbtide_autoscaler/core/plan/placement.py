"""Where slots can be had, and which a gang gets; which a replica gets: ``free_slots``. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ebbtide.pool.ids import NodeId, SlotId
from ebbtide.pool.lookup.derived_maps import select, sum_by
from ebbtide.pool.lookup.index import nodes_with, on_nodes
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState, SlotState
from ebbtide_autoscaler.core.plan.protection import why_protected


def placing_nodes(state: PoolState) -> frozenset[NodeId]:
    """Nodes on which a replica is being placed: the next one there would be taken for it."""
    return frozenset(nodes_with(state.slots, SlotState.OPENING))


def may_be_asked(job: JobRecord) -> bool:
    """Whether the job can step aside now without the loss of a step: it trains, or it loads and has none yet."""
    return job.state is JobState.RUNNING or job.loading


def lendable(state: PoolState) -> Mapping[NodeId, int]:
    """How many slots of each node can ever be asked of the jobs there: the sum of `may_lose`."""
    return _lendable(state.jobs)


@sum_by
def _lendable(job: JobRecord) -> Mapping[NodeId, int] | None:
    return _lendable_of(job) if job.state in JOB_HOLDS_SLOTS else None


def _lendable_of(job: JobRecord) -> Mapping[NodeId, int]:
    return {node: min(here, may_lose(job)) for node, here in on_nodes(job.gang, 1).items()}


def askable(now_s: float, state: PoolState) -> Mapping[NodeId, int]:
    """How many slots of each node running jobs may be asked for now."""
    found = dict(_of_running(state.jobs))
    for job, here in _running(state.jobs).values():
        if why_protected(now_s, job):  # most are not, and are counted already
            for node, count in here.items():
                found[node] = found.get(node, 0) - count  # one that gives nothing is not there
    return found


@sum_by
def _of_running(job: JobRecord) -> Mapping[NodeId, int] | None:
    return _lendable_of(job) if may_be_asked(job) else None


@select
def _running(job: JobRecord) -> tuple[JobRecord, Mapping[NodeId, int]] | None:
    return (job, _lendable_of(job)) if may_be_asked(job) else None


def may_lose(job: JobRecord) -> int:
    """How many of its slots a job can ever be asked for: by its class, and none if its file allows no preemption."""
    if (
        job.spec.workload_class is WorkloadClass.NON_PREEMPTIBLE  # guard: a non-preemptible job is not counted upon
        or not job.spec.max_preemptions_per_h
    ):
        return 0
    # guard: a semi-preemptible job is counted upon only above its minimum
    if job.spec.workload_class is WorkloadClass.SEMI_PREEMPTIBLE:
        return max(0, len(job.gang) - job.spec.workers_min)
    return len(job.gang)


def pack(state: PoolState, free: Iterable[SlotId], count: int) -> tuple[SlotId, ...]:
    """``count`` slots for a gang, on as few nodes as possible."""
    by_node: dict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    found: list[SlotId] = []
    for node in sorted(by_node, key=lambda name: (-len(by_node[name]), name)):
        found += by_node[node][: count - len(found)]
    return tuple(found)
