"""The serving half of the policy as a Ray Serve autoscaling policy, for pools without an arbiter.

A stock Serve file takes it at the application's level, so that one decision is made for all of its deployments:

.. code-block:: yaml

    applications:
      - name: models
        import_path: app:models
        autoscaling_policy:
          policy_function: ebbtide_autoscaler.integrations.ray_serve_policy:ServePolicy
          policy_kwargs:
            gpus: 8
            deployments:
              chat: {target_requests: 16, priority: 10}
              embed: {target_requests: 64}

Each of these deployments has an ``autoscaling_config`` with ``min_replicas`` and ``max_replicas``. Its author sets
``upscale_delay_s`` and ``downscale_delay_s`` there to 0, which nobody checks: the policy itself decides how soon and
for how long.
Deployments that are not named are left alone.

Serve counts requests every few seconds and tells neither arrivals nor how long they stay, so demand is what is queued
or running; training is not known at all. An arbiter (``ebbtide up``) has neither limit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from ebbtide.config.sections.section import Section
from ebbtide.pool.ids import EndpointName, SeatId, seat_id
from ebbtide.pool.spec import EndpointSpec, WorkloadClass
from ebbtide.pool.state import EndpointRecord, PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.demand.demand_watch import DemandWatch
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget, replica_targets
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.process.steady_clock import SteadyClock


class Context(Protocol):
    """What Serve tells of a deployment (``ray.serve.config.AutoscalingContext``, as far as it is used here)."""

    deployment_name: str
    target_num_replicas: int
    total_num_requests: float
    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int


Id = TypeVar("Id")


class DeploymentPolicy(Section):
    """What the policy must know of a deployment; the defaults are those of an endpoint."""

    target_requests: Annotated[int, Field(ge=1)] = 8
    gpus_per_replica: Annotated[int, Field(ge=0)] = 1
    priority: int = 0
    start_s: Annotated[float, Field(ge=0)] = 45.0
    idle_after_s: Annotated[float, Field(ge=0)] = 30.0
    down_after_s: Annotated[float, Field(ge=0)] = 15.0


class ServePolicy:
    """One application's policy; Serve calls it about ten times a second, within its own loop: it never waits."""

    def __init__(
        self,
        gpus: int,
        deployments: Mapping[str, Mapping[str, Any]],
        forecast_share: float = 0.98,
        up_after_s: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Args:
            gpus: that the deployments may have together.
            deployments: by name, the fields of `DeploymentPolicy`.
            forecast_share: see `PolicyConfig`.
            up_after_s: of more demand, before there are more replicas.
            clock: seconds since 1970 that never go back; None: this machine's.

        Raises:
            ValueError: a field is wrong, or unknown.
        """
        # Made here and no default value: Serve pickles this class, which must hold no lock.
        self._gpus, self._clock = gpus, clock or SteadyClock().now_s
        self._named = {name: DeploymentPolicy.model_validate(said) for name, said in deployments.items()}
        self._config = PolicyConfig(forecast_share=forecast_share, up_after_s=up_after_s)
        self._memory, self._watch = Memory(), DemandWatch()
        self._last_asked_s: dict[str, float] = {}

    def __call__(self, contexts: Mapping[Id, Context]) -> tuple[dict[Id, int], dict[Id, dict[str, Any]]]:
        """The replicas of each named deployment."""
        now_s = self._clock()
        mine = {
            context.deployment_name: context for context in contexts.values() if context.deployment_name in self._named
        }
        state = _pool({name: (self._named[name], one) for name, one in mine.items()})
        traffic = {EndpointName(name): self._signals(now_s, one) for name, one in mine.items()}
        self._watch.hear(now_s, traffic)
        snapshot = Snapshot(state, traffic, outlooks=self._watch.outlooks)
        wanted, endpoints = replica_targets(now_s, snapshot, self._memory, self._config)
        self._memory = Memory(endpoints=endpoints)
        counts = self._within_gpus(wanted, state)
        return {key: counts[one.deployment_name] for key, one in contexts.items() if one.deployment_name in mine}, {}

    def _signals(self, now_s: float, context: Context) -> EndpointSignals:
        asked = round(context.total_num_requests)
        if asked:
            self._last_asked_s[context.deployment_name] = now_s
        last_s = self._last_asked_s.get(context.deployment_name, 0.0)
        return EndpointSignals(inflight=asked, last_arrival_s=last_s, known=True)

    def _within_gpus(self, wanted: Sequence[ReplicaTarget], state: PoolState) -> dict[str, int]:
        """Everybody's least number first, then what is wanted beyond, by priority, while there are GPUs."""
        counts = {one.endpoint: min(one.replicas, state.endpoints[one.endpoint].spec.replicas_min) for one in wanted}
        gpus_each = {one.endpoint: self._named[one.endpoint].gpus_per_replica for one in wanted}
        left = self._gpus - sum(count * gpus_each[name] for name, count in counts.items())
        for one in wanted:
            more, each = one.replicas - counts[one.endpoint], gpus_each[one.endpoint]
            if each:  # else it runs on CPUs, of which nobody counts any here
                more = max(0, min(more, left // each))
            counts[one.endpoint] += more
            left -= more * each
        return {str(name): count for name, count in counts.items()}


def _pool(found: Mapping[str, tuple[DeploymentPolicy, Context]]) -> PoolState:
    """The deployments as endpoints, each with a ready seat for every replica that is there or coming."""
    endpoints, seats = dict[EndpointName, EndpointRecord](), dict[SeatId, SeatRecord]()
    for said, (named, context) in found.items():
        name = EndpointName(said)
        endpoints[name] = EndpointRecord(_spec(name, named, context), start_s=named.start_s)
        for number in range(context.target_num_replicas):
            seat = seat_id(name, number)
            seats[seat] = SeatRecord(id=seat, endpoint=name, state=SeatState.READY)
    return PoolState(endpoints=endpoints, seats=seats)


def _spec(name: EndpointName, named: DeploymentPolicy, context: Context) -> EndpointSpec:
    least = max(0, context.capacity_adjusted_min_replicas)
    return EndpointSpec(
        name=name,
        owner="serve",
        team="serve",
        workload_class=WorkloadClass.NON_PREEMPTIBLE,
        priority=named.priority,
        replicas_min=least,
        replicas_max=max(least, context.capacity_adjusted_max_replicas),
        slots_per_replica=max(1, named.gpus_per_replica),  # an endpoint's replica has one; GPUs are counted by name
        target_requests=named.target_requests,
        ttft_slo_s=2.0,
        tpot_slo_s=0.1,
        idle_after_s=named.idle_after_s,
        down_after_s=named.down_after_s,
        min_uptime_factor=0.0,  # Serve chooses which replica goes, and it may be any
        drain_s=30.0,
    )
