"""What teams do instead of our policy: who steps aside, and how many replicas there are.

=============  ======================================================================================================
newest first   the job that began last is taken first, whatever its size
whole servers  replicas get and give whole servers (Lyra, EuroSys'23): first elastic jobs give back what they have
               beyond what they ask for, then of the lent servers the one comes back that costs jobs the least
a schedule     what the days before needed at that hour, and something on top (GFS, ASPLOS'26; Runway)
=============  ======================================================================================================
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import ceil

from ebbtide.pool.events import StopJob
from ebbtide.pool.ids import EndpointName, NodeId
from ebbtide.pool.lookup.index import in_state
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.core.demand.load import running
from ebbtide_autoscaler.core.jobs.preemption_move import preempt
from ebbtide_autoscaler.core.plan.inputs import Snapshot
from ebbtide_autoscaler.core.plan.placement import may_lose
from ebbtide_autoscaler.core.plan.plan import Plan

DAY_S = 86_400.0
BACKLOG_S = 20.0  # within which what waits is to be answered
SLICE_S = 900.0  # of a schedule


def newest_first(plan: Plan) -> None:
    """Jobs step aside until the replicas' missing slots are on their way: the one that began last goes first."""
    state = plan.state
    missing = plan.shortfall.asked - _coming(state)
    may_go = (job for job in state.jobs.values() if job.state is JobState.RUNNING and may_lose(job))
    for job in sorted(may_go, key=lambda job: -job.ran_since_s):
        if missing <= 0:
            return
        missing -= may_lose(job)
        if may_lose(job) < len(job.gang):
            plan.moves.append(StopJob(job.spec.name, f"{plan.shortfall.whom}: keeps its least", preempts=True))
        else:
            plan.moves.append(preempt(job, plan, plan.shortfall.whom))


def whole_servers(plan: Plan) -> None:
    """Elastic jobs shrink, then whole servers come back from jobs, until the missing slots are on their way."""
    state = plan.state
    missing = plan.shortfall.asked - _coming(state)
    left: set[str] = set()
    for job in _with_most_to_spare(state):
        if missing <= 0:
            return
        spare = len(job.gang) - job.spec.workers_min
        left.add(job.spec.name)
        why = f"{plan.shortfall.whom}: elastic, goes on with {len(job.gang) - min(spare, missing)} workers"
        plan.moves.append(StopJob(job.spec.name, why, preempts=True))
        missing -= spare
    by_node: defaultdict[NodeId, list[JobRecord]] = defaultdict(list)
    for job in state.jobs.values():
        if job.state is JobState.RUNNING and job.spec.workload_class is WorkloadClass.PREEMPTIBLE:
            for node in dict.fromkeys(state.slots[slot].slot.node for slot in job.gang):
                by_node[node].append(job)
    while missing > 0 and by_node:
        node = min(by_node, key=lambda name: preemption_cost(by_node[name], left))  # of equals the first
        for job in by_node.pop(node):
            if job.spec.name not in left:
                left.add(job.spec.name)
                plan.moves.append(preempt(job, plan, f"server {node} for {plan.shortfall.whom}"))
                missing -= len(job.gang)


def _with_most_to_spare(state: PoolState) -> Sequence[JobRecord]:
    """Running jobs that have more workers than they ask for; those with the most of them first, so that few move."""
    elastic = (
        job
        for job in state.jobs.values()
        if job.state is JobState.RUNNING
        and job.spec.workload_class is not WorkloadClass.NON_PREEMPTIBLE
        and len(job.gang) > job.spec.workers_min
    )
    return sorted(elastic, key=lambda job: (job.spec.workers_min - len(job.gang), -job.submitted_s))


def preemption_cost(jobs: Sequence[JobRecord], left: Collection[str]) -> int:
    """GPUs whose training stops if a server with these jobs comes back; those that leave anyway cost nothing more."""
    return sum(len(job.gang) for job in jobs if job.spec.name not in left)


def _coming(state: PoolState) -> int:
    """Slots that are on their way already."""
    return len(in_state(state.slots, SlotState.RECLAIMING))


class Servers:
    """As many replicas as fill whole servers: what demand needs and some headroom, held for a while."""

    def __init__(
        self,
        sizes: Mapping[EndpointName, tuple[int, int]],
        most: Mapping[EndpointName, int],
        hold_s: float,
        headroom: float,
    ) -> None:
        """``sizes``: requests that a replica serves at once, and replicas of a server; the rest: see `Knobs`."""
        self._sizes, self._most, self._hold_s, self._headroom = sizes, most, hold_s, headroom
        self._held: dict[EndpointName, tuple[int, float]] = {}  # servers, and when fewer would have done last

    def __call__(self, now_s: float, snapshot: Snapshot) -> Mapping[EndpointName, tuple[int, int]]:
        """Every replica of every server that is held."""
        found = {}
        for name, (per_replica, of_server) in self._sizes.items():
            signals = snapshot.traffic[name]
            waiting = signals.held * signals.stay_s / BACKLOG_S
            replicas = ceil((running(signals) * self._headroom + waiting) / per_replica)
            needed = max(1, ceil(replicas / of_server))
            servers, since_s = self._held.get(name, (needed, now_s))
            if needed >= servers:
                servers, since_s = needed, now_s
            elif now_s - since_s >= self._hold_s:
                servers, since_s = servers - 1, now_s
            self._held[name] = (servers, since_s)
            count = min(servers * of_server, self._most[name])
            found[name] = (count, count)
        return found


class Schedule:
    """Learns what each quarter of an hour needs; the first day is not lent at all."""

    def __init__(
        self, per_replica: Mapping[EndpointName, int], most: Mapping[EndpointName, int], headroom: float
    ) -> None:
        """``headroom``: above what it has seen."""
        self._per_replica, self._most, self._headroom = per_replica, most, headroom
        self._first: dict[EndpointName, int] = {}  # of each the first quarter of an hour in which it was there
        self._highest: dict[EndpointName, dict[int, float]] = {name: {} for name in per_replica}

    def __call__(self, now_s: float, snapshot: Snapshot) -> Mapping[EndpointName, tuple[int, int]]:
        """As many as the last two days needed in this quarter of an hour and the next, and what is there now."""
        number, slices = int(now_s // SLICE_S), int(DAY_S // SLICE_S)
        found = {}
        for name, per_replica in self._per_replica.items():
            record = snapshot.state.endpoints.get(name)
            if record is None or not record.spec.replicas_max:
                continue
            seen, now = self._highest[name], running(snapshot.traffic[name])
            first = self._first.setdefault(name, number)
            seen[number] = max(seen.get(number, 0.0), now)
            then = [seen.get(number + ahead - back * slices) for ahead in (0, 1) for back in (1, 2)]
            known = [one for one in then if one is not None and number - first >= slices]
            least = (
                min(self._most[name], ceil(max(known) * self._headroom / per_replica)) if known else self._most[name]
            )
            found[name] = (max(1, least), self._most[name])
        return found
