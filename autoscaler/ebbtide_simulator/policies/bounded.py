"""Contenders that say how many replicas there shall be, and leave the rest to our policy's code."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ebbtide.pool.events import Decision
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.decide.policy import Reclaim, decide
from ebbtide_autoscaler.core.jobs.reclaim import reclaim as least_lost
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot

Bounds = Callable[[float, Snapshot], Mapping[EndpointName, tuple[int, int]]]
"""The fewest and the most replicas of each endpoint now."""


class Bounded:
    """Our policy within bounds that change; one for each run."""

    def __init__(self, bounds: Bounds, reclaim: Reclaim = least_lost) -> None:
        self._bounds, self._reclaim, self._idle = bounds, reclaim, IdleCache()
        self._last: tuple[PoolState, Mapping[EndpointName, tuple[int, int]], PoolState] | None = None

    def __call__(
        self, now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig
    ) -> tuple[Decision, Memory]:
        """As `ebbtide_autoscaler.core.decide.policy.decide`."""
        state, now = snapshot.state, self._bounds(now_s, snapshot)
        if self._last is None or self._last[0] is not state or self._last[1] != now:
            self._last = (state, now, _within(state, now))  # the same object for the same bounds: see `idle_cache`
        bounded = replace(snapshot, state=self._last[2])
        return decide(now_s, bounded, memory, config, reclaim=self._reclaim, cache=self._idle)


def _within(state: PoolState, bounds: Mapping[EndpointName, tuple[int, int]]) -> PoolState:
    endpoints = dict(state.endpoints)
    for name, (least, most) in bounds.items():
        if name not in endpoints or not endpoints[name].spec.replicas_max:
            continue  # it is not there yet, or retires
        spec = replace(endpoints[name].spec, replicas_min=least, replicas_max=most)
        endpoints[name] = replace(endpoints[name], spec=spec)
    return replace(state, endpoints=endpoints)
