"""How each job of the pool would step aside, from the ledger and the last reports. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ebbtide.client.messages import NodeCapabilities, RankReport
from ebbtide.pool.ids import JobName, NodeId, SlotId, node_of
from ebbtide.pool.lookup.index import by_node
from ebbtide.pool.spec import JobSpec
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JOB_IN_HOST_MEMORY, JobState
from ebbtide.snapshot.tiers.step_aside import Asks, StepAside, There, step_aside
from ebbtide_autoscaler.core.observe.observation import Observation

LIVING = frozenset(JobState) - {JobState.ENDED}
MAY_STEP_ASIDE = frozenset({JobState.RUNNING, JobState.PARKED})  # of others nothing is decided by it
_UNSAID = NodeCapabilities()
_GPU = ("GPU-", "MIG-")  # so NVML's uuids begin; a logical GPU is named after its machine


def preemption_costs(
    state: PoolState,
    seen: Observation,
    *,
    restart_s: float,
    expected_s: float | None = None,
    states: Collection[JobState] = LIVING,
) -> Mapping[JobName, StepAside]:
    """Of every living job; those that no node of the pool could hold are left out.

    Args:
        states: only of jobs in one of these.
        restart_s: what a restart is assumed to cost, the reading of the checkpoint left out.
        expected_s: how long a job has to do without its slots; None: nobody knows.
    """
    found, gpus = {}, {node: _gpus(seen, node) for node in state.nodes}
    for name, job in state.jobs.items():
        if job.state not in states:
            continue
        said = _said(job, seen)
        asks = _asks(job, said, restart_s, expected_s)
        places = _on_gang(state, seen, job, gpus) if job.gang else _anywhere(state, seen, job.spec)
        if places:
            found[name] = step_aside(asks, places)
    return found


def at_admission(state: PoolState, seen: Observation, spec: JobSpec, *, restart_s: float) -> StepAside | None:
    """Of a job that is just submitted, by what it declares; None: the pool has no node yet."""
    places = _anywhere(state, seen, spec)
    return step_aside(declared_asks(spec, restart_s), places) if places else None


def declared_asks(spec: JobSpec, restart_s: float) -> Asks:
    """What the job's file says of it."""
    return Asks(
        worker_bytes=spec.host_bytes_per_worker, in_place=spec.in_place, grace_s=spec.grace_s, restart_s=restart_s
    )


def _said(job: JobRecord, seen: Observation) -> list[RankReport]:
    """The last word of each of its ranks, of this submission."""
    heard = (seen.ranks.get((job.spec.name, rank)) for rank in range(len(job.gang)))
    return [one.report for one in heard if one is not None and one.report.incarnation == job.incarnation]


def _asks(job: JobRecord, said: list[RankReport], restart_s: float, expected_s: float | None) -> Asks:
    spec, step_s = job.spec, max((report.step_s for report in said), default=0.0)
    undone = max([job.step, *(report.step for report in said)]) - job.durable_step
    tracked_bytes = max((report.tracked_bytes for report in said), default=0)
    return Asks(
        worker_bytes=tracked_bytes or spec.host_bytes_per_worker,
        measured=tracked_bytes > 0,
        in_place=spec.in_place,
        hindered=next((report.in_place_hindered for report in said if report.in_place_hindered), ""),
        unwritten=next((report.commit_error for report in said if report.commit_error), ""),
        grace_s=spec.grace_s,
        # Rounded, so that the same question is asked again and again: only its answer's second digit depends on these.
        step_s=round(step_s, 1),
        kill_loses_s=float(round(undone * step_s, -1)) if said else 60.0,
        restart_s=restart_s,
        expected_s=expected_s,
    )


def _on_gang(state: PoolState, seen: Observation, job: JobRecord, gpus: Mapping[NodeId, int]) -> tuple[There, ...]:
    """Where its gang is. Host memory that it has while it is parked counts as its own, not as taken by others."""
    takes = job.state in JOB_IN_HOST_MEMORY
    found = []
    for node, workers in _by_node(job.gang):
        left = state.nodes.get(node, 0) - state.parked_bytes(node)
        left += workers * job.spec.host_bytes_per_worker if takes else 0
        found.append(_there(seen, node, workers, gpus.get(node, 0), max(0, left)))
    return tuple(found)


@lru_cache(maxsize=4096)  # a gang stays where it is for many ticks, and the largest pools have some thousands
def _by_node(gang: tuple[SlotId, ...]) -> Sequence[tuple[NodeId, int]]:
    """How many workers a gang has on each node, in order."""
    return sorted(Counter(map(node_of, gang)).items())


def _anywhere(state: PoolState, seen: Observation, spec: JobSpec) -> tuple[There, ...]:
    """Every kind of node that the job may get, with as many workers as it needs at least and as fit on such a node.

    Who is parked there now says nothing of the time when the job runs, so the whole budget of host memory counts.
    """
    workers = {node: min(len(by_node(state.slots, node)), spec.workers_min) for node in state.nodes}
    found = (
        _there(seen, node, count, _gpus(seen, node), state.nodes[node]) for node, count in workers.items() if count
    )
    return tuple(dict.fromkeys(replace(one, host_free_bytes=None) for one in found))


def _gpus(seen: Observation, node: NodeId) -> int:
    """How many real ones it has, as far as its agent has said."""
    heard = seen.agents.get(node)
    return sum(uuid.startswith(_GPU) for uuid in heard.report.uuids.values()) if heard is not None else 0


def _there(seen: Observation, node: NodeId, workers: int, gpus: int, budget_bytes: int) -> There:
    heard = seen.agents.get(node)
    means = heard.report.means if heard is not None else _UNSAID
    return There(
        workers=workers,
        gpus=min(workers, gpus),
        helper=means.helper,
        budget_bytes=budget_bytes,
        host_free_bytes=means.host_free_bytes,
        rates=means.rates,
    )
