"""The plan with which a decision begins: free slots, and which of them are kept for minima of jobs. Pure."""

from ebbtide_autoscaler.core.jobs.owed_minima import minima_owed, reserve_minima
from ebbtide_autoscaler.core.jobs.preemption_duration import expected_s
from ebbtide_autoscaler.core.plan.fair_share import Shares
from ebbtide_autoscaler.core.plan.free_slots import FreeSlots
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_autoscaler.core.replicas.scale_up import refresh_lookups


def begin_plan(now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig) -> Plan:
    """A plan without moves."""
    state = snapshot.state
    refresh_lookups(state)
    free = state.free_slots()
    shares = Shares(config.teams, state.jobs) if config.teams else None
    minima = minima_owed(state, shares)
    owed = reserve_minima(state, free, minima)
    return Plan(
        now_s,
        state,
        config,
        free=FreeSlots(now_s, state, owed),
        owed=[slot for slot in free if slot in owed] if owed else [],
        minima=minima,
        asides=snapshot.asides,
        expected_s=expected_s(memory.away, now_s, park_first=config.park_first),
        shares=shares,
    )
