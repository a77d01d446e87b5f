"""What the policy would come to at a later time, if demand is then as it is expected to be: ``plan --at``. Pure.

Jobs and replicas are taken to be as they are now, apart from what this demand brings about. So are gateways: what those
that are silent now would say is not known then either.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.demand.load import is_smooth, running
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget, replica_targets
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, EndpointSignals, Memory, PolicyConfig, Snapshot

QUIET = 0.05  # requests at once: with fewer nobody is taken to ask at all
MANY_WAITS = 64  # an eighth of the replicas goes at a time: by then as many as ever will


def look_ahead(now_s: float, at_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig) -> dict[str, Any]:
    """Demand and replicas by endpoint at ``at_s``, and the moves that they begin with, as JSON.

    Args:
        now_s: seconds since 1970.
        at_s: not before ``now_s``.
        snapshot: the pool as it is, with what is expected.
        memory: of the last decision.
        config: knobs.
    """
    lead_s = at_s - now_s
    traffic = {name: _signals_then(snapshot, name, lead_s, at_s) for name in snapshot.state.endpoints}
    outlooks = {name: outlook.later(lead_s) for name, outlook in snapshot.outlooks.items()}
    then = replace(snapshot, traffic=traffic, outlooks=outlooks)
    settled = _settled(at_s, then, memory, config)
    targets = {target.endpoint: target for target in replica_targets(at_s, then, settled, config)[0]}
    decision, _ = decide(at_s, then, settled, config)
    return {
        "at_s": at_s,
        "endpoints": [_row(snapshot, then, settled, targets[name], lead_s) for name in snapshot.state.endpoints],
        "free_slots": len(snapshot.state.free_slots()),
        "moves": [{"kind": move.kind, "reason": move.reason, **_about(move)} for move in decision.moves],
    }


def _about(move: Any) -> dict[str, Any]:
    found = {one: getattr(move, one, None) for one in ("seat", "job", "slots")}
    return {one: value for one, value in found.items() if value}


def _signals_then(snapshot: Snapshot, name: EndpointName, lead_s: float, at_s: float) -> EndpointSignals:
    """What gateways would say of demand as it is expected."""
    now = snapshot.traffic.get(name, EndpointSignals())
    if not now.known:
        return now
    outlook = snapshot.outlooks.get(name)
    demand = outlook.running_in(lead_s, running(now)) if outlook is not None else running(now)
    idle = EndpointSignals(
        arrivals=now.arrivals, last_arrival_s=now.last_arrival_s, known=True, unheard_s=now.unheard_s
    )
    if demand < QUIET:
        return idle
    stay_s = now.stay_s if is_smooth(now) else 1.0
    return replace(
        idle,
        inflight=1,  # somebody is there; how many is what arrives and stays, as replicas will have followed
        last_arrival_s=at_s,
        arriving_per_s=demand / stay_s,
        stay_s=stay_s,
    )


def _settled(at_s: float, then: Snapshot, memory: Memory, config: PolicyConfig) -> Memory:
    """The memory once that demand has lasted: what goes up does so at once, what comes down waits many times."""
    longest_s = max((endpoint.spec.down_after_s for endpoint in then.state.endpoints.values()), default=0.0)
    for _ in range(MANY_WAITS):
        _, endpoints = replica_targets(at_s, then, memory, config)
        earlier = {name: _since_long(one, longest_s) for name, one in endpoints.items()}
        if earlier == memory.endpoints:
            break
        memory = replace(memory, endpoints=earlier)
    return memory


def _since_long(one: EndpointMemory, longest_s: float) -> EndpointMemory:
    under_s, over_s = one.under_since_s, one.over_since_s
    return replace(
        one,
        under_since_s=None if under_s is None else under_s - longest_s,
        over_since_s=None if over_s is None else over_s - longest_s,
    )


def _row(snapshot: Snapshot, then: Snapshot, settled: Memory, target: ReplicaTarget, lead_s: float) -> dict[str, Any]:
    """Demand is None, now and then, where gateways are silent: nobody knows."""
    state, name = snapshot.state, target.endpoint
    outlook, traffic = snapshot.outlooks.get(name), snapshot.traffic.get(name, EndpointSignals())
    expected: Mapping[str, Any] = {"most": None, "error": None}
    if target.known and outlook is not None and outlook.expected:
        nearest = min(outlook.expected, key=lambda one: abs(one.lead_s - lead_s))
        most = outlook.most(0.95, lead_s, running(traffic)) or 0.0
        expected = {"most": round(most, 2), "error": round(nearest.error, 3)}
    aim = settled.endpoints[name].aim if target.known and name in settled.endpoints else target.replicas
    return {
        "endpoint": name,
        "known": target.known,
        "unheard_s": round(traffic.unheard_s, 1),
        "now": round(running(traffic), 2) if target.known else None,
        "then": round(running(then.traffic[name]), 2) if target.known else None,
        **expected,
        "replicas": target.now,
        "replicas_then": aim,
        "slots": (aim - target.now) * state.endpoints[name].spec.slots_per_replica,
    }
