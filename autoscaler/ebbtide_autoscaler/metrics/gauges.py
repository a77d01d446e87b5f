"""What is so now, as a scrape shows it: ``gauges(state, memory, seen, now_s)``. Pure; one pass over all there is."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.ids import JobName, NodeId
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import JOB_CLAIMS_SLOTS, JOB_HOLDS_SLOTS, JobState, SeatState, SlotState
from ebbtide.telemetry import arbiter, pool, training
from ebbtide.telemetry.metric_family import UNKNOWN, Sample
from ebbtide_autoscaler.core.observe.alerts import FreezeCause
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.inputs import Memory

HEARD_S = 5.0  # agents report once a second, gateways ten times: who missed five is missed

POOL_GAUGES = (
    pool.SLOTS,
    pool.DRAINING_SLOTS,
    pool.NODES,
    pool.AGENTS,
    pool.AGENT_AGE,
    pool.GATEWAYS,
    pool.HOST_MEMORY,
    pool.PARKED_MEMORY,
    pool.WARM_MEMORY,
    pool.REPLICAS,
    pool.REPLICAS_WANTED,
    training.JOBS,
    training.HELD,
    training.STEP,
    training.DURABLE_STEP,
    training.WORKERS,
    training.STEP_TIME,
    training.TEAM_SLOTS,
    training.TEAM_WAITING,
)
SELF_GAUGES = (
    arbiter.FROZEN,
    arbiter.FROZEN_SINCE,
    arbiter.MODE,
    arbiter.EPOCH,
    arbiter.WAITING,
    arbiter.NODES_WANTED,
    arbiter.CLUSTER_UNTOLD,
    arbiter.LEDGER_PENDING,
    arbiter.LEDGER_PENDING_AGE,
)


def gauges(state: PoolState, memory: Memory, seen: Observation, now_s: float) -> Iterator[Sample]:
    """Samples of ``POOL_GAUGES``."""
    yield from _slots(state)
    yield from _nodes(state, seen, now_s)
    yield from _replicas(state, memory)
    yield from _jobs(state, seen)
    yield from _teams(state)


def _slots(state: PoolState) -> Iterator[Sample]:
    found = Counter((record.state, _used_for(state, record)) for record in state.slots.values())
    for one in SlotState:
        found.setdefault((one, UNKNOWN), 0)  # a series that comes and goes makes holes in every graph
    for (one, used_for), count in found.items():
        yield Sample(pool.SLOTS, count, (one.value, used_for))
    yield Sample(pool.DRAINING_SLOTS, sum(record.slot.node in state.draining for record in state.slots.values()))


def _used_for(state: PoolState, record: SlotRecord) -> str:
    if record.occupant is None:
        return UNKNOWN
    return "training" if record.occupant in state.jobs else "serving"


def _nodes(state: PoolState, seen: Observation, now_s: float) -> Iterator[Sample]:
    draining = state.draining
    yield Sample(pool.NODES, sum(node not in draining for node in state.nodes), ("up",))
    yield Sample(pool.NODES, sum(node in draining for node in state.nodes), ("draining",))
    ages_s = [now_s - seen.agents[node].at_s for node in state.nodes if node in seen.agents]
    yield Sample(pool.AGENTS, sum(age_s <= HEARD_S for age_s in ages_s))
    yield Sample(pool.AGENT_AGE, max([0.0, *ages_s]))
    yield Sample(pool.GATEWAYS, sum(now_s - heard.at_s <= HEARD_S for heard in seen.gateways.values()))
    parked = Counter[NodeId]()
    for job in state.jobs.values():
        if job.state in JOB_CLAIMS_SLOTS:
            for slot in job.gang:
                if slot in state.slots:
                    parked[state.slots[slot].slot.node] += job.spec.host_bytes_per_worker
    for node, host_bytes in state.nodes.items():
        yield Sample(pool.HOST_MEMORY, host_bytes, (node,))
        yield Sample(pool.WARM_MEMORY, state.warm_bytes(node), (node,))
        yield Sample(pool.PARKED_MEMORY, parked[node], (node,))


def _replicas(state: PoolState, memory: Memory) -> Iterator[Sample]:
    living = [one for one in SeatState if one is not SeatState.COLD]
    found = Counter((seat.endpoint, seat.state) for seat in state.seats.values())
    for name, record in state.endpoints.items():
        for one in living:
            yield Sample(pool.REPLICAS, found[name, one], (name, one.value))
        remembered = memory.endpoints.get(name)
        wanted = remembered.aim if remembered else record.spec.replicas_min
        yield Sample(pool.REPLICAS_WANTED, wanted, (name,))


def _jobs(state: PoolState, seen: Observation) -> Iterator[Sample]:
    living = [job for job in state.jobs.values() if job.state is not JobState.ENDED]
    found = Counter(job.state for job in living)
    for one in JobState:
        if one is not JobState.ENDED:
            yield Sample(training.JOBS, found[one], (one.value,))
    yield Sample(training.HELD, sum(job.held is not None for job in living))
    steps: dict[JobName, int] = {}
    slowest_s: dict[JobName, float] = {}
    for (name, rank), heard in seen.ranks.items():
        job = state.jobs.get(name)
        if job is not None and heard.report.incarnation == job.incarnation and rank < len(job.gang):
            steps[name] = max(steps.get(name, 0), heard.report.step)
            slowest_s[name] = max(slowest_s.get(name, 0.0), heard.report.step_s)
    for job in living:
        labels = (job.spec.name,)
        yield Sample(training.STEP, max(job.step, steps.get(job.spec.name, 0)), labels)
        yield Sample(training.DURABLE_STEP, job.durable_step, labels)
        yield Sample(training.WORKERS, len(job.gang) if job.state not in JOB_CLAIMS_SLOTS else 0, labels)
        yield Sample(training.STEP_TIME, slowest_s.get(job.spec.name, 0.0), labels)


def _teams(state: PoolState) -> Iterator[Sample]:
    """Of every team with a living job, whether the file names it or not."""
    held, waits = Counter[str](), Counter[str]()
    for job in state.jobs.values():
        if job.state is JobState.ENDED:
            continue
        team, aside = job.spec.team, job.state in (JobState.WAITING, JobState.PARKED)
        held[team] += len(job.gang) if job.state in JOB_HOLDS_SLOTS else 0
        waits[team] += (len(job.gang) or job.spec.workers_min) if aside and job.held is None else 0
    for team, count in held.items():
        yield Sample(training.TEAM_SLOTS, count, (team,))
        yield Sample(training.TEAM_WAITING, waits[team], (team,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How the arbiter itself does."""

    epoch: int
    frozen_by: FreezeCause | None  # None = it moves
    frozen_since_s: float
    mode: PoolMode
    waiting: int
    nodes_wanted: int
    cluster_untold: bool
    pending: int  # appends to the ledger that are not yet durable
    oldest_pending_s: float


def condition_gauges(now: Condition) -> Iterator[Sample]:
    """Samples of ``SELF_GAUGES``."""
    for cause in FreezeCause:
        yield Sample(arbiter.FROZEN, float(cause is now.frozen_by), (cause,))
    yield Sample(arbiter.FROZEN_SINCE, now.frozen_since_s if now.frozen_by else 0.0)
    for mode in PoolMode:
        yield Sample(arbiter.MODE, float(mode is now.mode), (mode,))
    yield Sample(arbiter.EPOCH, now.epoch)
    yield Sample(arbiter.WAITING, now.waiting)
    yield Sample(arbiter.NODES_WANTED, now.nodes_wanted)
    yield Sample(arbiter.CLUSTER_UNTOLD, float(now.cluster_untold))
    yield Sample(arbiter.LEDGER_PENDING, now.pending)
    yield Sample(arbiter.LEDGER_PENDING_AGE, now.oldest_pending_s)
