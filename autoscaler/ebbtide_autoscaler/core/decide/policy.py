"""``decide(now_s, snapshot, memory, config) -> (Decision, memory)``: the whole policy, pure.

Serving first, training on what is left. Least disruption first: a free slot, then a job that steps aside in place,
then a job that goes on with fewer workers.

Nobody knows how long a need will last. Whoever waits until waiting has cost as much as acting pays at most twice the
best possible, whatever comes (ski rental): so a job parks at once, and is restarted smaller when it has been parked
for as long as a restart costs. If the endpoint has been busy for that long already, a job that can do with fewer
workers is restarted right away. Where the pool has seen enough parks (``preemption_duration``), a parked job is
restarted at once if they usually last that long.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

from ebbtide.pool.events import Decision, DrainSeat, ResumeJob, StopJob
from ebbtide.pool.ids import EndpointName, JobName
from ebbtide.pool.lookup.index import awaited_slots
from ebbtide.pool.state import SeatRecord
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache, IdleDecision, all_met
from ebbtide_autoscaler.core.decide.new_plan import begin_plan
from ebbtide_autoscaler.core.demand.replica_target import COMING_OR_READY, ReplicaTarget, may_go, replica_targets
from ebbtide_autoscaler.core.jobs.allocate import allocate_to_jobs
from ebbtide_autoscaler.core.jobs.held_jobs import park_held_jobs
from ebbtide_autoscaler.core.jobs.node_drain import vacate
from ebbtide_autoscaler.core.jobs.preemption_duration import with_ended
from ebbtide_autoscaler.core.jobs.reclaim import reclaim as reclaim_from_jobs
from ebbtide_autoscaler.core.plan.inputs import Away, EndpointMemory, Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.plan.outdated import is_on_draining, why_outdated
from ebbtide_autoscaler.core.plan.pending_reasons import PendingReasons
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_autoscaler.core.replicas.endpoint_reclaim import reclaim_from_endpoints
from ebbtide_autoscaler.core.replicas.rolling_update import replace_outdated
from ebbtide_autoscaler.core.replicas.scale_up import scale_up_round_robin
from ebbtide_autoscaler.core.replicas.warm_pool import end_surplus_warm, park_or_drain

Reclaim = Callable[[Plan], None]
"""Has jobs step aside for the slots that a plan misses."""


def decide(
    now_s: float,
    snapshot: Snapshot,
    memory: Memory,
    config: PolicyConfig,
    *,
    reclaim: Reclaim = reclaim_from_jobs,
    cache: IdleCache | None = None,
) -> tuple[Decision, Memory]:
    """What to do now.

    Args:
        now_s: seconds since 1970.
        snapshot: the world; it is not changed.
        memory: what the last call returned.
        config: knobs.
        reclaim: who steps aside; another one is for comparisons.
        cache: this caller's own, across calls; it changes no move, but words of waits may be some seconds old.

    Returns:
        The decision, every move with its reason, and the memory for the next call.
    """
    state = snapshot.state
    targets, endpoints = replica_targets(now_s, snapshot, memory, config)
    cache = cache or IdleCache()
    if cache.last is not None and cache.last.holds(now_s, snapshot, memory, config, targets, reclaim):
        return Decision(waits=cache.last.waits), _with(memory, endpoints, {}, memory.away)
    plan = begin_plan(now_s, snapshot, memory, config)
    vacate(plan)  # guard: jobs leave a draining node
    park_held_jobs(plan)  # guard: a job that a person holds leaves its slots
    for _, group in groupby(targets, key=lambda target: state.endpoints[target.endpoint].spec.priority):
        same = list(group)
        scale_up_round_robin([target for target in same if target.replicas > target.now], plan)
        for target in same:
            if target.replicas < target.now:
                _lower(target, plan)
            replace_outdated(target, plan)
    reclaim(plan)
    reclaim_from_endpoints(targets, plan)
    grow_since_s = allocate_to_jobs(plan, memory.grow_since_s)
    end_surplus_warm(plan)  # guard: warm replicas give way
    decision = Decision(moves=tuple(plan.moves), waits=PendingReasons(plan.waits))
    ending = [move.job for move in plan.moves if isinstance(move, ResumeJob | StopJob)]
    worth_s = {name: plan.restart_costs_s(name) for name in ending}
    away = with_ended(memory.away, now_s, state, plan.moves, worth_s)
    if not plan.moves and not grow_since_s and all_met(targets):
        cache.last = IdleDecision(
            state, snapshot.asides, memory.away, config, reclaim, now_s, plan.until_s, decision.waits
        )
    return decision, _with(memory, endpoints, grow_since_s, away)


def _with(
    memory: Memory,
    endpoints: Mapping[EndpointName, EndpointMemory],
    grow_since_s: Mapping[JobName, float],
    away: tuple[Away, ...],
) -> Memory:
    """The next memory; the same object if nothing is new."""
    if (endpoints, grow_since_s, away) == (memory.endpoints, memory.grow_since_s, memory.away):
        return memory
    return replace(memory, endpoints=endpoints, grow_since_s=grow_since_s, away=away)


def _lower(target: ReplicaTarget, plan: Plan) -> None:
    """Drain replicas that must go anyway, else park or drain those that may go.

    Of these first those on slots on which a parked job would go on, then those with the highest seat numbers.
    """
    state = plan.state
    record = state.endpoints[target.endpoint]
    seats = [seat for seat in state.seats_of(target.endpoint) if seat.state in COMING_OR_READY]
    going = [seat for seat in seats if may_go(plan.now_s, state, record, seat)]
    claimed = awaited_slots(state.jobs)

    def goes_first(seat: SeatRecord) -> tuple[bool, bool, bool]:
        lets_back = not claimed.keys().isdisjoint(seat.slots)
        return not is_on_draining(state, seat), not why_outdated(state, seat), not lets_back

    for seat in sorted(reversed(going), key=goes_first)[: target.now - target.replicas]:  # a stable sort
        why = why_outdated(state, seat)
        if why:
            plan.moves.append(DrainSeat(seat.id, f"{why}; {target.reason}"))
        else:
            park_or_drain(seat, target.reason, plan)
