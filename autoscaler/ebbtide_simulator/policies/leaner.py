"""Fewer replicas than a plan has, for as many late requests as are allowed: what foresight could have instead. Pure.

A plan keeps every second's promise by whole replicas, and by more of them wherever a rehearsal had late requests. In a
pool of a few nodes each of them is much: one replica of four GPUs less, for one request of a thousand late, may be a
sixth more training. Who goes without is the endpoint that gives away the most for what it has of the late requests.

Late is as the fluid has it, with replicas that answer exactly when the plan says. What moves take is found by playing.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ebbtide.pool.ids import EndpointName
from ebbtide_simulator.policies.foresight import STRETCH_S
from ebbtide_simulator.run.run import Service
from ebbtide_simulator.traffic.queue import Queue
from ebbtide_simulator.traffic.traces import Array

GRAIN = 32  # so many shares of a plan are tried, which is each count of 32 replicas
FEWER = 3  # and up to so many replicas less throughout


def leaner(
    services: Sequence[Service], plans: Mapping[EndpointName, Array], late_share: float, from_s: int
) -> Mapping[EndpointName, Array]:
    """The plans with as few replicas as such a share of all requests allows.

    Args:
        plans: replicas by stretches of `foresight.STRETCH_S`.
        late_share: of all requests from ``from_s`` on, those of all endpoints together; where the plans have more late
            ones than that, no more of them.
        from_s: the second from which on requests count.
    """
    found, waiting = dict(plans), list(services)
    usual = {service.spec.name: late_with(service, plans[service.spec.name], from_s) for service in services}
    allowed = late_share * sum(float(service.load.requests[from_s:].sum()) for service in services)
    left = max(0.0, allowed - sum(usual.values()))
    while waiting:
        tried = [(one, *_leanest(one, plans[one.spec.name], usual[one.spec.name], left, from_s)) for one in waiting]
        most, plan, late = max(tried, key=lambda one: _saved(plans[one[0].spec.name], one[1]) * one[0].engine.slots)
        found[most.spec.name] = plan
        left -= max(0.0, late - usual[most.spec.name])
        waiting.remove(most)
    return found


def late_with(one: Service, plan: Array, from_s: int) -> float:
    """Requests from second ``from_s`` on that come late if replicas answer as the plan says."""
    queue, late = Queue(one.load, one.engine, one.spec.ttft_slo_s), 0.0
    changes = (np.flatnonzero(np.diff(plan)) + 1) * STRETCH_S
    for end in np.union1d(changes, [from_s, len(one.load.work_s)]).tolist():
        begin = queue.arrivals.second
        served = queue.serve(end, int(plan[min(begin // STRETCH_S, len(plan) - 1)]))
        late += served.late if begin >= from_s else 0.0
    return late


def _leanest(one: Service, plan: Array, usual: float, more: float, from_s: int) -> tuple[Array, float]:
    """The smallest plan with at most ``usual + more`` late requests, and how many it has.

    ``plan`` and ``usual`` if there is none.
    """
    for fewer in sorted(_fewer(plan), key=lambda fewer: float(fewer.sum())):
        if _saved(plan, fewer) > 0 and (found := late_with(one, fewer, from_s)) <= usual + more:
            return fewer, found
    return plan, usual


def _fewer(plan: Array) -> Iterator[Array]:
    """Smaller plans to try: capped at each count, scaled to each of `GRAIN` shares, or lowered by 1 to `FEWER`."""
    most = int(plan.max())
    yield from (np.minimum(plan, float(cap)) for cap in range(1, most))
    yield from (np.ceil(plan * part / GRAIN - 1e-9) for part in range(1, GRAIN))
    yield from (np.maximum(plan - less, 1.0) for less in range(1, min(FEWER, most - 1) + 1))


def _saved(plan: Array, fewer: Array) -> float:
    return float((plan - fewer).sum())
